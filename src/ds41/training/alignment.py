"""The indexer's learning signal: it is to predict where the attention of the layers that it serves goes.

How the authors trained the indexer is not published. Here the teacher of a query is the probability that every head
of every served layer gives to each entry, in a softmax over the whole window, all legal entries and the sink, summed
and normalised over the entries; the loss is its cross-entropy with the softmax of the index scores. Teacher and
inputs are detached: the language-model loss shapes the attention, the attention shapes the indexer. ``"selected"``
normalises both over the entries that were selected alone, which is the idea of DeepSeek-V3.2's sparse phase: the
alternative that this one is compared with.

Source: ds41's own; DeepSeek-V3.2's report, arXiv 2512.02556, section 2.1.
"""

from __future__ import annotations

from typing import Literal

import torch

from ds41.attention.indexer import IndexQuery
from ds41.formats import INDEX_KEY
from ds41.model import Model
from ds41.ops.selection import top_entries
from ds41.training.signals import Signals

Legal = Literal["visible", "selected"]
"""Which entries the indexer is taught about: all visible ones, or those it selected."""


def alignment_loss(
    model: Model, signals: Signals, shape: tuple[int, int], positions: torch.Tensor, legal: Legal = "visible"
) -> torch.Tensor:
    """Mean over selecting layers and queries, a scalar in nats.

    Args:
        signals: of a pass over whole rows. shape: (B, T) of its ids. positions: int64 [P], which queries of each row.
        legal: which entries teacher and student are normalised over.
    """
    losses = []
    for source, plan in enumerate(model.config.layers):
        if not plan.owns_selection:
            continue
        scores = index_scores(model, signals, source, shape, positions)
        if scores is None:
            continue
        if legal == "selected":
            scores = _only_selected(scores, model.config.index_topk)
        mass = attention_mass(model, signals, source, shape, positions)
        mass = mass.masked_fill(~scores.isfinite(), 0)
        total = mass.sum(-1)
        asks = scores.isfinite().any(-1) & (total > 0)
        if not bool(asks.any()):
            continue
        target = mass[asks] / total[asks][:, None]
        logs = torch.log_softmax(scores[asks], -1)
        losses.append(-(target * logs.masked_fill(target == 0, 0)).sum(-1).mean())
    return torch.stack(losses).mean() if losses else positions.new_zeros((), dtype=torch.float32)


def index_scores(
    model: Model, signals: Signals, layer: int, shape: tuple[int, int], positions: torch.Tensor
) -> torch.Tensor | None:
    """Scores of a selecting layer at ``positions`` int64 [P], float32 [B, P, E], minus infinity where an entry is not
    visible; with a gradient
    that ends at the indexer. None where no group is closed.
    """
    (rows, length), plan = shape, model.config.layers[layer]
    entries = length // plan.ratio
    if not entries:
        return None
    indexer = model.layers[layer].attn.indexer
    x, latent, turn = (_pick(part.detach(), shape, positions) for part in signals.asking[layer])
    asked: IndexQuery = indexer.query(x, latent, turn)
    latents, turns = signals.latents[plan.kv_source]
    keys = model.layers[plan.kv_source].attn.indexer.keys(latents.detach(), turns)
    if indexer.rounds_query:
        keys = INDEX_KEY.fake_quantize(keys)
    keys = keys.to(torch.float32).unflatten(0, (rows, entries))
    query = asked.query.unflatten(0, (rows, len(positions)))
    weight = asked.weight.unflatten(0, (rows, len(positions)))
    products = torch.einsum("bphc,bec->bphe", query, keys).relu()
    scores = torch.einsum("bph,bphe->bpe", weight, products)
    return scores.masked_fill(_hidden(positions, entries, plan.ratio), -torch.inf)


@torch.no_grad()
def attention_mass(
    model: Model, signals: Signals, source: int, shape: tuple[int, int], positions: torch.Tensor
) -> torch.Tensor:
    """Probability on each entry, summed over the heads of all layers that select by ``source``: [B, P, E] at
    ``positions`` int64 [P].

    Dense: as if every visible entry were selected.
    """
    (rows, length), config = shape, model.config
    plan, window = config.layers[source], config.sliding_window
    entries = length // plan.ratio
    main = signals.memory.written(plan.kv_source)[0].to(torch.float32).unflatten(0, (rows, entries))
    hidden = _hidden(positions, entries, plan.ratio)
    reach = positions[:, None] - torch.arange(window, device=positions.device)
    total = torch.zeros(rows, len(positions), entries, device=main.device)
    for served in config.layers:
        if served.ratio == 0 or served.index_source != source:
            continue
        query = _pick(signals.queries[served.index], shape, positions).to(torch.float32)
        query = query.unflatten(0, (rows, len(positions))) * config.head_dim**-0.5
        near = signals.rows[served.index].to(torch.float32).unflatten(0, (rows, length))[:, reach.clamp(min=0)]
        far_logits = torch.einsum("bphc,bec->bphe", query, main).masked_fill(hidden[:, None], -torch.inf)
        near_logits = torch.einsum("bphc,bpwc->bphw", query, near).masked_fill((reach < 0)[:, None], -torch.inf)
        sink = model.layers[served.index].attn.attn_sink.detach()[:, None].expand(*far_logits.shape[:3], 1)
        shares = torch.cat((far_logits, near_logits, sink), -1).softmax(-1)
        total += shares[..., :entries].sum(2)
    return total


def _only_selected(scores: torch.Tensor, count: int) -> torch.Tensor:
    chosen = top_entries(scores.detach().flatten(0, 1), count).unflatten(0, scores.shape[:2])
    # Padding goes to a column of its own, which is then dropped.
    places = torch.where(chosen < 0, scores.shape[-1], chosen)
    kept = torch.zeros(*scores.shape[:2], scores.shape[-1] + 1, dtype=torch.bool, device=scores.device)
    kept.scatter_(-1, places, True)
    return scores.masked_fill(~kept[..., :-1], -torch.inf)


def _pick(flat: torch.Tensor, shape: tuple[int, int], positions: torch.Tensor) -> torch.Tensor:
    """The given positions of every row of [B * T, ...], flat again."""
    return flat.unflatten(0, shape)[:, positions].flatten(0, 1)


def _hidden(positions: torch.Tensor, entries: int, ratio: int) -> torch.Tensor:
    """Which entries a query does not see, bool [P, E]."""
    return torch.arange(entries, device=positions.device) >= (positions[:, None] + 1) // ratio
