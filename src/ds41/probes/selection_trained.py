"""Selection at one point, end to end: what becomes of an answer when layers miss the needle that it needs.

Three questions to a model that retrieves. How does accuracy fall with the needle's rank in the layers' own scores?
What does a wrong pick cost, layer by layer: the decoder's Full layer's, with its Reuse layers or without, when the
Reindex layers may still find the needle and when they may not? Is a miss all or nothing?

It would speak against the design if the answer were lost whenever the Full layer alone missed the needle: then
sharing a selection would make one layer's error final, and Reindex layers would not help.

Source: report section 2.3.2 for the selection that is probed; the probe is ds41's own.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import torch

from ds41.config import ModelConfig
from ds41.model import Model
from ds41.probes.estimates import Estimate, estimate_mean, estimate_share
from ds41.probes.forced_selection import Force, Watch, forced_selection
from ds41.probes.needle_rows import NeedleRows, readers

RANK_BINS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
"""Upper ends of the bins of rank over top-k; the last bin has none."""
# An answer's probability below the first counts as lost, above the second as given.
_LOST, _GIVEN = 0.1, 0.9
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class RankBin:
    """Rows whose needle has a rank from above ``low`` to ``high`` times top-k in one selecting layer (high None: and
    beyond); the worst of the tokens that ask counts. right: share with every answer token predicted. selected: share
    whose needle that layer selected."""

    layer: int
    low: float
    high: float | None
    right: Estimate
    selected: Estimate


@dataclass(frozen=True)
class Outcome:
    """All rows under one change. hidden, shown: layers that read a selection. right: as in :class:`RankBin`.
    probability: of the whole answer, mean over rows. change: of that probability, row by row, against no change."""

    name: str
    hidden: tuple[int, ...]
    shown: tuple[int, ...]
    pool_hidden: bool
    right: Estimate
    probability: Estimate
    change: Estimate


@dataclass(frozen=True)
class MissCount:
    """Answers whose needle ``missed`` of the selecting layers lack.

    forced: in every set of that many layers (or a sample of the sets), the others shown the needle; else as the model
    selects by itself. quantiles: 5, 25, 50, 75 and 95 % of the answer's probability, over rows and sets. lost, given:
    share of them with a probability below 0.1, and above 0.9. right: mean over rows. samples: rows times sets.
    """

    forced: bool
    missed: int
    right: Estimate
    quantiles: tuple[float, ...]
    lost: float
    given: float
    samples: int


@dataclass(frozen=True)
class TrainedReport:
    """What the probe found; ``dataclasses.asdict`` gives plain values. selecting: layers that make a selection.
    shared_by_full: how many Reuse layers read what the decoder's Full layer selects, of ``reuse`` in the decoder."""

    rows: int
    top_k: int
    selecting: tuple[int, ...]
    shared_by_full: int
    reuse: int
    ranks: list[RankBin]
    outcomes: list[Outcome]
    misses: list[MissCount]


@dataclass(frozen=True, eq=False)
class _Answers:
    """right bool [B], probability float32 [B]; by selecting layer rank int64 [B] and selected bool [B]."""

    right: torch.Tensor
    probability: torch.Tensor
    rank: dict[int, torch.Tensor]
    selected: dict[int, torch.Tensor]


def probe_trained(
    model: Model, rows: NeedleRows, batch: int = 8, sets: int = 16, bins: tuple[float, ...] = RANK_BINS
) -> TrainedReport:
    """Run the probe: one pass over the rows for every change.

    Args:
        rows: of equal length, longer than the pool holds entries, needles further back than the windows reach.
        batch: rows of one pass. sets: how many sets of layers are tried at most for each number of misses.
        bins: upper ends of the bins of rank / top-k, rising.

    Raises:
        ValueError: rows too short for the pool to leave anything out, or what :class:`NeedleRows` refuses.
    """
    c = model.config
    selecting = c.index_source_layer_ids
    plain = _ask(model, rows, Force(), batch)
    outcomes = []
    for name, force in wrong_picks(c):
        answers = plain if force == Force() else _ask(model, rows, force, batch)
        outcomes.append(
            Outcome(
                name,
                tuple(sorted(force.hidden)),
                tuple(sorted(force.shown)),
                force.pool_hidden,
                estimate_share(int(answers.right.sum()), len(rows)),
                estimate_mean(answers.probability.tolist()),
                estimate_mean((answers.probability - plain.probability).tolist()),
            )
        )
    decoder = [plan for plan in c.layers if plan.half == "decoder"]
    return TrainedReport(
        len(rows),
        c.index_topk,
        selecting,
        len(readers(c, c.decoder_start)) - 1,
        sum(plan.mode == "reuse" for plan in decoder),
        _by_rank(plain, c.index_topk, bins),
        outcomes,
        _as_found(plain) + [_forced(model, rows, missed, sets, batch) for missed in range(len(selecting) + 1)],
    )


def wrong_picks(config: ModelConfig) -> list[tuple[str, Force]]:
    """The wrong picks that are compared, by name; those that a configuration has no layers for are left out."""
    start = config.decoder_start
    full = frozenset(readers(config, start))
    reuse = full - {start}
    reading = frozenset(plan.index for plan in config.layers if plan.ratio)
    decoder = frozenset(layer for layer in reading if layer >= start)
    reindex, encoder = decoder - full, reading - decoder
    changes = [("as it is", Force()), ("out at the Full layer alone", Force(frozenset({start})))]
    if reuse:
        changes += [
            ("out at its Reuse layers alone", Force(reuse)),
            ("out at the Full layer and its Reuse layers", Force(full)),
        ]
    if reindex:
        if config.candidate_source_layer_id == start:
            changes += [
                ("out of the pool alone", Force(pool_hidden=True)),
                ("out at all that share the Full layer's pick, and of the pool", Force(full, pool_hidden=True)),
            ]
        changes += [
            ("out at the Reindex layers and theirs", Force(reindex)),
            ("out in the whole decoder", Force(decoder)),
        ]
    if encoder:
        changes += [("out in the encoder", Force(encoder)), ("out everywhere", Force(reading))]
    for source in (plan.index for plan in config.layers if plan.owns_selection and plan.index in encoder):
        followers = frozenset(readers(config, source)) - {source}
        changes.append((f"out at layer {source} alone", Force(frozenset({source}))))
        if followers:
            changes += [
                (f"out at the Reuse layers of layer {source} alone", Force(followers)),
                (f"out at layer {source} and its Reuse layers", Force(followers | {source})),
            ]
    return [*changes, ("in everywhere", Force(shown=reading))]


def _ask(model: Model, rows: NeedleRows, force: Force, batch: int) -> _Answers:
    parts = []
    for start in range(0, len(rows), batch):
        part = rows.part(slice(start, start + batch))
        with forced_selection(model, part, force) as watch, torch.no_grad():
            logits = model(part.ids)
        parts.append(_answers(part, logits, watch))
    layers = parts[0].rank
    return _Answers(
        torch.cat([part.right for part in parts]),
        torch.cat([part.probability for part in parts]),
        {layer: torch.cat([part.rank[layer] for part in parts]) for layer in layers},
        {layer: torch.cat([part.selected[layer] for part in parts]) for layer in layers},
    )


def _answers(rows: NeedleRows, logits: torch.Tensor, watch: Watch) -> _Answers:
    line = torch.arange(len(rows), device=logits.device)[:, None]
    asked, wanted = logits[line, rows.asking], rows.ids.gather(1, rows.answers)
    probability = asked.log_softmax(-1).gather(2, wanted[..., None]).squeeze(2).sum(1).exp()
    return _Answers(
        (asked.argmax(-1) == wanted).all(1).cpu(),
        probability.cpu(),
        {layer: seen.rank.amax(1).cpu() for layer, seen in watch.seen.items()},
        {layer: seen.selected.all(1).cpu() for layer, seen in watch.seen.items()},
    )


def _by_rank(answers: _Answers, top_k: int, bins: tuple[float, ...]) -> list[RankBin]:
    found = []
    for layer, rank in answers.rank.items():
        share = rank / top_k
        for low, high in zip((0.0, *bins), (*bins, None), strict=True):
            inside = (share > low) & (share <= high if high is not None else True)
            if bool(inside.any()):
                right, selected = (part[inside] for part in (answers.right, answers.selected[layer]))
                estimates = (estimate_share(int(part.sum()), len(part)) for part in (right, selected))
                found.append(RankBin(layer, low, high, *estimates))
    return found


def _as_found(answers: _Answers) -> list[MissCount]:
    missed = sum((~selected).to(torch.int64) for selected in answers.selected.values())
    counts = []
    for count in missed.unique().tolist():
        inside = missed == count
        right = answers.right[inside]
        counts.append(_count(False, count, estimate_share(int(right.sum()), len(right)), answers.probability[inside]))
    return counts


def _forced(model: Model, rows: NeedleRows, missed: int, sets: int, batch: int) -> MissCount:
    c = model.config
    reading = frozenset(plan.index for plan in c.layers if plan.ratio)
    right, probability = [], []
    for layers in layer_sets(c.index_source_layer_ids, missed, sets):
        hidden = frozenset(reader for layer in layers for reader in readers(c, layer))
        answers = _ask(model, rows, Force(hidden, reading - hidden), batch)
        right.append(answers.right.to(torch.float32))
        probability.append(answers.probability)
    share = estimate_mean(torch.stack(right).mean(0).tolist())
    return _count(True, missed, share, torch.cat(probability))


def layer_sets(layers: Iterable[int], count: int, most: int) -> list[tuple[int, ...]]:
    """Sets of ``count`` of the layers: all of them, or ``most`` drawn once and for all."""
    every = list(combinations(layers, count))
    return every if len(every) <= most else random.Random(f"{count} of {tuple(layers)}").sample(every, most)


def _count(forced: bool, missed: int, right: Estimate, probability: torch.Tensor) -> MissCount:
    quantiles = probability.quantile(torch.tensor(_QUANTILES)).tolist()
    lost, given = (float(part.to(torch.float32).mean()) for part in (probability < _LOST, probability > _GIVEN))
    return MissCount(forced, missed, right, tuple(quantiles), lost, given, len(probability))
