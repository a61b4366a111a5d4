"""Serving: what is kept of a conversation between its turns, and where; sessions of many tenants on one model."""

from importlib import import_module

# A module is imported when one of its names is asked for: the store alone does without torch.
_MODULES = {
    "counters": ("Counters",),
    "engine": ("Engine",),
    "fingerprint": ("model_fingerprint",),
    "keys": ("PrefixKeys", "root_key"),
    "redis_windows": ("RedisWindowPool",),
    "session": ("Session", "Stream"),
    "store": ("MissingPrefix", "Prefix", "PrefixStore", "StoreError", "StoreFull", "Stored", "Usage"),
    "turn": ("TurnReport",),
    "windows": ("HostWindowPool", "Lease", "WindowPool"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
