"""Selections of a model changed for single tokens: a needle hidden from some layers, or shown to them.

Only the tokens that ask are changed (and the question's, if wanted), and only what their layers read: a hidden
needle's places go to the entries that score next. Each layer that reads can be told apart, also where several share
a selection.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

from ds41.attention import Indexer, Memory, Selection
from ds41.model import Model
from ds41.ops.selection import candidate_blocks, entries_of_blocks, top_entries
from ds41.probes.needle_rows import NeedleRows
from ds41.step import Step

Sight = Literal["hidden", "shown"]
"""What is forced: an entry is never selected, or always."""


@dataclass(frozen=True)
class Force:
    """What is changed. hidden, shown: layers that read a selection. pool_hidden: the candidate source leaves the
    needle's blocks out of the pool; "shown" puts the needle in whatever the pool says."""

    hidden: frozenset[int] = frozenset()
    shown: frozenset[int] = frozenset()
    pool_hidden: bool = False

    def of(self, layer: int) -> Sight | None:
        """What is forced in a layer; None for nothing."""
        return "hidden" if layer in self.hidden else "shown" if layer in self.shown else None


class Seen(NamedTuple):
    """What one selecting layer made of the needle, for each asking token.

    rank: int64 [B, A], of the needle's best entry among all visible ones by the layer's own scores, 1 for the best.
    selected: bool [B, A], the layer's own selection holds one of the needle's entries. in_pool: bool [B, A], so does
        the
    pool.
    """

    rank: torch.Tensor
    selected: torch.Tensor
    in_pool: torch.Tensor


@dataclass
class Watch:
    """Filled by a pass of the model: ``seen`` by selecting layer, of selections before they are changed."""

    seen: dict[int, Seen] = field(default_factory=dict)


@contextmanager
def forced_selection(model: Model, rows: NeedleRows, force: Force) -> Iterator[Watch]:
    """While it lasts, ``model(rows.ids)`` selects as forced; what the layers themselves would do is watched.

    Raises:
        ValueError: layers that read no selection, one that is both hidden and shown, or, in the pass, a pool to be
            hidden from where the model makes none.
    """
    config = model.config
    reading = frozenset(plan.index for plan in config.layers if plan.ratio)
    unknown = (force.hidden | force.shown) - reading
    if unknown or force.hidden & force.shown:
        raise ValueError(
            f"hidden {sorted(force.hidden)}, shown {sorted(force.shown)}; expected different layers that read a "
            f"selection: {sorted(reading)}"
        )
    if force.pool_hidden and config.candidate_source_layer_id < 0:
        raise ValueError("pool_hidden is set; the configuration has no candidate source")
    watch = Watch()
    variants: dict[int, dict[Sight | None, Selection]] = {}
    handles = []

    def select(indexer: Indexer, args: tuple, made: Selection) -> Selection:
        source = indexer.plan.index
        change = _Change(indexer, rows, *args)
        watch.seen[source] = change.seen(made)
        if force.pool_hidden and indexer.publishes:
            made = change.without_pool(made)
        wanted = {force.of(plan.index) for plan in config.layers if plan.index_source == source}
        variants[source] = {sight: made if sight is None else change.forced(made, sight) for sight in wanted}
        return variants[source][force.of(source)]

    def borrow(layer: int, source: int):
        def swap(_attention: torch.nn.Module, args: tuple) -> tuple:
            x, step, memory, selections, *rest = args
            return x, step, memory, selections | {source: variants[source][force.of(layer)]}, *rest

        return swap

    try:
        for plan, block in zip(config.layers, model.layers, strict=True):
            if plan.owns_selection:
                handles.append(block.attn.indexer.register_forward_hook(select))
            elif plan.ratio:
                handles.append(block.attn.register_forward_pre_hook(borrow(plan.index, plan.index_source)))
        yield watch
    finally:
        for handle in handles:
            handle.remove()


class _Change:
    """Scores of the changed tokens in one selecting layer, and other selections made from them."""

    def __init__(
        self,
        indexer: Indexer,
        rows: NeedleRows,
        x: torch.Tensor,
        latent: torch.Tensor,
        turn: torch.Tensor,
        step: Step,
        memory: Memory,
        candidates: torch.Tensor | None,
    ) -> None:
        self.indexer, self.shape, self.asking = indexer, rows.changed.shape, rows.asking.shape[1]
        ratio = indexer.plan.ratio
        offsets = torch.tensor(step.offsets[:-1], device=x.device)
        self.flat = (offsets[:, None] + rows.changed).flatten()
        self.visible = ((rows.changed + 1) // ratio).flatten()
        entries = rows.ids.shape[1] // ratio
        asked = indexer.query(x[self.flat], latent[self.flat], turn[self.flat])
        each = self.shape[1]
        scores = [
            indexer.scores(asked.part(slice(row * each, (row + 1) * each)), row, entries, memory)
            for row in range(self.shape[0])
        ]
        hidden = torch.arange(entries, device=x.device) >= self.visible[:, None]
        self.scores = torch.cat(scores).masked_fill_(hidden, -torch.inf)
        self.needle = rows.carrying(ratio).repeat_interleave(each, dim=0) & ~hidden
        if not bool(self.needle.any(1).all()):
            row = int((~self.needle.any(1)).nonzero()[0]) // each
            raise ValueError(
                f"row {row}: no entry of the needle is closed when the question comes; move it further away"
            )
        self.allowed = self._allowed(candidates)

    def seen(self, made: Selection) -> Seen:
        best = self.scores.masked_fill(~self.needle, -torch.inf).amax(1, keepdim=True)
        rank = 1 + (self.scores > best).sum(1)
        selected = self._marked(made.entries[self.flat]) & self.needle
        in_pool = self.allowed & self.needle
        parts = (rank, selected.any(1), in_pool.any(1))
        return Seen(*(part.view(self.shape)[:, : self.asking] for part in parts))

    def forced(self, made: Selection, sight: Sight) -> Selection:
        """The selection with the changed tokens' needle in or out; the others' stay."""
        if sight == "hidden":
            scores = self.scores.masked_fill(~self.allowed | self.needle, -torch.inf)
        else:
            scores = self.scores.masked_fill(~self.allowed, -torch.inf).masked_fill(self.needle, torch.inf)
        chosen = top_entries(scores, made.entries.shape[1])
        entries = made.entries.clone()
        entries[self.flat] = chosen
        return Selection(entries, made.candidates)

    def without_pool(self, made: Selection) -> Selection:
        """The same entries, and a pool without the needle's blocks for the changed tokens."""
        if made.candidates is None:
            raise ValueError("the needle cannot be left out of the pool: it holds every entry; take longer rows")
        c = self.indexer.config
        size = c.candidate_block_size
        blocks = -(-self.scores.shape[1] // size)
        padded = torch.nn.functional.pad(self.needle, (0, blocks * size - self.needle.shape[1]))
        carrying = padded.unflatten(1, (blocks, size)).any(-1).repeat_interleave(size, dim=1)
        scores = self.scores.masked_fill(carrying[:, : self.scores.shape[1]], -torch.inf)
        candidates = made.candidates.clone()
        candidates[self.flat] = candidate_blocks(scores, self.visible, size, c.candidate_topk_blocks)
        return Selection(made.entries, candidates)

    def _allowed(self, candidates: torch.Tensor | None) -> torch.Tensor:
        if candidates is None:
            return torch.ones_like(self.needle)
        size = self.indexer.config.candidate_block_size
        return self._marked(entries_of_blocks(candidates[self.flat], size, self.visible))

    def _marked(self, entries: torch.Tensor) -> torch.Tensor:
        """Which entries are among those listed, -1 for none: bool [N, L]."""
        length = self.scores.shape[1]
        marked = torch.zeros(len(entries), length + 1, dtype=torch.bool, device=entries.device)
        return marked.scatter_(1, torch.where(entries < 0, length, entries), True)[:, :length]
