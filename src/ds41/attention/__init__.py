"""CSA2 attention: its modes, and the parts that they are made of."""

from ds41.attention.attention import Attended, Attention
from ds41.attention.compressor import Compressor, Entries
from ds41.attention.indexer import Indexer, IndexKeys, Selection
from ds41.attention.kernel_memory import KernelMemory
from ds41.attention.memory import CacheMemory, Memory, SequenceMemory
from ds41.attention.output import OutputProjection
from ds41.attention.query import QueryPath
from ds41.attention.window import WindowKV

__all__ = [
    "Attended",
    "Attention",
    "CacheMemory",
    "Compressor",
    "Entries",
    "IndexKeys",
    "Indexer",
    "KernelMemory",
    "Memory",
    "OutputProjection",
    "QueryPath",
    "Selection",
    "SequenceMemory",
    "WindowKV",
]
