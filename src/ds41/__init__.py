"""ds41: the components behind 890 bytes of context per token, and the book that builds them up."""

from ds41.config import ConfigError, LayerPlan, ModelConfig

__version__ = "0.1.0"
__all__ = ["ConfigError", "LayerPlan", "ModelConfig", "__version__"]
