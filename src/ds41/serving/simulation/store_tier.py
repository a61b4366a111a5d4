"""The second tier below a model's memory: pages of whole conversations for days, counted in bytes.

The rules are those of :class:`ds41.serving.PrefixStore`; what is kept is only how much there is of whom. A session's
prefix is two chains: the preamble that it shares, in whole pages, and what is its own, the page that straddles the two
among it. Index rows and blocks of the disk are not counted, and a hit of another session's straddling page does not
lengthen its life.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ds41.cache import PageLayout
from ds41.serving import page_bytes
from ds41.serving.simulation.tiers import Clock, Level
from ds41.serving.store import GUARANTEED_S


@dataclass
class _Chain:
    """Consecutive stored pages. first, tokens: where they begin and end; parent: the chain before them, or None."""

    first: int
    tokens: int
    used_s: float
    nbytes: int
    parent: str | None


@dataclass(frozen=True)
class Content:
    """Whose tokens a prefix has. key: of the session. shared: of the preamble before its own, of ``tokens`` tokens."""

    key: str
    shared: str = ""
    tokens: int = 0


class StoreTier:
    """Pages of whole conversations, for ``guaranteed_s`` seconds after their last use at least.

    budget_bytes: None for no limit; 0 keeps nothing. expires_s: seconds without use after which a page is a miss;
    None: never. A put that finds no room is refused, and nothing that is guaranteed goes for it.
    sweeps: expired pages go at once, as where :meth:`PrefixStore.evict` is called all the time; otherwise when they are
    looked up or make room, and a put before that revives them. on_end: called with a session whose pages go, and when.
    """

    def __init__(
        self,
        clock: Clock,
        layout: PageLayout,
        budget_bytes: int | None = None,
        guaranteed_s: float = GUARANTEED_S,
        expires_s: float | None = None,
        sweeps: bool = True,
        on_end: Callable[[str, float], None] | None = None,
    ) -> None:
        if budget_bytes is not None and budget_bytes < 0:
            raise ValueError(f"budget_bytes is {budget_bytes}; expected 0 or more, or None for no limit")
        if not guaranteed_s >= 0:
            raise ValueError(f"guaranteed_s is {guaranteed_s}; expected 0 or more seconds")
        if expires_s is not None and not expires_s >= guaranteed_s:
            raise ValueError(f"expires_s is {expires_s}; expected at least guaranteed_s, {guaranteed_s}, or None")
        self.budget_bytes = math.inf if budget_bytes is None else budget_bytes
        self.guaranteed_s, self.expires_s = guaranteed_s, math.inf if expires_s is None else expires_s
        self.sweeps, self.level = sweeps, Level(clock)
        self.counts = dict.fromkeys(
            ("lookups", "hits", "puts", "refused", "expired", "evicted_bytes", "written_bytes"), 0
        )
        self._clock, self._layout, self._on_end = clock, layout, on_end
        # Least recently used first; a parent is used whenever a child is, so it comes later.
        self._chains: OrderedDict[str, _Chain] = OrderedDict()
        self._sharing: dict[str, set[str]] = {}
        self._held = 0

    def find(self, content: Content, limit: int) -> int:
        """Stored tokens of the longest prefix of a conversation of ``limit`` tokens; they count as used now."""
        self.counts["lookups"] += 1
        if self.sweeps:
            self.settle()
        own = self._unexpired(content)
        tokens = min(own.tokens, limit) if own else self._shared(content)
        if tokens:
            self.counts["hits"] += 1
            self._touch(content, own)
        return tokens

    def put(self, content: Content, tokens: int) -> int | None:
        """Store a conversation of ``tokens`` tokens; bytes written, or None where it was refused."""
        now, whole = self._clock(), content.tokens // self._layout.page_tokens * self._layout.page_tokens
        if self.sweeps:
            self.settle()
        own, parent = self._chains.get(content.key), self._chains.get(content.shared) if whole else None
        first = whole
        if own is None:
            start, old = whole, 0
            missing = 0 if parent and parent.tokens >= whole else self._bytes(0, whole)
            if missing and parent:
                missing -= parent.nbytes
        else:
            # A partial last page gives way to a fuller one, which is written anew.
            start = own.tokens // self._layout.page_tokens * self._layout.page_tokens
            missing, old = 0, self._bytes(start, own.tokens)
            first = own.first
        if own is not None and tokens <= own.tokens:
            self._touch(content, own)
            return 0
        self._touch(content, own)
        written = self._bytes(start, tokens)
        if not self._make_room(written + missing, now, {content.key, content.shared}):
            self.counts["refused"] += 1
            return None
        if whole and (parent is None or missing):
            self._set(content.shared, _Chain(0, whole, now, self._bytes(0, whole), None))
        nbytes = (own.nbytes if own else 0) - old + written
        self._set(content.key, _Chain(first, tokens, now, nbytes, content.shared if whole else None))
        if content.shared:
            self._sharing.setdefault(content.shared, set()).add(content.key)
        self._touch(content, self._chains[content.key])
        self.counts["puts"] += 1
        self.counts["written_bytes"] += written + missing
        return written + missing

    def settle(self) -> None:
        """Drop what has expired by now."""
        before = self._clock() - self.expires_s
        while self._chains:
            key, chain = next(iter(self._chains.items()))
            if chain.used_s > before:
                return
            self.counts["expired"] += 1
            self._drop(key, chain.used_s + self.expires_s)

    def close(self) -> None:
        """The run is over: drop what has expired, if that is the rule, and count what will."""
        if self.sweeps:
            self.settle()
        self.level.close()
        if self.expires_s < math.inf:
            now = self._clock()
            left = (max(0.0, chain.used_s + self.expires_s - now) * chain.nbytes for chain in self._chains.values())
            self.level.to_come = sum(left)

    def _unexpired(self, content: Content) -> _Chain | None:
        """The session's own chain; what has expired on the way to it is dropped with all that follows it."""
        before, going = self._clock() - self.expires_s, []
        shared, own = self._chains.get(content.shared), self._chains.get(content.key)
        if shared and shared.used_s <= before:
            going = [*self._sharing.get(content.shared, ()), content.shared]
        elif own and own.used_s <= before:
            if own.tokens - own.first < self._layout.page_tokens:
                # Not one whole page: nobody walks over it, so it is a miss and stays.
                return None
            going = [content.key]
        for key in going:
            self.counts["expired"] += 1
            self._drop(key, self._clock())
        return self._chains.get(content.key)

    def _shared(self, content: Content) -> int:
        """Tokens of a preamble that others have stored: its whole pages, and the page that straddles its end."""
        whole = content.tokens // self._layout.page_tokens * self._layout.page_tokens
        chain = self._chains.get(content.shared)
        if whole and (chain is None or chain.tokens < whole):
            return chain.tokens if chain else 0
        others = (self._chains[key] for key in self._sharing.get(content.shared, ()) if key in self._chains)
        return content.tokens if any(one.tokens >= content.tokens for one in others) else whole

    def _touch(self, content: Content, own: _Chain | None) -> None:
        now = self._clock()
        for key in (content.key if own else None, content.shared):
            if key and key in self._chains:
                self._chains[key].used_s = now
                self._chains.move_to_end(key)

    def _make_room(self, nbytes: int, now: float, spared: set[str]) -> bool:
        if self._held + nbytes <= self.budget_bytes:
            return True
        going, free = [], self.budget_bytes - self._held
        for key, chain in self._chains.items():
            if free >= nbytes or chain.used_s > now - self.guaranteed_s:
                break
            if key not in spared:
                going.append(key)
                free += chain.nbytes
        if free < nbytes:
            return False
        for key in going:
            self.counts["evicted_bytes"] += self._chains[key].nbytes
            self._drop(key, now)
        return True

    def _set(self, key: str, chain: _Chain) -> None:
        self._held += chain.nbytes - (self._chains[key].nbytes if key in self._chains else 0)
        self._chains[key] = chain
        self.level.set(self._held)

    def _drop(self, key: str, when: float) -> None:
        chain = self._chains.pop(key)
        self._held -= chain.nbytes
        if chain.parent in self._sharing:
            self._sharing[chain.parent].discard(key)
        self.level.set(self._held, when)
        if self._on_end:
            self._on_end(key, when)

    def _bytes(self, first: int, end: int) -> int:
        """Of the pages from token ``first``, where a page begins, to token ``end``."""
        pages, rest = divmod(end - first, self._layout.page_tokens)
        return pages * self._layout.nbytes + page_bytes.stored_bytes(self._layout, rest)
