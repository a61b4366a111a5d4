"""Floating-point operations of a prefill: predicted from the configuration, and counted around a real run.

A multiply-add is two operations, as in torch's own counter. The counter sees matrix products and nothing else: no
norm, softmax, rotation, rounding, top-k, Sinkhorn step, and no gate of experts or Engram. What it sees is predicted
here to the unit.

Source: report sections 2.2, 2.3 and 3.2.2; the counts follow from the shapes of the matrices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from ds41.config import LayerPlan, ModelConfig
from ds41.decoder_tail import Decoder, tail_starts
from ds41.ledger import check_tokens

# Each part and the modules whose products it is made of. A part without modules is what its surroundings leave.
_MODULES = {
    "attention projections": r"attn\.(query|window|output)",
    "attention over keys": "",
    "compressor": r"attn\.(compressor|indexer\.keys)",
    "indexer projections": r"attn\.indexer\.(wq_b|weights_proj)",
    "index scores": "",
    "router": r"ffn\.gate",
    "routed experts": r"ffn\.experts",
    "shared expert": r"ffn\.shared_experts",
    "Engram projection": "engram",
    "hyper-connections": "hc_(attn|ffn)",
    "stream mixing": "",
    "head": "head|Linear",
}
PARTS = tuple(_MODULES)
"""The parts of a layer, and the head, that FLOPs are counted for."""


@dataclass(frozen=True)
class Flops:
    """Operations by part, one of :data:`PARTS`; those of "hyper-connections" give their coefficients."""

    by_part: Mapping[str, int]

    @property
    def total(self) -> int:
        """FLOPs of all parts together."""
        return sum(self.by_part.values())

    def __getitem__(self, part: str) -> int:
        return self.by_part.get(part, 0)

    def __add__(self, other: Flops) -> Flops:
        return Flops({part: self[part] + other[part] for part in PARTS})


class Work(NamedTuple):
    """What one layer does for some tokens.

    entering: tokens that come in and leave window rows, and entries if the layer owns any. closed: those entries.
    attending: tokens that go on through attention and experts. keys: keys that they attend to, summed over them.
    asking: tokens among them with index queries. scored: index keys that these score, summed over them.
    """

    entering: int = 0
    closed: int = 0
    attending: int = 0
    keys: int = 0
    asking: int = 0
    scored: int = 0


def prefill(
    config: ModelConfig,
    tokens: int,
    decoder: Decoder = "full",
    *,
    cached: int = 0,
    chunk_tokens: int | None = None,
    logits: int = 1,
) -> Flops:
    """Operations that append ``tokens`` tokens to one sequence of ``cached`` tokens with all of their windows.

    Args:
        decoder: "full" and "bounded" as in ``Model.prefill``; "exact" is the least that gives the logits of "full".
        chunk_tokens: count what ``Model.prefill`` multiplies with this argument, masked products included: scores
            of entries that a token may not see, empty places of a window. None counts only keys that a token sees,
            the least that any implementation has to do.
        logits: tokens whose logits are computed.

    Raises:
        ValueError, TypeError: no number of tokens, or an unknown ``decoder``.
    """
    head = {"head": 2 * config.hidden_size * config.vocab_size * logits, "stream mixing": _last_site(config) * logits}
    return sum(by_layer(config, tokens, decoder, cached=cached, chunk_tokens=chunk_tokens), Flops(head))


def by_layer(
    config: ModelConfig,
    tokens: int,
    decoder: Decoder = "full",
    *,
    cached: int = 0,
    chunk_tokens: int | None = None,
) -> tuple[Flops, ...]:
    """:func:`prefill` layer by layer, without the head.

    Raises:
        ValueError: tokens below 0, or ``chunk_tokens`` below 1.
        TypeError: tokens that are no whole number.
    """
    tokens, cached = check_tokens(tokens), check_tokens(cached)
    if chunk_tokens is not None and chunk_tokens < 1:
        raise ValueError(f"chunk_tokens is {chunk_tokens}; expected 1 or more, or None")
    end = cached + tokens
    # Tokens enter a layer from where the layer below attends.
    begins = [cached, *(max(cached, begin) for begin in attention_begins(config, end, decoder))]
    flops = []
    for plan, enter, attend in zip(config.layers, begins[:-1], begins[1:], strict=True):
        if chunk_tokens is None:
            work = _seen(config, plan, enter, attend, cached, end)
        else:
            starts = range(cached, end, chunk_tokens)
            chunks = [_run(config, plan, enter, attend, start, min(start + chunk_tokens, end)) for start in starts]
            work = Work(*map(sum, zip(*chunks, strict=True)))
        flops.append(layer_flops(config, plan, work))
    return tuple(flops)


def attention_begins(config: ModelConfig, tokens: int, decoder: Decoder) -> tuple[int, ...]:
    """For each layer the first of ``tokens`` prompt tokens that it attends for; the rest leave at most their keys."""
    starts = tail_starts(config, 0, tokens, decoder)
    return tuple(accumulate((starts.get(plan.index, 0) for plan in config.layers), max))


def layer_flops(config: ModelConfig, plan: LayerPlan, work: Work) -> Flops:
    """Operations of one layer for the work that it has."""
    c = config
    hidden, streams = c.hidden_size, c.hc_mult
    query_width, index_width = c.num_attention_heads * c.head_dim, c.index_n_heads * c.index_head_dim
    per_query = hidden * c.q_lora_rank + c.q_lora_rank * query_width
    per_output = query_width * c.o_lora_rank + c.o_groups * c.o_lora_rank * hidden
    expert = 3 * hidden * c.moe_intermediate_size
    expands = 1 if plan.index == c.num_hidden_layers - 1 else 2
    macs = {
        "attention projections": work.entering * hidden * c.head_dim + work.attending * (per_query + per_output),
        # Every key is multiplied twice: by the query, and by its share.
        "attention over keys": work.keys * 2 * query_width,
        "router": work.attending * hidden * c.n_routed_experts,
        "routed experts": work.attending * c.num_experts_per_tok * expert,
        "shared expert": work.attending * c.n_shared_experts * expert,
        "hyper-connections": work.attending * 2 * streams * (streams + 2) * streams * hidden,
        # Both sites collapse the streams to one and expand it to all of them; the last one only where logits follow.
        "stream mixing": work.entering * streams * hidden + work.attending * (streams + expands * streams**2) * hidden,
    }
    if plan.owns_kv:
        projections = 2 if plan.ratio > 1 else 1
        macs["compressor"] = work.entering * projections * hidden * c.head_dim
        macs["compressor"] += work.closed * c.head_dim * c.index_head_dim
    if plan.owns_selection:
        macs["indexer projections"] = work.asking * (c.q_lora_rank * index_width + hidden * c.index_n_heads)
        # The products of all heads, then their weighted sum.
        macs["index scores"] = work.scored * (index_width + c.index_n_heads)
    if plan.index in c.engram_layer_ids:
        row_width = (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim
        macs["Engram projection"] = work.entering * row_width * (streams + 1) * hidden
    return Flops({part: 2 * macs.get(part, 0) for part in PARTS})


def measure(run: Callable[[], object]) -> Flops:
    """What torch's counter sees while ``run`` runs products of one :class:`ds41.model.Model`."""
    # Not before it is needed: it imports triton, and by then the interpreter must have been chosen.
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()
    seen = dict.fromkeys(PARTS, 0)
    attention = indexer = 0
    for name, by_operator in counter.get_flop_counts().items():
        count = sum(by_operator.values())
        module = re.sub(r"^(Block|Model\.layers\.\d+|Model)\.", "", name)
        attention += count if module == "attn" else 0
        indexer += count if module == "attn.indexer" else 0
        for part, pattern in _MODULES.items():
            seen[part] += count if re.fullmatch(pattern, module) else 0
    seen["index scores"] = indexer - seen["indexer projections"]
    seen["attention over keys"] = attention - indexer - seen["attention projections"] - seen["compressor"]
    seen["stream mixing"] = counter.get_total_flops() - sum(seen.values())
    return Flops(seen)


def _last_site(config: ModelConfig) -> int:
    """For one token whose logits are wanted: the last update is written, then the streams are collapsed."""
    return 2 * config.hc_mult * (config.hc_mult + 1) * config.hidden_size


def _run(config: ModelConfig, plan: LayerPlan, enter: int, attend: int, start: int, stop: int) -> Work:
    """One step of the model over positions ``start`` to ``stop``: all its tokens have equally many places for keys."""
    entering, attending = (max(0, stop - max(start, begin)) for begin in (enter, attend))
    if plan.ratio == 0:
        return Work(entering, attending=attending, keys=attending * config.sliding_window)
    longest = stop // plan.ratio
    keys = attending * (config.sliding_window + min(longest, config.index_topk))
    asking = attending if plan.owns_selection and longest > config.index_topk else 0
    scored = asking * min(longest, _pool(config, plan, longest))
    return Work(entering, longest - start // plan.ratio, attending, keys, asking, scored)


def _seen(config: ModelConfig, plan: LayerPlan, enter: int, attend: int, cached: int, end: int) -> Work:
    """All positions from ``cached`` to ``end``: only keys that exist and are visible."""
    # Rows from before this prompt are in the window too, unless the layer left out tokens in between.
    oldest = enter if enter > cached else 0
    keys = _sum_of_least(attend + 1 - oldest, end - oldest, 1, config.sliding_window)
    entering, attending = end - enter, end - attend
    if plan.ratio == 0:
        return Work(entering, attending=attending, keys=keys)
    closed = end // plan.ratio - cached // plan.ratio
    keys += _sum_of_least(attend + 1, end, plan.ratio, config.index_topk)
    if not plan.owns_selection:
        return Work(entering, closed, attending, keys)
    # A token that sees no more entries than it may select takes them all and scores none.
    first = max(attend + 1, (config.index_topk + 1) * plan.ratio)
    scored = _sum_of_least(first, end, plan.ratio, _pool(config, plan, end))
    return Work(entering, closed, attending, keys, max(0, end + 1 - first), scored)


def _pool(config: ModelConfig, plan: LayerPlan, entries: int) -> int:
    """The most entries that one query scores."""
    return entries if plan.candidate_source is None else config.candidate_topk_blocks * config.candidate_block_size


def _sum_of_least(first: int, last: int, ratio: int, most: int) -> int:
    """Sum of ``min(count // ratio, most)`` for count from ``first`` to ``last``; 0 if there is none."""
    if last < first:
        return 0

    def up_to(count: int) -> int:
        growing = min(count + 1, most * ratio)
        groups, rest = divmod(growing, ratio)
        return ratio * groups * (groups - 1) // 2 + rest * groups + (count + 1 - growing) * most

    return up_to(last) - up_to(first - 1)
