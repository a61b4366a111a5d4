"""Every operator with inputs of one decode step, beside what torch does for the same result, and its floor.

Used by benchmarks/kernels.py and ci/gpu_check.py. The names are those of :func:`ds41.kernel_floors.kernel_floors`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ds41 import ModelConfig
from ds41.cache import PagePool
from ds41.engram import Hasher
from ds41.engram.module import engram_gate
from ds41.engram.table import StoredRows
from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV, BlockFormat, Packed
from ds41.hyper_connections import Coefficients, HyperConnection, collapse, expand
from ds41.kernel_floors import KernelFloor, kernel_floors
from ds41.moe import Experts, Router, swiglu
from ds41.norm import RMSNorm, rms_norm
from ds41.ops.backend import OVERRIDE
from ds41.ops.index_scores import index_scores, index_scores_of_pool
from ds41.ops.operators import operators
from ds41.ops.selection import candidate_blocks, top_entries
from ds41.ops.sparse_attention import sparse_attention
from ds41.packed_experts import PackedExperts
from ds41.rope import rotate_by, turns
from ds41.weight_formats import EXPERT_ROWS

# Tokens of a page; the source whose entries are used has one for every token.
_PAGE = 64
_TABLE_ROWS = 2**16


@dataclass(frozen=True)
class Case:
    """kernel and torch: the same result on two ways. exact: the results are equal, not just close."""

    floor: KernelFloor
    kernel: Callable[[], object]
    torch: Callable[[], object]
    exact: bool = False

    @property
    def name(self) -> str:
        return self.floor.name


class Inputs:
    """Tensors of one decode step of ``batch`` sequences with ``tokens`` tokens each, for one layer of each kind."""

    def __init__(self, config: ModelConfig, tokens: int, batch: int, device: torch.device, dtype: torch.dtype) -> None:
        self.config, self.tokens, self.batch, self.device, self.dtype = config, tokens, batch, device, dtype
        self.source = config.decoder_start
        self.entries = tokens // config.layers[self.source].ratio
        self.generator = torch.Generator(device).manual_seed(0)
        pool = PagePool(config, batch * -(-tokens // _PAGE), page_tokens=_PAGE, device=device, dtype=dtype)
        first, place = torch.zeros(_PAGE, dtype=torch.int64, device=device), torch.arange(_PAGE, device=device)
        pool.main_rows(self.source).write(first, place, self.normal(_PAGE, config.head_dim))
        pool.index_rows(self.source).write(first, place, self.normal(_PAGE, config.index_head_dim))
        pool.data[1:] = pool.data[0]
        self.pool = pool
        order = torch.randperm(pool.pages, generator=self.generator, device=device)
        self.page_table = order.view(batch, -1)
        self.sequence = torch.arange(batch, device=device)
        self.visible = torch.full((batch,), self.entries, device=device)
        self.turn = turns(self.visible - 1, torch.rand(config.qk_rope_head_dim // 2, device=device))

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        x = torch.randn(shape, generator=self.generator, device=self.device)
        return x.to(dtype or self.dtype)

    def choice(self, below: int, count: int) -> torch.Tensor:
        """``count`` distinct ascending numbers for each sequence."""
        scores = torch.rand(self.batch, below, generator=self.generator, device=self.device)
        return scores.topk(min(count, below), dim=1).indices.sort(dim=1).values

    def gathered(self, rows, entry: torch.Tensor) -> torch.Tensor:
        """Decoded rows of each sequence's entries, float32 [batch, K, channels]."""
        page = self.page_table[self.sequence[:, None], entry // _PAGE]
        return rows.gather(page, entry % _PAGE, torch.float32)


@contextmanager
def on_torch() -> Iterator[None]:
    """Within it, modules that choose a backend take torch."""
    before = os.environ.get(OVERRIDE)
    os.environ[OVERRIDE] = "torch"
    try:
        yield
    finally:
        if before is None:
            del os.environ[OVERRIDE]
        else:
            os.environ[OVERRIDE] = before


def differences(case: Case) -> float:
    """The largest relative difference between a case's two results, over all tensors; bytes count as numbers.

    Infinite where a case that has to be exact is not, or where one result is finite and the other is not.
    """
    got = case.kernel()
    with on_torch():
        wanted = case.torch()
    worst = 0.0
    for ours, theirs in zip(_tensors(got), _tensors(wanted), strict=True):
        if case.exact and not torch.equal(ours, theirs):
            return float("inf")
        ours, theirs = ours.double().flatten(), theirs.double().flatten()
        finite = torch.isfinite(theirs)
        if not torch.equal(finite, torch.isfinite(ours)):
            return float("inf")
        norm = float(theirs[finite].norm())
        worst = max(worst, float((ours - theirs)[finite].norm()) / norm if norm else 0.0)
    return worst


def _tensors(result) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def cases(config: ModelConfig, tokens: int, batch: int, device: torch.device, dtype: torch.dtype) -> Iterator[Case]:
    """Every case, the largest last; inputs of one group are freed before the next is built, but for the pages."""
    floors = {floor.name: floor for floor in kernel_floors(config, tokens, batch)}
    inputs = Inputs(config, tokens, batch, device, dtype)
    for build in (_streams, _norm, _writes, _indexer, _attention, _engram, _moe):
        for name, kernel, reference, *exact in build(inputs):
            yield Case(floors[name], kernel, reference, *exact)


def _streams(i: Inputs):
    c = i.config
    site, norm = HyperConnection(c).to(i.device), RMSNorm(c.hidden_size).to(i.device)
    streams, y, n = i.normal(i.batch, c.hc_mult, c.hidden_size), i.normal(i.batch, c.hidden_size), c.hc_mult
    comb = torch.rand(i.batch, n, n, device=i.device)
    coefficients = Coefficients(*(torch.rand(i.batch, n, device=i.device) for _ in range(2)), comb)
    pre, post, comb = coefficients
    predictor = (site.fn, site.base, site.scale)

    def by_torch():
        new = expand(streams, y, coefficients)
        return norm(collapse(new, pre)), new, *site(new)

    yield (
        "hyper_connection_site",
        lambda: operators.hyper_connection_site(
            streams, y, post, comb, pre, *predictor, norm.weight, norm.eps, site.eps, site.iterations
        ),
        by_torch,
    )
    yield (
        "hyper_collapse",
        lambda: operators.hyper_collapse(streams, y, post, comb, pre, norm.weight, norm.eps),
        lambda: norm(collapse(expand(streams, y, coefficients), pre)),
    )


def _norm(i: Inputs):
    x, weight = i.normal(i.batch, i.config.q_lora_rank), torch.ones(i.config.q_lora_rank, device=i.device)
    yield "rms_norm_rows", lambda: operators.rms_norm_rows(x, weight, 1e-20), lambda: rms_norm(x, weight)
    gate, up = (i.normal(i.batch, i.config.n_shared_experts * i.config.moe_intermediate_size) for _ in range(2))
    limit = i.config.swiglu_limit
    yield (
        "swiglu_rows",
        lambda: operators.swiglu_rows(gate, up, limit),
        lambda: swiglu(gate, up, limit).to(i.dtype),
    )


def _writes(i: Inputs):
    c = i.config
    yield _write(i, "write_rows, window", WINDOW_KV, c.head_dim, latent=False)
    yield _write(i, "write_rows, main KV", MAIN_KV, c.head_dim, latent=True)
    yield _write(i, "write_rows, index key", INDEX_KEY, c.index_head_dim, latent=False)
    value, gate, *waiting = (i.normal(i.batch, c.head_dim, dtype=torch.float32) for _ in range(4))
    weight = torch.ones(c.head_dim, device=i.device)
    latent, planes = i.normal(i.batch, c.head_dim), _planes(i, MAIN_KV, c.head_dim)
    each = torch.arange(i.batch, device=i.device)
    to = (i.turn.real, i.turn.imag, *planes, None, each)
    layout = MAIN_KV.layout

    def by_torch():
        share = torch.sigmoid(waiting[1] - gate)
        pooled = rms_norm((share * waiting[0] + (1 - share) * value).to(i.dtype), weight)
        return pooled, *MAIN_KV.encode(rotate_by(pooled, i.turn), validate=False)

    def by_kernel():
        operators.write_pooled(value, gate, *waiting, each, each, weight, 1e-20, latent, *to, **layout)
        return latent, planes[0][0], planes[1][0]

    yield "write_pooled", by_kernel, by_torch


def _write(i: Inputs, name: str, fmt: BlockFormat, channels: int, latent: bool):
    x, weight = i.normal(i.batch, channels), torch.ones(channels, device=i.device)
    kept = torch.empty_like(x) if latent else None
    planes, place = _planes(i, fmt, channels), torch.arange(i.batch, device=i.device)
    to = (i.turn.real, i.turn.imag, *planes, None, place)

    def by_kernel():
        operators.write_rows(x, weight, 1e-20, kept, *to, **fmt.layout)
        stored = (planes[0][0], planes[1][0])
        return (kept, *stored) if latent else stored

    def by_torch():
        normed = rms_norm(x, weight)
        stored = tuple(fmt.encode(rotate_by(normed, i.turn), validate=False))
        return (normed, *stored) if latent else stored

    return name, by_kernel, by_torch


def _indexer(i: Inputs):
    c = i.config
    asked = INDEX_KEY.encode(i.normal(i.batch, c.index_n_heads, c.index_head_dim), validate=False)
    weight = i.normal(i.batch, c.index_n_heads, dtype=torch.float32)
    keys = i.pool.index_plane(i.source)
    stored = (*asked, weight, keys.codes, keys.scales, i.page_table, i.sequence, i.visible)
    query = INDEX_KEY.decode(asked, torch.float32)
    rows = i.pool.index_rows(i.source)

    def scores_by_torch():
        scores = []
        for row, pages in enumerate(i.page_table):
            decoded = rows.read(pages, 0, i.entries, torch.float32)
            scores.append(index_scores(query[row : row + 1], weight[row : row + 1], decoded))
        return torch.cat(scores)

    yield "index_scores_packed", lambda: operators.index_scores_packed(*stored, i.entries), scores_by_torch
    scores = operators.index_scores_packed(*stored, i.entries)
    block, budget = c.candidate_block_size, min(c.candidate_topk_blocks, -(-i.entries // c.candidate_block_size))
    yield (
        "select_blocks",
        lambda: operators.select_blocks(scores, i.visible, block, budget),
        lambda: candidate_blocks(scores, i.visible, block, budget),
        True,
    )
    yield (
        "select_top, all",
        lambda: operators.select_top(scores, c.index_topk),
        lambda: top_entries(scores, c.index_topk),
        True,
    )
    pool = operators.select_blocks(scores, i.visible, block, budget)
    entries = (pool[..., None] * block + torch.arange(block, device=i.device)).flatten(1)
    unseen = entries >= i.visible[:, None]
    yield (
        "index_scores_of_pool_packed",
        lambda: operators.index_scores_of_pool_packed(*stored, pool, block),
        lambda: index_scores_of_pool(query, weight, i.gathered(rows, entries)).masked_fill_(unseen, -torch.inf),
    )
    few = operators.index_scores_of_pool_packed(*stored, pool, block)
    yield (
        "select_top, pool",
        lambda: operators.select_top(few, c.index_topk),
        lambda: top_entries(few, c.index_topk),
        True,
    )


def _attention(i: Inputs):
    c = i.config
    query, sink = i.normal(i.batch, c.num_attention_heads, c.head_dim), torch.zeros(c.num_attention_heads).to(i.device)
    window = WINDOW_KV.encode(i.normal(i.batch * c.sliding_window, c.head_dim), validate=False)
    choice = torch.arange(i.batch * c.sliding_window, device=i.device).view(i.batch, -1)
    selected = i.choice(i.entries, c.index_topk)
    main = i.pool.main_plane(i.source)
    cos, sin = i.turn.real.contiguous(), i.turn.imag.contiguous()
    where = (*window, choice, main.codes, main.scales, i.page_table, i.sequence, selected)
    usable = torch.ones(i.batch, choice.shape[1] + selected.shape[1], dtype=torch.bool, device=i.device)

    def by_torch():
        entries = i.gathered(i.pool.main_rows(i.source), selected)
        keys = torch.cat((WINDOW_KV.decode(window, torch.float32)[choice], entries), dim=1)
        return rotate_by(sparse_attention(query, keys, usable, sink), i.turn.conj()[:, None])

    yield (
        "sparse_attention_packed",
        lambda: operators.sparse_attention_packed(query, sink, *where, cos, sin, c.head_dim**-0.5),
        by_torch,
    )


def _moe(i: Inputs):
    x = i.normal(i.batch, i.config.hidden_size)
    with i.device:
        gate = Router(i.config).requires_grad_(False)
    logits = torch.nn.functional.linear(x.float(), gate.weight)
    choice = (gate.top_k, gate.renormalizes, gate.scaling_factor)
    yield (
        "route_tokens",
        lambda: operators.route_tokens(logits, gate.bias, None, None, *choice),
        lambda: tuple(gate.route(logits)[:2]),
    )
    indices, weights = operators.route_tokens(logits, gate.bias, None, None, *choice)
    with i.device:
        experts = Experts(i.config, "cache", i.dtype).requires_grad_(False)
    packed = PackedExperts(experts)
    for name in ("w1", "w2", "w3"):
        stored = zip(getattr(packed, f"{name}_codes"), getattr(packed, f"{name}_scales"), strict=True)
        for matrix, parts in zip(getattr(experts, name), stored, strict=True):
            matrix.copy_(EXPERT_ROWS.decode(Packed(*parts), i.dtype))
    yield "experts_packed", lambda: packed(x, indices, weights), lambda: experts(x, indices, weights)


def _engram(i: Inputs):
    c = i.config
    hasher = Hasher(c, torch.arange(c.vocab_size).clamp(max=c.engram_compressed_vocab_size - 1)).to(i.device)
    windows = torch.randint(c.engram_compressed_vocab_size, (i.batch, c.engram_max_ngram_size), device=i.device)
    constants = (hasher.multipliers, hasher.primes, hasher.offsets)
    yield (
        "hash_rows",
        lambda: operators.hash_rows(windows, *constants, hasher.pad_id),
        lambda: torch.stack(list(hasher.rows(windows, validate=False).values())),
        True,
    )
    # A table of the published row width; only its height is smaller than the published one.
    stored = WINDOW_KV.encode(i.normal(_TABLE_ROWS, c.engram_head_dim), validate=False)
    columns = hasher.offsets.shape[1]
    wanted = torch.randint(_TABLE_ROWS, (i.batch, columns), generator=i.generator, device=i.device)
    table = StoredRows(*stored, dtype=i.dtype)
    yield (
        "engram_rows",
        lambda: operators.engram_rows(*stored, wanted, i.dtype),
        lambda: table.read(wanted).flatten(1),
        True,
    )
    streams = i.normal(i.batch, c.hc_mult, c.hidden_size)
    projected = i.normal(i.batch, (c.hc_mult + 1) * c.hidden_size)
    weight = torch.ones(c.hc_mult, c.hidden_size, device=i.device, dtype=i.dtype)

    def by_torch():
        parts = projected.unflatten(-1, (c.hc_mult + 1, -1)).float()
        gate = engram_gate(streams, parts[:, :-1], weight)
        return (streams.float() + gate[..., None] * parts[:, -1:]).to(i.dtype)

    yield (
        "engram_write",
        lambda: operators.engram_write(streams, projected, weight, weight, None, c.rms_norm_eps),
        by_torch,
    )


def _planes(i: Inputs, fmt: BlockFormat, channels: int) -> Packed:
    row = fmt.encode(torch.ones(1, channels, device=i.device), validate=False)
    return Packed(*(part.new_zeros(1, i.batch, part.shape[1]) for part in row))
