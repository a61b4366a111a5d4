"""Engram: rows of a very large table, picked by hashing the last few tokens, added to the residual streams.

Token ids become compressed ids (:class:`Hasher`), these look-back windows (:func:`look_back`), these row numbers;
a row number needs nothing but token ids, so the rows can be on their way before the first layer runs.

Source: report section 2.4.2; the released ``inference/engram.py`` and ``inference/model.py``.
"""

from ds41.engram.hashing import HashConstants, Hasher, hash_constants
from ds41.engram.history import DEAD, history_after, look_back, new_history
from ds41.engram.lookups import Lookup, link_speed, lookups
from ds41.engram.module import Engram, engram_gate
from ds41.engram.table import EngramTable

__all__ = [
    "DEAD",
    "Engram",
    "EngramTable",
    "HashConstants",
    "Hasher",
    "Lookup",
    "engram_gate",
    "hash_constants",
    "history_after",
    "link_speed",
    "look_back",
    "lookups",
    "new_history",
]
