"""ds41: the components behind 890 bytes of context per token, and the book that builds them up."""

from importlib import import_module

from ds41.config import ConfigError, LayerPlan, ModelConfig

__version__ = "0.1.0"
__all__ = [
    "ConfigError",
    "LayerPlan",
    "Model",
    "ModelConfig",
    "__version__",
    "generate",
    "load_checkpoint",
    "save_checkpoint",
]

# Loaded when first used: the ledger and the command line need no model.
_LATER = {
    "Model": "ds41.model",
    "generate": "ds41.generation",
    "load_checkpoint": "ds41.checkpoint",
    "save_checkpoint": "ds41.checkpoint",
}


def __getattr__(name: str):
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
