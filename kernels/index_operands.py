"""The indexer's packed queries and paged keys: what they must be, and what a launch takes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import triton

# Channels of a query or key that share one scale.
BLOCK = 32
# Rows of one sequence for which a program decodes its keys once.
QUERIES = 16


class Queries(NamedTuple):
    """codes: uint8 [N, heads, C/2]; scales: uint8 [N, heads, C/32]; weight: float32 [N, heads]; contiguous."""

    codes: torch.Tensor
    scales: torch.Tensor
    weight: torch.Tensor

    @classmethod
    def of(cls, codes: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor) -> Queries:
        """Queries of the right types and shapes; other strides are copied."""
        if codes.dim() != 3 or 0 in codes.shape[1:] or codes.shape[2] * 2 % BLOCK:
            raise ValueError(
                f"query_codes has shape {list(codes.shape)}; expected [N, heads, C/2] with C a multiple of {BLOCK}"
            )
        rows, heads, half = codes.shape
        _check("query_codes", codes, torch.uint8, (rows, heads, half))
        _check("query_scales", scales, torch.uint8, (rows, heads, half * 2 // BLOCK))
        _check("weight", weight, torch.float32, (rows, heads))
        return cls(codes.contiguous(), scales.contiguous(), weight.contiguous())

    @classmethod
    def empty(cls, rows: int, device: str) -> Queries:
        """Queries of the published shape, 32 heads of 128 channels, without values."""
        codes = torch.empty(rows, 32, 64, dtype=torch.uint8, device=device)
        return cls(codes, codes.new_empty(rows, 32, 4), codes.new_empty(rows, 32, dtype=torch.float32))


class PagedKeys(NamedTuple):
    """Where the keys of every row are.

    codes: uint8 [pages, page_entries, C/2]; scales: uint8 [pages, page_entries, C/32]; page_table: int64
    [B, max_pages]; sequence, visible: int64 [N]. All but codes and scales contiguous.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    page_table: torch.Tensor
    sequence: torch.Tensor
    visible: torch.Tensor

    @classmethod
    def of(
        cls,
        queries: Queries,
        codes: torch.Tensor,
        scales: torch.Tensor,
        page_table: torch.Tensor,
        sequence: torch.Tensor,
        visible: torch.Tensor,
    ) -> PagedKeys:
        """Keys that fit the queries; codes and scales stay views of their pool."""
        rows, _, half = queries.codes.shape
        pages, entries = codes.shape[:2] if codes.dim() == 3 else (0, 0)
        if entries == 0:
            raise ValueError(f"key_codes has shape {list(codes.shape)}; expected [pages, page_entries, {half}]")
        _check("key_codes", codes, torch.uint8, (pages, entries, half))
        _check("key_scales", scales, torch.uint8, (pages, entries, half * 2 // BLOCK))
        for name, tensor in (("key_codes", codes), ("key_scales", scales)):
            if tensor.shape[2] > 1 and tensor.stride(2) != 1:
                raise ValueError(f"{name} has strides {tensor.stride()}; expected 1 as the last")
        if page_table.dim() != 2:
            raise ValueError(f"page_table has shape {list(page_table.shape)}; expected [sequences, pages]")
        _check("page_table", page_table, torch.int64, page_table.shape)
        _check("sequence", sequence, torch.int64, (rows,))
        _check("visible", visible, torch.int64, (rows,))
        return cls(codes, scales, page_table.contiguous(), sequence.contiguous(), visible.contiguous())

    def arguments(
        self,
        query: torch.Tensor,
        weight: torch.Tensor,
        candidates: torch.Tensor | None,
        out: torch.Tensor,
        one_sequence: bool,
    ) -> dict[str, Any]:
        """Arguments of a launch; query [N, heads, C], candidates int64 [N, blocks] or None for all entries.

        "queries", how many rows a program takes, is QUERIES if all are of one sequence and see the same columns.
        """
        return {
            "query_ptr": query,
            "weight_ptr": weight,
            "key_codes_ptr": self.codes,
            "key_scales_ptr": self.scales,
            "page_table_ptr": self.page_table,
            "sequence_ptr": self.sequence,
            "visible_ptr": self.visible,
            "candidates_ptr": candidates,
            "out_ptr": out,
            "rows": out.shape[0],
            "queries": QUERIES if one_sequence and candidates is None else 1,
            "columns": out.shape[1],
            "heads": query.shape[1],
            "blocks": 0 if candidates is None else candidates.shape[1],
            "max_pages": self.page_table.shape[1],
            "codes_page_stride": self.codes.stride(0),
            "codes_entry_stride": self.codes.stride(1),
            "scales_page_stride": self.scales.stride(0),
            "scales_entry_stride": self.scales.stride(1),
        }

    def constants(self, pool_block: int) -> dict[str, int]:
        """Constants that both score kernels have; pool_block: entries of a candidate block, 0 without candidates."""
        channels = 2 * self.codes.shape[2]
        return {
            "CHANNELS": channels,
            "WIDTH": triton.next_power_of_2(channels),
            "BLOCK": BLOCK,
            "PAGE_ENTRIES": self.codes.shape[1],
            "POOL_BLOCK": pool_block,
            "QUERIES": QUERIES,
        }


class ScoreCase(NamedTuple):
    """What a launch of a score kernel takes, on the meta device, at a published shape."""

    name: str
    queries: Queries
    keys: PagedKeys
    candidates: torch.Tensor | None
    out: torch.Tensor
    options: dict[str, Any]


def published_cases() -> Iterator[ScoreCase]:
    """32 heads of 128 channels and pages of 64 tokens: all of 2^20 tokens, at one or half an entry a token, for one
    row, for 64 rows and for 256 rows of one sequence; and a pool of 2048 blocks of 8 for 64 rows."""
    for name, rows, page_entries, columns, pool_block, one_sequence in (
        ("decode_1", 1, 64, 2**20, 0, False),
        ("decode_64", 64, 64, 2**20, 0, False),
        ("prefill", 256, 64, 2**20, 0, True),
        ("prefill_half", 256, 32, 2**19, 0, True),
        ("pool", 64, 64, 2048 * 8, 8, False),
    ):
        queries = Queries.empty(rows, device="meta")
        # One source's planes among those of the others.
        pool = queries.codes.new_empty(2**14, 56960)
        codes_at, scales_at = (52608, 56704) if page_entries == 64 else (32000, 34048)
        keys = PagedKeys(
            pool[:, codes_at : codes_at + page_entries * 64].unflatten(1, (page_entries, 64)),
            pool[:, scales_at : scales_at + page_entries * 4].unflatten(1, (page_entries, 4)),
            pool.new_empty(1 if one_sequence else rows, 2**14, dtype=torch.int64),
            pool.new_empty(rows, dtype=torch.int64),
            pool.new_empty(rows, dtype=torch.int64),
        )
        candidates = pool.new_empty(rows, columns // pool_block, dtype=torch.int64) if pool_block else None
        options = {"pool_block": pool_block, "one_sequence": one_sequence}
        yield ScoreCase(name, queries, keys, candidates, queries.weight.new_empty(rows, columns), options)


def _check(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: Sequence[int]) -> None:
    if tensor.dtype != dtype:
        raise TypeError(f"{name} is {tensor.dtype}; expected {dtype}")
    if list(tensor.shape) != list(shape):
        raise ValueError(f"{name} has shape {list(tensor.shape)}; expected {list(shape)}")
