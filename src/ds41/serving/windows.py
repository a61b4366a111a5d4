"""The window pool: a sequence's window KV kept for minutes in memory, so that its next turn need not replay.

The DeepSeek-V4.1 report gives window KV a tier of its own (section 3.2.1): global KV lives on disk for at least
72 hours, windows live in a distributed pool made of 10 % of each machine's DRAM, for minutes, and their room is
recycled at once, because after the next turn nobody asks for them again. A miss costs a bounded replay of one
window of tokens, so a pool may always answer "no": it never blocks and never holds more than its budget.

Source: report section 3.2.1.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ds41.serving.counters import Counters
from ds41.serving.machine_memory import memory_bytes

LIFETIME_S = 600.0
MEMORY_SHARE = 0.1
POOL_COUNTERS = (
    "lookups",
    "hits",
    "misses",
    "puts",
    "refused_puts",
    "bytes_read",
    "bytes_written",
    "evicted",
    "expired",
    "recycled",
)


class Lease:
    """One window that a reader holds: whatever happens to the pool's entry, ``data`` stays as it was taken.

    A context manager; :meth:`release` or the end of the ``with`` block gives it back, and so does its last
    reference. ``data`` is read-only and not a copy. Arrays made from it remain valid after the release, but the
    pool then no longer counts their bytes.
    """

    def __init__(self, key: bytes, data: memoryview, on_release: Callable[[], None] | None = None) -> None:
        self.key = key
        self._data: memoryview | None = data
        self._on_release = on_release

    @property
    def data(self) -> memoryview:
        """The window's bytes, uint8 [nbytes].

        Raises:
            ValueError: the lease was released.
        """
        if self._data is None:
            raise ValueError(f"the lease on window {self.key.hex()} was released; take it again")
        return self._data

    def release(self) -> None:
        """Give the window back. A second time does nothing."""
        self._data = None
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


class WindowPool(Protocol):
    """What an engine needs of a pool. Keys are digests of everything that a window depends on."""

    counters: Counters

    def put(self, key: bytes, data: bytes | memoryview) -> bool:
        """Keep ``data`` under ``key`` for the pool's lifetime, in place of what was there. False: no room for it."""

    def take(self, keys: Sequence[bytes]) -> Lease | None:
        """The first of ``keys`` that is present and not expired, or None."""

    def drop(self, key: bytes) -> bool:
        """Recycle an entry at once. False: there was none. A lease on it keeps reading."""


@dataclass(frozen=True)
class PoolUsage:
    """What a pool holds at one moment, in bytes and entries.

    ``held_bytes`` counts against ``budget_bytes``: all entries, and what leases keep of entries that are gone.
    ``leased_bytes`` is the part of it under lease, ``lingering_bytes`` the part whose entry is gone.
    """

    entries: int
    held_bytes: int
    leased_bytes: int
    lingering_bytes: int
    budget_bytes: int


@dataclass(eq=False)
class _Entry:
    key: bytes
    data: bytes
    expires: float
    leases: int = 0
    present: bool = True


class HostWindowPool:
    """Windows in this process's memory, within a budget of bytes. Safe for several threads.

    ``budget_bytes``: None for 10 % of the machine's memory (or of the container's, where that is less).
    ``lifetime_s``: seconds from :meth:`put` until an entry is a miss; a take does not prolong them, since a window
    is dead after the next turn. ``clock`` gives seconds and never goes back.

    Within the budget the entry unused for longest makes room; one under lease counts as in use and stays. Every
    call first recycles what has expired, at a cost that depends only on how much that is. Bytes of an entry that is
    gone count until its last lease is released, so the budget bounds what the pool really holds.

    Counters (:data:`POOL_COUNTERS`): of the entries put, each ends as ``evicted`` (to make room), ``expired`` or
    ``recycled`` (dropped, or replaced under its key).

    Raises:
        ValueError: a budget below 1 byte, or a lifetime not above 0.
    """

    def __init__(
        self,
        budget_bytes: int | None = None,
        lifetime_s: float = LIFETIME_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if budget_bytes is None:
            budget_bytes = int(memory_bytes() * MEMORY_SHARE)
        if budget_bytes <= 0:
            raise ValueError(f"budget_bytes is {budget_bytes}; expected at least 1")
        self.budget_bytes = budget_bytes
        self.lifetime_s = checked_lifetime(lifetime_s)
        self.counters = Counters(POOL_COUNTERS)
        self._clock = clock
        self._lock = threading.Lock()
        # All live equally long, so the order of puts is the order of expiry.
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        # Those that may be evicted: present and not under lease, the one unused for longest first.
        self._idle: OrderedDict[bytes, _Entry] = OrderedDict()
        self._returned: deque[_Entry] = deque()
        self._held = self._leased = self._lingering = 0

    def put(self, key: bytes, data: bytes | memoryview) -> bool:
        """Keep ``data`` under ``key``, in place of what was there.

        Bytes are kept as they are, any other buffer is copied once. False, with nothing changed, if it does not
        fit into the budget beside what is under lease.

        Raises:
            TypeError: the key is not bytes, or the data not a buffer of bytes.
            ValueError: the key or the data is empty.
        """
        check_key(key)
        view = buffer_of(key, data)
        with self._lock:
            self._settle()
            if self._leased + view.nbytes > self.budget_bytes:
                self.counters.add("refused_puts")
                return False
            if key in self._entries:
                self._forget(self._entries[key], "recycled")
            while self._held + view.nbytes > self.budget_bytes:
                self._forget(next(iter(self._idle.values())), "evicted")
            entry = _Entry(key, data if type(data) is bytes else view.tobytes(), self._clock() + self.lifetime_s)
            self._entries[key] = self._idle[key] = entry
            self._held += view.nbytes
            self.counters.add("puts")
            self.counters.add("bytes_written", view.nbytes)
        return True

    def take(self, keys: Sequence[bytes]) -> Lease | None:
        """A lease on the first of ``keys`` that is present and not expired, or None.

        Raises:
            TypeError: a key is not bytes.
            ValueError: a key is empty.
        """
        for key in keys:
            check_key(key)
        with self._lock:
            self._settle()
            self.counters.add("lookups")
            entry = next((self._entries[key] for key in keys if key in self._entries), None)
            if entry is None:
                self.counters.add("misses")
                return None
            if not entry.leases:
                del self._idle[entry.key]
                self._leased += len(entry.data)
            entry.leases += 1
            self.counters.add("hits")
            self.counters.add("bytes_read", len(entry.data))
        return Lease(entry.key, memoryview(entry.data), lambda: self._give_back(entry))

    def drop(self, key: bytes) -> bool:
        """Recycle an entry at once; False if there was none. A lease on it keeps reading.

        Raises:
            TypeError: the key is not bytes.
            ValueError: the key is empty.
        """
        check_key(key)
        with self._lock:
            self._settle()
            if key not in self._entries:
                return False
            self._forget(self._entries[key], "recycled")
        return True

    def usage(self) -> PoolUsage:
        """What the pool holds now."""
        with self._lock:
            self._settle()
            return PoolUsage(len(self._entries), self._held, self._leased, self._lingering, self.budget_bytes)

    def _give_back(self, entry: _Entry) -> None:
        # May run in a finaliser, in the middle of any call of this very thread: it must neither wait for the lock
        # nor change the books without it. Whoever holds it settles later.
        self._returned.append(entry)
        if self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        """Take back what leases returned, recycle what has expired."""
        while self._returned:
            self._end_lease(self._returned.popleft())
        now = self._clock()
        while self._entries:
            oldest = next(iter(self._entries.values()))
            if oldest.expires > now:
                return
            self._forget(oldest, "expired")

    def _end_lease(self, entry: _Entry) -> None:
        entry.leases -= 1
        if entry.leases:
            return
        self._leased -= len(entry.data)
        if entry.present:
            self._idle[entry.key] = entry
        else:
            self._held -= len(entry.data)
            self._lingering -= len(entry.data)

    def _forget(self, entry: _Entry, reason: str) -> None:
        """Nobody finds the entry from now on; its bytes go unless a lease holds them."""
        del self._entries[entry.key]
        entry.present = False
        self.counters.add(reason)
        if entry.leases:
            self._lingering += len(entry.data)
        else:
            del self._idle[entry.key]
            self._held -= len(entry.data)


def checked_lifetime(lifetime_s: float) -> float:
    """``lifetime_s`` if it is a lifetime: a finite number of seconds above 0."""
    if not (math.isfinite(lifetime_s) and lifetime_s > 0):
        raise ValueError(f"lifetime_s is {lifetime_s}; expected a finite number of seconds above 0")
    return lifetime_s


def check_key(key: bytes) -> None:
    """Refuse what is no key of a window: a ``TypeError`` or ``ValueError`` that says why."""
    if not isinstance(key, bytes):
        raise TypeError(f"key {key!r} is {type(key).__name__}; expected bytes")
    if not key:
        raise ValueError("the key is empty; expected the digest of what the window depends on")


def buffer_of(key: bytes, data: bytes | memoryview) -> memoryview:
    """``data`` as a memoryview; refuses what is no buffer, and an empty one."""
    try:
        view = memoryview(data)
    except TypeError as error:
        raise TypeError(f"window {key.hex()} is {type(data).__name__}; expected bytes or a buffer of them") from error
    if not view.nbytes:
        raise ValueError(f"window {key.hex()} has no bytes; expected at least 1")
    return view
