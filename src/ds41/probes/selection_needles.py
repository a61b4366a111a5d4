"""Needles at a wanted rank: how often the selection misses them once keys, and queries, are stored in FP4.

The rank is the true one: counted in float32 scores of unrounded keys and queries, 1 for the best. A needle is either
found (the entry that has the rank) or planted: a key written into the pages in the place of an entry of low rank,
turned towards the query's best key until it has the rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ds41.attention.indexer import IndexQuery
from ds41.norm import rms_norm
from ds41.ops.index_scores import index_scores_of_pool
from ds41.ops.selection import top_entries
from ds41.probes.estimates import Estimate, estimate_mean, estimate_share
from ds41.probes.selection_context import SyntheticContext, round_query
from ds41.probes.selection_prediction import format_error, miss_probability, ranks_in_one_error, score_error

ROUNDED = ("keys", "keys and queries")
# True ranks up to this many times top-k are followed; scores up to this many times it make the predicted edge.
_FOLLOWED, _REACH = 4, 16
# The miss rate at one and minus one deviation from the edge.
_LOW, _HIGH = 0.158655, 0.841345


@dataclass(frozen=True)
class MissPoint:
    """Needles of one true rank.

    rounded: what is in FP4, one of ``ROUNDED``. missed: share of seeds whose needle is not selected. predicted: from
    the true scores alone. shift_*: 5 %, 50 % and 95 % of (rank by stored scores - true rank) over seeds.
    """

    needle: str
    rounded: str
    rank: int
    missed: Estimate
    predicted: float
    shift_low: float
    shift_median: float
    shift_high: float


@dataclass(frozen=True)
class EdgeWidth:
    """How sharp the selection's edge is.

    format_error: of an index key, relative. error, predicted_error: deviation of stored from true scores of entries
    around the edge, relative to the spread of all true scores (means over seeds). width, predicted_width: ranks from
    a miss rate of 16 % to one of 84 %, over found needles; that is two deviations. None where the measured rate does
    not cross both. kept: share of the true top-k that is selected.
    """

    rounded: str
    format_error: float
    error: Estimate
    predicted_error: Estimate
    width: float | None
    predicted_width: float
    kept: Estimate


class MissCounter:
    """Collects needles over contexts and queries; give it batches, then ask for :meth:`points` and :meth:`widths`."""

    def __init__(self, ranks: tuple[int, ...], top_k: int) -> None:
        self.ranks, self.top_k = ranks, top_k
        self._needles: dict[tuple[str, str], list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]] = {}
        self._edges: dict[str, list[tuple[torch.Tensor, ...]]] = {}

    def add(self, context: SyntheticContext, asked: IndexQuery, generator: torch.Generator) -> None:
        """Follow the needles of queries, one seed each.

        Raises:
            ValueError: a rank beyond what is followed, or below 2.
        """
        true = context.true_scores(asked)
        reach = min(_REACH * self.top_k, context.entries)
        followed = min(_FOLLOWED * self.top_k, reach)
        if not 2 <= min(self.ranks) <= max(self.ranks) < followed:
            raise ValueError(f"ranks are {min(self.ranks)} to {max(self.ranks)}; expected 2 to {followed - 1}")
        best = true.topk(reach, dim=1)
        places = _free_places(context.entries, best.indices[:, :followed], len(self.ranks), generator)
        planted = plant_keys(asked, best.values, context.keys[best.indices[:, 0]], context.keys[places], self.ranks)
        near = context.keys[best.indices[:, : 2 * self.top_k]]
        at = torch.tensor(self.ranks) - 1
        for rounded in ROUNDED:
            query = round_query(asked) if rounded == ROUNDED[1] else asked
            stored = context.stored_scores(query)
            error = score_error(asked, near, rounded == ROUNDED[1])
            predicted = miss_probability(best.values, error, self.top_k)[:, :followed]
            order = stored.sort(dim=1).values
            selected = torch.zeros_like(stored, dtype=torch.bool)
            selected.scatter_(1, top_entries(stored, self.top_k), True)
            missed = ~selected.gather(1, best.indices[:, :followed])
            ranks = _ranks(order, stored.gather(1, best.indices[:, at]))
            self._keep("found", rounded, missed[:, at], predicted[:, at], ranks)
            moved = (stored - true).gather(1, best.indices[:, : 2 * self.top_k])
            spread = true.std(1)
            self._edges.setdefault(rounded, []).append(
                (moved.std(1) / spread, error / spread, missed, ranks_in_one_error(best.values, error, self.top_k))
            )
            scores = self._stored_needles(context, query, places, planted)
            missed = _missed_when_replaced(stored, places, scores, self.top_k)
            self._keep("planted", rounded, missed, predicted[:, at], _ranks(order, scores))

    def points(self) -> list[MissPoint]:
        """One for each kind of needle, what is rounded and rank."""
        points = []
        for (needle, rounded), batches in sorted(self._needles.items()):
            missed, predicted, ranks = (torch.cat(part) for part in zip(*batches, strict=True))
            for column, rank in enumerate(self.ranks):
                shift = (ranks[:, column] - rank).to(torch.float32)
                low, median, high = shift.quantile(torch.tensor([0.05, 0.5, 0.95])).tolist()
                share = estimate_share(int(missed[:, column].sum()), len(missed))
                mean = float(predicted[:, column].mean())
                points.append(MissPoint(needle, rounded, rank, share, mean, low, median, high))
        return points

    def widths(self) -> list[EdgeWidth]:
        """One for each kind of rounding."""
        widths = []
        for rounded, batches in self._edges.items():
            error, predicted, missed, width = (torch.cat(part) for part in zip(*batches, strict=True))
            kept = 1 - missed[:, : self.top_k].to(torch.float32).mean(1)
            widths.append(
                EdgeWidth(
                    rounded,
                    format_error(),
                    estimate_mean(error.tolist()),
                    estimate_mean(predicted.tolist()),
                    crossing_width(missed, max(1, self.top_k // 16)),
                    float(2 * width.mean()),
                    estimate_mean(kept.tolist()),
                )
            )
        return widths

    def _keep(self, needle: str, rounded: str, *columns: torch.Tensor) -> None:
        self._needles.setdefault((needle, rounded), []).append(columns)

    def _stored_needles(
        self, context: SyntheticContext, query: IndexQuery, places: torch.Tensor, planted: torch.Tensor
    ) -> torch.Tensor:
        """Scores [N, R] of planted keys as the pages give them back; the pages are as before afterwards."""
        scores = torch.empty(places.shape)
        for row, place in enumerate(places):
            context.write_keys(place, planted[row])
            scores[row] = index_scores_of_pool(*query.part(slice(row, row + 1)), context.stored_keys(place[None]))
            context.write_keys(place, context.keys[place])
        return scores


def plant_keys(
    asked: IndexQuery, best: torch.Tensor, best_keys: torch.Tensor, old_keys: torch.Tensor, ranks: tuple[int, ...]
) -> torch.Tensor:
    """Keys whose true score lies half-way between those of ranks r - 1 and r: float32 [N, R, C], of size sqrt(C).

    Each lies between the key that it replaces and its query's best one; bisection finds where.

    Args:
        asked: not rounded. best: float32 [N, K], the largest true scores in falling order, K beyond every rank.
            best_keys: float32 [N, C], the keys of the first. old_keys: float32 [N, R, C], of entries beyond every
            rank. ranks: 2 or more.

    Raises:
        ValueError: a rank below 2.
    """
    at = torch.tensor(ranks)
    if int(at.min()) < 2:
        raise ValueError(f"ranks are {ranks}; expected 2 or more, since a planted key leans on the best one")
    target = (best[:, at - 2] + best[:, at - 1]) / 2

    def key(share: torch.Tensor) -> torch.Tensor:
        mixed = torch.lerp(old_keys, best_keys[:, None].expand_as(old_keys), share[..., None])
        return rms_norm(mixed)

    low, high = torch.zeros_like(target), torch.ones_like(target)
    for _ in range(30):
        middle = (low + high) / 2
        above = index_scores_of_pool(*asked, key(middle)) > target
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return key((low + high) / 2)


def crossing_width(missed: torch.Tensor, bin_ranks: int) -> float | None:
    """Ranks between miss rates of 16 % and 84 %, the rate taken over seeds and ``bin_ranks`` neighbouring ranks.

    Args:
        missed: bool [seeds, ranks]. None where the rate does not cross both.
    """
    bins = missed.shape[1] // bin_ranks
    rates = missed[:, : bins * bin_ranks].to(torch.float32).mean(0).view(bins, bin_ranks).mean(1).tolist()
    crossings = [_crossing(rates, level) for level in (_LOW, _HIGH)]
    if None in crossings:
        return None
    return (crossings[1] - crossings[0]) * bin_ranks


def _crossing(rates: list[float], level: float) -> float | None:
    """Where the rate first reaches a level, in bins, on the line between two of them."""
    for index in range(1, len(rates)):
        if rates[index - 1] < level <= rates[index]:
            return index - 1 + (level - rates[index - 1]) / (rates[index] - rates[index - 1])
    return None


def _free_places(entries: int, taken: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """Different entries [N, count] that are none of their row's ``taken`` [N, K]."""
    rows = []
    for row in taken:
        free = torch.ones(entries, dtype=torch.bool)
        free[row] = False
        free = free.nonzero().squeeze(1)
        if len(free) < count:
            raise ValueError(f"{len(free)} entries are free for {count} needles; take fewer ranks or more entries")
        rows.append(free[torch.randperm(len(free), generator=generator)[:count]])
    return torch.stack(rows)


def _ranks(ascending: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """1 + how many of the sorted scores [N, L] lie above each of ``scores`` [N, R]."""
    return 1 + ascending.shape[1] - torch.searchsorted(ascending, scores.contiguous(), right=True)


def _missed_when_replaced(stored: torch.Tensor, places: torch.Tensor, scores: torch.Tensor, top_k: int) -> torch.Tensor:
    """Whether the selection leaves out entry ``places`` [N, R] where that one alone has another score: bool [N, R]."""
    missed = torch.empty(places.shape, dtype=torch.bool)
    for column in range(places.shape[1]):
        place = places[:, column : column + 1]
        kept = stored.gather(1, place)
        stored.scatter_(1, place, scores[:, column : column + 1])
        missed[:, column] = (top_entries(stored, top_k) != place).all(1)
        stored.scatter_(1, place, kept)
    return missed
