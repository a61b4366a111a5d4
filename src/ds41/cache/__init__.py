"""The packed cache: pages that hold global KV, and the private rows of every sequence."""

from ds41.cache.cache import Cache
from ds41.cache.errors import CacheError, OutOfPages
from ds41.cache.layout import PageLayout
from ds41.cache.pool import PagePool
from ds41.cache.private_rows import DEAD
from ds41.cache.snapshot import WindowSnapshot

__all__ = ["DEAD", "Cache", "CacheError", "OutOfPages", "PageLayout", "PagePool", "WindowSnapshot"]
