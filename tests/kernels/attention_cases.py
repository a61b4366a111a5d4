"""Packed keys of made-up sequences, and what attention over them should give."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ds41.formats import MAIN_KV, WINDOW_KV, Packed
from ds41.ops.sparse_attention import sparse_attention
from ds41.rope import frequencies, rotate_by, turns

PER_PAGE = 8


@dataclass(frozen=True)
class Case:
    """Arguments of ``sparse_attention_packed``; ``turn`` is complex64 [N, R/2] or None."""

    query: torch.Tensor
    sink: torch.Tensor
    window: Packed
    choice: torch.Tensor
    main: Packed | None
    page_table: torch.Tensor | None
    sequence: torch.Tensor | None
    selected: torch.Tensor | None
    turn: torch.Tensor | None = None

    @property
    def scale(self) -> float:
        return self.query.shape[-1] ** -0.5

    def arguments(self, device: torch.device) -> dict:
        turn = (None, None) if self.turn is None else (self.turn.real.contiguous(), self.turn.imag.contiguous())
        main = (None, None) if self.main is None else self.main
        names = ("query", "sink", "window_codes", "window_scales", "choice", "main_codes", "main_scales")
        names += ("page_table", "sequence", "selected", "turn_cos", "turn_sin")
        tensors = (self.query, self.sink, *self.window, self.choice, *main)
        tensors += (self.page_table, self.sequence, self.selected, *turn)
        placed = (tensor if tensor is None else tensor.to(device) for tensor in tensors)
        return dict(zip(names, placed, strict=True)) | {"scale": self.scale}

    def keys(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Gathered keys, float32 [N, W + K, C], and which are usable."""
        keys = WINDOW_KV.decode(self.window, torch.float32)[self.choice.long().clamp(min=0)]
        usable = self.choice >= 0
        if self.selected is not None:
            entry = self.selected.long()
            column = entry.div(PER_PAGE, rounding_mode="floor").clamp(0, self.page_table.shape[1] - 1)
            page = self.page_table[self.sequence[:, None], column]
            page = torch.where(entry < PER_PAGE * self.page_table.shape[1], page, -1)
            entries = MAIN_KV.decode(self.main, torch.float32)[page, entry % PER_PAGE]
            entries = entries.masked_fill((page < 0)[..., None] | (entry < 0)[..., None], 0)
            keys, usable = torch.cat((keys, entries), 1), torch.cat((usable, entry >= 0), 1)
        return keys, usable

    def expected(self, rotate_query: bool = False) -> torch.Tensor:
        """By the torch reference in float32."""
        keys, usable = self.keys()
        query = self.query.float()
        if rotate_query:
            query = rotate_by(query, self.turn[:, None])
        out = sparse_attention(query, keys, usable, self.sink)
        return out if self.turn is None else rotate_by(out, self.turn.conj()[:, None])

    def exact(self) -> torch.Tensor:
        """Unrotated, in float64."""
        keys, usable = self.keys()
        keys = keys.double()
        logits = torch.einsum("nhc,nkc->nhk", self.query.double(), keys) * self.scale
        weights = torch.exp(logits) * usable[:, None]
        total = weights.sum(-1, keepdim=True) + torch.exp(self.sink.double())[:, None]
        return torch.einsum("nhk,nkc->nhc", weights / total, keys)

    def change(self, **changes) -> Case:
        return replace(self, **changes)


def make_case(
    rows: int = 2,
    heads: int = 5,
    channels: int = 96,
    window: int = 9,
    selected: int = 20,
    *,
    dtype: torch.dtype = torch.float32,
    pairs: int = 0,
    seed: int = 0,
) -> Case:
    """Two sequences in one pool; a good part of the slots is empty, and keys may come twice."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    kept, pages, batch, columns = 20, 12, 2, 5
    turn = None
    if pairs:
        position = torch.randint(1, 1000, (rows,), generator=generator)
        turn = turns(position, frequencies(2 * pairs, 10000.0))
    return Case(
        query=(2 * numbers(rows, heads, channels)).to(dtype),
        sink=numbers(heads),
        window=WINDOW_KV.encode(numbers(kept, channels)),
        choice=torch.randint(-4, kept, (rows, window), generator=generator).clamp(min=-1),
        main=MAIN_KV.encode(numbers(pages, PER_PAGE, channels)),
        page_table=torch.randperm(pages, generator=generator)[: batch * columns].view(batch, columns),
        sequence=torch.randint(0, batch, (rows,), generator=generator),
        selected=torch.randint(-9, columns * PER_PAGE, (rows, selected), generator=generator).clamp(min=-1),
        turn=turn,
    )
