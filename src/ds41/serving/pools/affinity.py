"""Which worker has a conversation's pages in its memory: the one that served its longest known prefix."""

from __future__ import annotations

import threading
from collections import OrderedDict

from ds41.serving.keys import PrefixKeys


class Affinity:
    """Workers by the last whole page of what they have served; the ``most`` latest are remembered."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._workers: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, keys: PrefixKeys, worker: str) -> None:
        """``worker`` has the whole pages of ``keys``."""
        pages = len(keys) // keys.page_tokens
        if not pages:
            return
        key = keys.at(pages * keys.page_tokens)
        with self._lock:
            self._workers[key] = worker
            self._workers.move_to_end(key)
            if len(self._workers) > self._most:
                self._workers.popitem(last=False)

    def find(self, keys: PrefixKeys) -> str | None:
        """Who served the longest prefix of ``keys``, or None."""
        chain = [keys.at(page * keys.page_tokens) for page in range(len(keys) // keys.page_tokens, 0, -1)]
        with self._lock:
            return next((self._workers[key] for key in chain if key in self._workers), None)
