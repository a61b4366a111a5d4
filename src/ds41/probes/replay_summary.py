"""Estimates over seeds of what replay changes: by distance, by place, for needles, for text.

A seed is one prompt of a kind, with hits in several places. Hits of one prompt are not independent, so a seed gives
one number, the mean over its hits, and intervals are over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from ds41.probes.estimates import Estimate, estimate_mean, estimate_share
from ds41.probes.replay_distance import Answer, Divergence, Recall

# Where a replay leaves something out; it leaves out nothing of a hit of less than a window.
LONG_PLACES = ("page edge", "even", "odd")


class _Seen(Protocol):
    kind: str
    seed: int
    ways: dict


@dataclass(frozen=True)
class Sample:
    """What one hit showed, a divergence for each way."""

    kind: str
    seed: int
    place: str
    hit: int
    ways: dict[str, Divergence]


@dataclass(frozen=True)
class TextSample:
    """What one prompt's greedy text showed. after: prompt tokens between the hit and the text."""

    kind: str
    seed: int
    after: int
    hit: int
    ways: dict[str, Answer]


@dataclass(frozen=True)
class CurveRow:
    """After ``offset`` new tokens, hits of a window and more: means over seeds. KL and losses in nats a token.

    same_top: share of seeds with the same likeliest token as with windows kept, at every place.
    """

    kind: str
    way: str
    offset: int
    kl: Estimate
    largest: Estimate
    same_top: Estimate
    extra_loss: Estimate


@dataclass(frozen=True)
class PlaceRow:
    """Mean KL over the offsets below a window; ``beyond_even``: that minus the KL at even places of the same seeds."""

    kind: str
    place: str
    way: str
    kl: Estimate
    beyond_even: Estimate | None


@dataclass(frozen=True)
class NeedleRow:
    """Queries right after the hit. loss: nats an answer token. right: share of seeds with no wrong answer at any place.

    lost: share of seeds with an answer that is wrong and was right with windows kept; won: the other way round.
    """

    kind: str
    way: str
    loss: Estimate
    kept_loss: Estimate
    right: Estimate
    kept_right: Estimate
    lost: Estimate
    won: Estimate


@dataclass(frozen=True)
class TextRow:
    """Greedy text ``after`` prompt tokens behind the hit. equal: share of texts without any difference.

    equal_share: tokens that are equal, place by place. equal_tokens: tokens before the first difference, of ``tokens``.
    """

    kind: str
    way: str
    after: int
    tokens: int
    kl: Estimate
    same_top: Estimate
    equal: Estimate
    equal_share: Estimate
    equal_tokens: Estimate


def curve_rows(samples: Sequence[Sample], offsets: Sequence[int]) -> list[CurveRow]:
    """One row for each kind, way and offset; short hits left out, since replay leaves out nothing there."""
    rows = []
    for kind, way in _kinds_and_ways(samples):
        for at, offset in enumerate(offsets):
            means = {
                name: per_seed(samples, kind, lambda s, n=name, w=way, a=at: getattr(s.ways[w], n)[a])
                for name in ("kl", "largest", "same_top", "extra_loss")
            }
            # A seed counts as the same if it is at every place.
            same = sum(share == 1 for share in means.pop("same_top"))
            estimates = {name: estimate_mean(values) for name, values in means.items()}
            seeds = len(means["kl"])
            rows.append(CurveRow(kind, way, offset, **estimates, same_top=estimate_share(same, seeds)))
    return rows


def place_rows(samples: Sequence[Sample], offsets: Sequence[int], window: int) -> list[PlaceRow]:
    """One row for each kind, place and way."""
    rows = []
    for kind, way in _kinds_and_ways(samples):
        places = dict.fromkeys(sample.place for sample in samples if sample.kind == kind)
        near = {place: near_kl(samples, kind, way, offsets, window, (place,)) for place in places}
        for place, values in near.items():
            difference = None
            if place in LONG_PLACES and place != "even" and "even" in near:
                difference = estimate_mean([a - b for a, b in zip(values, near["even"], strict=True)])
            rows.append(PlaceRow(kind, place, way, estimate_mean(values), difference))
    return rows


def near_kl(
    samples: Sequence[Sample],
    kind: str,
    way: str,
    offsets: Sequence[int],
    window: int,
    places: Sequence[str] = LONG_PLACES,
) -> list[float]:
    """Mean KL over the offsets below a window, one number a seed, in the order of seeds."""
    near = [at for at, offset in enumerate(offsets) if offset < window]
    return per_seed(samples, kind, lambda sample: fmean(sample.ways[way].kl[at] for at in near), places)


def needle_rows(samples: Sequence[Sample]) -> list[NeedleRow]:
    """One row for each kind with needles, and way."""
    rows = []
    for kind, way in _kinds_and_ways(samples):
        seeds = recalls(samples, kind, way)
        if seeds:
            counts = [
                sum(all(one.right for one in seed) for seed in seeds),
                sum(all(one.kept_right for one in seed) for seed in seeds),
                sum(any(one.kept_right and not one.right for one in seed) for seed in seeds),
                sum(any(one.right and not one.kept_right for one in seed) for seed in seeds),
            ]
            losses = [
                estimate_mean([fmean(one.loss for one in seed) for seed in seeds]),
                estimate_mean([fmean(one.kept_loss for one in seed) for seed in seeds]),
            ]
            rows.append(NeedleRow(kind, way, *losses, *(estimate_share(count, len(seeds)) for count in counts)))
    return rows


def recalls(samples: Sequence[Sample], kind: str, way: str) -> list[list[Recall]]:
    """The answers of each seed, at its places; empty where a kind has no needles."""
    seeds: dict[int, list[Recall]] = {}
    for sample in samples:
        if sample.kind == kind and sample.ways[way].recall is not None:
            seeds.setdefault(sample.seed, []).append(sample.ways[way].recall)
    return [seeds[seed] for seed in sorted(seeds)]


def text_rows(samples: Sequence[TextSample], tokens: int) -> list[TextRow]:
    """One row for each kind, way and distance; texts have ``tokens`` tokens."""
    rows = []
    for kind, way in _kinds_and_ways(samples):
        for after in sorted({sample.after for sample in samples if sample.kind == kind}):
            found = [sample.ways[way] for sample in samples if (sample.kind, sample.after) == (kind, after)]
            rows.append(
                TextRow(
                    kind,
                    way,
                    after,
                    tokens,
                    estimate_mean([one.kl for one in found]),
                    estimate_share(sum(one.same_top for one in found), len(found)),
                    estimate_share(sum(one.first_different is None for one in found), len(found)),
                    estimate_mean([one.equal_share for one in found]),
                    estimate_mean([tokens if one.first_different is None else one.first_different for one in found]),
                )
            )
    return rows


def per_seed(
    samples: Sequence[Sample],
    kind: str,
    number: Callable[[Sample], float],
    places: Sequence[str] = LONG_PLACES,
) -> list[float]:
    """The mean of ``number`` over a seed's hits of one kind, for each seed in order."""
    return _by_seed([sample for sample in samples if sample.kind == kind and sample.place in places], number)


def kinds_of(samples: Sequence[_Seen]) -> list[str]:
    """Kinds in the order in which they were measured."""
    return list(dict.fromkeys(sample.kind for sample in samples))


def _kinds_and_ways(samples: Sequence[_Seen]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((sample.kind, way) for sample in samples for way in sample.ways))


def _by_seed(samples: Sequence[Sample], number: Callable[[Sample], float]) -> list[float]:
    seeds: dict[int, list[float]] = {}
    for sample in samples:
        seeds.setdefault(sample.seed, []).append(float(number(sample)))
    return [fmean(seeds[seed]) for seed in sorted(seeds)]
