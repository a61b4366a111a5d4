"""One layer's attention on kernels, over packed pages: the same steps as :class:`Attention`, fewer trips to memory.

Window rows, entries and index keys are normalised, rotated, encoded and put where they belong by one kernel each;
queries are scored against the stored bytes of the index keys; attention decodes the selected records in registers
and rotates its output back. What remains between them are matrix products. :mod:`ds41.attention.attention` is the
definition.

Source: report sections 2.3 and 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ds41.attention.indexer import Indexer, Selection, all_visible, narrow_selections, rows_per_tile
from ds41.attention.kernel_memory import KernelMemory, WindowPlane
from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV, Packed
from ds41.ops.operators import operators
from ds41.ops.selection import entries_of_blocks
from ds41.rope import layer_frequencies, turns
from ds41.step import Step

if TYPE_CHECKING:
    from ds41.attention.attention import Attention


def attend(
    layer: Attention,
    x: torch.Tensor,
    step: Step,
    memory: KernelMemory,
    selections: dict[int, Selection],
    starts: Sequence[int] | None,
) -> tuple[torch.Tensor, Step, torch.Tensor | None]:
    """Arguments and results of :meth:`Attention.forward`."""
    plan = layer.plan
    frequencies = layer_frequencies(layer.config, plan.ratio)
    with memory.window_plane(plan.index, step) as window:
        _write_window(layer, x, step.cos_and_sin(frequencies), window)
    if plan.owns_kv:
        _write_entries(layer, x, step, memory)
    kept, choice = None, window.choice
    if starts is not None:
        step, kept = step.from_position(starts)
        x, choice = x[kept], choice[kept]
        narrow_selections(selections, kept)
    query = layer.query
    latent = operators.rms_norm_rows(query.wq_a(x), query.q_norm.weight, query.q_norm.eps)
    queries = query.wq_b(latent).unflatten(-1, (query.heads, query.channels))
    if plan.owns_selection:
        source = selections.get(plan.candidate_source)
        pool = None if source is None else source.candidates
        selections[plan.index] = select(layer.indexer, x, latent, step, memory, pool)
    main = memory.cache.pool.main_plane(plan.kv_source) if plan.ratio else Packed(None, None)
    selected = selections[plan.index_source].entries if plan.ratio else choice[:, :0]
    heads = operators.sparse_attention_packed(
        queries,
        layer.attn_sink,
        window.rows.codes,
        window.rows.scales,
        choice,
        main.codes,
        main.scales,
        memory.cache.page_table,
        step.sequence,
        selected,
        *step.cos_and_sin(frequencies),
        query.channels**-0.5,
        rotate_query=True,
    )
    return layer.output(heads), step, kept


def select(
    indexer: Indexer,
    x: torch.Tensor,
    latent: torch.Tensor,
    step: Step,
    memory: KernelMemory,
    candidates: torch.Tensor | None,
) -> Selection:
    """Arguments and results of :meth:`Indexer.forward`; scores exist for one tile of queries at a time."""
    config, plan = indexer.config, indexer.plan
    turn = step.turn(layer_frequencies(config, plan.ratio))
    visible = (step.position + 1) // plan.ratio
    longest = step.longest // plan.ratio
    if longest <= config.index_topk:
        return all_visible(visible, longest)
    asked = Packed(*operators.encode_blocks(indexer.query_heads(latent, turn), **INDEX_KEY.layout))
    weight = indexer.head_weights(x)
    keys = memory.cache.pool.index_plane(plan.kv_source)
    stored = (keys.codes, keys.scales, memory.cache.page_table)
    block, budget = config.candidate_block_size, config.candidate_topk_blocks
    publishes = indexer.publishes and candidates is None and longest > budget * block
    chosen, pools = [], []
    tile = rows_per_tile(longest if candidates is None else candidates.shape[1] * block)
    for start in range(0, step.tokens, tile):
        part = slice(start, min(start + tile, step.tokens))
        query = (asked.codes[part], asked.scales[part], weight[part])
        sequence, seen = step.sequence[part], visible[part]
        if candidates is None:
            one = sum(count > 0 for count in step.counts) == 1 and step.tokens > 1
            scores = operators.index_scores_packed(*query, *stored, sequence, seen, longest, one)
            chosen.append(operators.select_top(scores, config.index_topk))
            if publishes:
                pools.append(operators.select_blocks(scores, seen, block, budget))
            continue
        entries = entries_of_blocks(candidates[part], block, seen)
        scores = operators.index_scores_of_pool_packed(*query, *stored, sequence, seen, candidates[part], block)
        columns = operators.select_top(scores, config.index_topk)
        chosen.append(torch.where(columns < 0, -1, entries.gather(1, columns.clamp(min=0))))
    empty = visible.new_empty(0, config.index_topk)
    return Selection(torch.cat(chosen) if chosen else empty, torch.cat(pools) if pools else None)


def _write_window(
    layer: Attention, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], window: WindowPlane
) -> None:
    part = layer.window
    operators.write_rows(
        part.wkv(x),
        part.kv_norm.weight,
        part.kv_norm.eps,
        None,
        *turn,
        window.rows.codes[None],
        window.rows.scales[None],
        None,
        window.place,
        **WINDOW_KV.layout,
    )


def _write_entries(layer: Attention, x: torch.Tensor, step: Step, memory: KernelMemory) -> None:
    """Every token writes the entry that it closes; one that leaves its group open writes nothing.

    So shapes follow from the number of tokens alone, and no launch waits for positions to be read back.
    """
    plan, part, keys = layer.plan, layer.compressor, layer.indexer.keys
    entry = torch.div(step.position, plan.ratio, rounding_mode="floor")
    page, place = memory.cache.places(plan.index, step.sequence, entry)
    new = memory.not_stored(plan.index, step.sequence, entry)
    if new is not None:
        page = torch.where(new, page, -1)
    turn = turns(entry * plan.ratio, layer_frequencies(layer.config, plan.ratio))
    main, index = memory.cache.pool.main_plane(plan.index), memory.cache.pool.index_plane(plan.index)
    latent = x.new_empty(step.tokens, layer.config.head_dim)
    destination = (latent, turn.real, turn.imag, main.codes, main.scales)
    norm = (part.norm.weight, part.norm.eps)
    if plan.ratio == 1:
        operators.write_rows(part.wkv(x), *norm, *destination, page, place, **MAIN_KV.layout)
    else:
        page = torch.where(step.position % plan.ratio == plan.ratio - 1, page, -1)
        value, gate = part.wkv(x), part.wgate(x)
        waiting = memory.open_rows(plan.index, step, value, gate)
        operators.write_pooled(
            value, gate, *waiting, *_pairs(step, page), *norm, *destination, page, place, **MAIN_KV.layout
        )
    operators.write_rows(
        keys.wk(latent),
        keys.k_norm.weight,
        keys.k_norm.eps,
        None,
        turn.real,
        turn.imag,
        index.codes,
        index.scales,
        page,
        place,
        **INDEX_KEY.layout,
    )


def _pairs(step: Step, page: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the second token of the pair that each token closes; page -1: it closes none.

    First tokens are counted with the rows that waited, one a sequence, before those of the step.
    """
    sequences = len(step.counts)
    flat = torch.arange(step.tokens, device=step.position.device)
    begins = step.position == step.first_position[step.sequence]
    return torch.where(begins, step.sequence, sequences + flat - 1), torch.where(page < 0, -1, flat)
