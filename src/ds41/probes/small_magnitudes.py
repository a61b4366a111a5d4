"""FP4 at small magnitudes: what rounding main KV does to attention, by the size of what is rounded.

Random latents, queries and windows of the published sizes; every format attends to the same entries. Two questions.
Do small values, whose relative error is largest, carry the error of the output? And does a needle lose softmax mass
where its margin is small?

Prediction. With entries of relative error e and queries of root mean square s, a logit moves by a random number of
deviation ``e * s``, whatever the logit is: the query meets the errors of all channels. Logits also shrink by the
format's gain. A needle of mass p then moves by ``p (1 - p)`` times the change of its margin, most at p = 1/2; a faint
one by that change times its own mass. The design would be falsified by a needle that loses mass beyond this, by noise
that grows where the margin falls, or by an output error that small values carry.

Source: report section 2.4.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from ds41.attention.memory import RoundTrip
from ds41.config import ModelConfig
from ds41.formats import MAIN_KV, WINDOW_KV
from ds41.norm import rms_norm
from ds41.probes.estimates import Estimate, estimate_mean
from ds41.probes.main_formats import MAIN_FORMATS, predicted_format
from ds41.probes.rounding import Rounding, predicted_error_of_size

# A value below 1/24 of its block's maximum is nearer to zero than to the smallest magnitude, half a step of six.
RELATIVE_EDGES = (0.0, 1 / 96, 1 / 48, 1 / 24, 1 / 12, 1 / 6, 1 / 3, 2 / 3, 1.0)
ABSOLUTE_EDGES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, math.inf)
_EDGES = {True: RELATIVE_EDGES, False: ABSOLUTE_EDGES}
MARGINS = (-6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


@dataclass(frozen=True)
class Setting:
    """Sizes of one attention: selected entries of main KV and rows of a window, which is FP8 whatever main KV is.

    query_rms: root mean square of query channels. Logits of random rows have this deviation: 1 attends to hundreds of
    rows, 4 to a few.
    """

    channels: int
    heads: int
    selected: int
    window: int
    query_rms: float = 1.0

    def __post_init__(self) -> None:
        if not self.query_rms > 0:
            raise ValueError(f"query_rms is {self.query_rms}; expected a number above zero")
        if self.channels % WINDOW_KV.block:
            raise ValueError(f"channels is {self.channels}; expected a multiple of {WINDOW_KV.block}")

    @classmethod
    def of(cls, config: ModelConfig, query_rms: float = 1.0, heads: int | None = None) -> Setting:
        """The sizes of a model; ``heads`` to look at fewer than it has."""
        heads = config.num_attention_heads if heads is None else heads
        return cls(config.head_dim, heads, config.index_topk, config.sliding_window, query_rms)


@dataclass(frozen=True)
class SizeRow:
    """Values between two sizes, relative to the maximum of their block of 16 or absolute, and what they carry.

    share: of all values. value_error: relative error of these values; predicted by the format for FP4 and relative
    sizes. output_error: the same of what they add to the output. error_share: of the output's squared error from
    rounded values. zeroed: share of them that become zero.
    """

    format: str
    query_rms: float
    relative: bool
    low: float
    high: float
    share: Estimate
    value_error: Estimate
    predicted_error: float | None
    output_error: Estimate
    error_share: Estimate
    zeroed: Estimate


@dataclass(frozen=True)
class OutputRow:
    """Relative error of attention's output: of values rounded under exact weights, of the weights' change, of both."""

    format: str
    query_rms: float
    values: Estimate
    weights: Estimate
    output: Estimate


@dataclass(frozen=True)
class NeedleRow:
    """Softmax mass on a needle, one of the selected entries, at one margin: its logit less all others' log-sum-exp.

    mass: mean; exact_mass: without rounding. shift, noise: mean and deviation over heads of the margin's change.
    mass_noise: root mean square of the mass's change. predicted: from the format's error and gain, None for an unknown
    format.
    """

    format: str
    query_rms: float
    margin: float
    exact_mass: float
    mass: Estimate
    shift: Estimate
    predicted_shift: float | None
    noise: Estimate
    predicted_noise: float | None
    mass_noise: Estimate
    predicted_mass_noise: float | None


@dataclass(frozen=True)
class AttentionCase:
    """One seed: entries [selected, C], window rows [window, C] as read back from FP8, queries [heads, C]."""

    entries: torch.Tensor
    window: torch.Tensor
    queries: torch.Tensor

    @classmethod
    def draw(cls, setting: Setting, seed: int) -> AttentionCase:
        """Gaussian rows, normalised as latents are."""
        generator = torch.Generator().manual_seed(seed)

        def rows(count: int) -> torch.Tensor:
            return rms_norm(torch.randn(count, setting.channels, generator=generator))

        entries, window = rows(setting.selected), WINDOW_KV.fake_quantize(rows(setting.window))
        return cls(entries, window, rows(setting.heads) * setting.query_rms)

    def weights(self, entries: torch.Tensor) -> torch.Tensor:
        """Softmax weights of entries and window, a sink of logit 0 beside them: [heads, selected + window]."""
        return self._with_sink(entries).softmax(1)[:, :-1]

    def log_sum(self, entries: torch.Tensor) -> torch.Tensor:
        """Log of the sum of all exponentials, the sink's among them: [heads]."""
        return self._with_sink(entries).logsumexp(1)

    def _with_sink(self, entries: torch.Tensor) -> torch.Tensor:
        logits = self.queries @ torch.cat((entries, self.window)).T * entries.shape[1] ** -0.5
        return torch.cat((logits, logits.new_zeros(logits.shape[0], 1)), 1)


def output_errors(
    setting: Setting, formats: Mapping[str, RoundTrip] = MAIN_FORMATS, seeds: int = 100
) -> tuple[tuple[OutputRow, ...], tuple[SizeRow, ...]]:
    """Error of the output of the same selection in each format, and which sizes of values it comes from."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in formats}
    sizes: dict[tuple[str, bool], list[torch.Tensor]] = {(name, kind): [] for name in formats for kind in _EDGES}
    for seed in range(seeds):
        case = AttentionCase.draw(setting, seed)
        exact = case.weights(case.entries)
        main_weights = exact[:, : setting.selected]
        output = exact @ torch.cat((case.entries, case.window))
        bins = {relative: _Bins.of(case.entries, main_weights, relative) for relative in _EDGES}
        for name, main_format in formats.items():
            entries = main_format.fake_quantize(case.entries)
            values = main_weights @ (entries - case.entries)
            changed = (case.weights(entries) - exact) @ torch.cat((entries, case.window))
            parts = (values, changed, values + changed)
            found[name].append(tuple(float(part.norm() / output.norm()) for part in parts))
            for relative, sorted_values in bins.items():
                sizes[name, relative].append(sorted_values.measure(case.entries, entries, main_weights, values))
    outputs = tuple(OutputRow(name, setting.query_rms, *_estimates(rows)) for name, rows in found.items())
    by_size = []
    for (name, relative), of_seeds in sizes.items():
        for number, (low, high) in enumerate(pairwise(_EDGES[relative])):
            share, value_error, output_error, error_share, zeroed = _estimates(
                [m[:, number].tolist() for m in of_seeds]
            )
            expected = predicted_error_of_size(low, high) if relative and formats[name] is MAIN_KV else None
            given = (share, value_error, expected, output_error, error_share, zeroed)
            by_size.append(SizeRow(name, setting.query_rms, relative, low, high, *given))
    return outputs, tuple(by_size)


class _Bins(NamedTuple):
    """Entries sorted by size. number: int64 [N, C], the bin of each value. signal: norm of each bin's output [bins]."""

    number: torch.Tensor
    signal: torch.Tensor

    @classmethod
    def of(cls, entries: torch.Tensor, weights: torch.Tensor, relative: bool) -> _Bins:
        size = entries.abs()
        if relative:
            blocks = size.unflatten(-1, (-1, MAIN_KV.block))
            size = (blocks / blocks.amax(-1, keepdim=True)).flatten(-2)
        number = torch.bucketize(size, torch.tensor(_EDGES[relative][1:-1]))
        parts = [weights @ (entries * (number == b)) for b in range(len(_EDGES[relative]) - 1)]
        return cls(number, torch.stack([part.norm() for part in parts]))

    def measure(
        self, entries: torch.Tensor, rounded: torch.Tensor, weights: torch.Tensor, moved: torch.Tensor
    ) -> torch.Tensor:
        """The estimates of :class:`SizeRow` for one seed, [5, bins]; moved: what all values move the output by."""
        flat, error, count = self.number.flatten(), rounded - entries, len(self.signal)

        def sums(x: torch.Tensor) -> torch.Tensor:
            return torch.bincount(flat, x.flatten(), minlength=count)

        # A bin without values, or a format without errors, gives zeros.
        tiny = torch.finfo(error.dtype).tiny
        held = torch.bincount(flat, minlength=count)
        parts = torch.stack([weights @ (error * (self.number == b)) for b in range(count)])
        return torch.stack(
            (
                held / flat.numel(),
                (sums(error.square()) / sums(entries.square()).clamp(min=tiny)).sqrt(),
                parts.flatten(1).norm(dim=1) / self.signal.clamp(min=tiny),
                (parts * moved).flatten(1).sum(1) / moved.square().sum().clamp(min=tiny),
                sums((rounded == 0).to(entries.dtype)) / held.clamp(min=1),
            )
        )


def needle_masses(
    setting: Setting,
    margins: Sequence[float] = MARGINS,
    formats: Mapping[str, RoundTrip] = MAIN_FORMATS,
    seeds: int = 100,
) -> tuple[NeedleRow, ...]:
    """Each head looks for a needle of its own at each margin; the other entries, window and sink are the same."""
    if setting.heads < 2:
        raise ValueError(f"heads is {setting.heads}; expected 2 or more, between which the noise is measured")
    margins = torch.tensor(margins, dtype=torch.float32)
    found: dict[str, list[torch.Tensor]] = {name: [] for name in formats}
    others = []
    for seed in range(seeds):
        case = AttentionCase.draw(setting, seed)
        log_sum = case.log_sum(case.entries)
        others.append(_Others.of(case, log_sum))
        needles = torch.stack([_needles(case, log_sum + margin, seed) for margin in margins])
        for name, main_format in formats.items():
            logits = (main_format.fake_quantize(needles) * case.queries).sum(-1) * setting.channels**-0.5
            moved = logits - case.log_sum(main_format.fake_quantize(case.entries))
            mass, change = torch.sigmoid(moved), moved - margins[:, None]
            lost = mass - torch.sigmoid(margins)[:, None]
            parts = (mass.mean(1), change.mean(1), change.std(1), lost.square().mean(1).sqrt())
            found[name].append(torch.stack(parts))
    typical = _Others(*(sum(column) / seeds for column in zip(*others, strict=True)))
    result = []
    for name, of_seeds in found.items():
        rounding = predicted_format(formats[name])
        for number, margin in enumerate(margins.tolist()):
            mass, shift, noise, mass_noise = _estimates([measured[:, number].tolist() for measured in of_seeds])
            exact_mass = 1 / (1 + math.exp(-margin))
            expected = (None,) * 3
            if rounding is not None:
                moved, spread = typical.predicted(rounding, setting.query_rms, margin)
                expected = (moved, spread, exact_mass * (1 - exact_mass) * math.hypot(moved, spread))
            result.append(
                NeedleRow(
                    name,
                    setting.query_rms,
                    margin,
                    exact_mass,
                    mass,
                    *(shift, expected[0]),
                    *(noise, expected[1]),
                    *(mass_noise, expected[2]),
                )
            )
    return tuple(result)


class _Others(NamedTuple):
    """Means over heads of what the needle competes with, without rounding.

    log_sum: of all other exponentials. share, squares, logit: sums over the other entries of the softmax weight, of its
    square, and of weight times logit.
    """

    log_sum: float
    share: float
    squares: float
    logit: float

    @classmethod
    def of(cls, case: AttentionCase, log_sum: torch.Tensor) -> _Others:
        logits = case.queries @ case.entries.T * case.entries.shape[1] ** -0.5
        weights = torch.exp(logits - log_sum[:, None])
        sums = (weights, weights.square(), weights * logits)
        return cls(float(log_sum.mean()), *(float(one.sum(1).mean()) for one in sums))

    def predicted(self, rounding: Rounding, query_rms: float, margin: float) -> tuple[float, float]:
        """Mean and deviation of the margin's change: logits shrink by the gain, noise raises the others' sum."""
        deviation = rounding.error * query_rms
        shrinks = (1 - rounding.gain) * (self.log_sum + margin - self.logit)
        rises = deviation**2 / 2 * (self.share - self.squares)
        return -shrinks - rises, deviation * math.sqrt(1 + self.squares)


def _needles(case: AttentionCase, logits: torch.Tensor, seed: int) -> torch.Tensor:
    """A normalised row for each head, [heads, C], that gives its query exactly this logit [heads]."""
    directions = case.queries / case.queries.norm(dim=1, keepdim=True)
    along = logits / case.queries.norm(dim=1)
    if float(along.abs().max()) > 1:
        raise ValueError(
            f"a needle would need a logit of {float(logits.abs().max()):.1f}; a row of root mean square 1 gives at "
            f"most {float(case.queries.norm(dim=1).min()):.1f}"
        )
    noise = torch.randn(directions.shape, generator=torch.Generator().manual_seed(2**31 + seed))
    noise -= (noise * directions).sum(1, keepdim=True) * directions
    across = (1 - along.square()).sqrt() / noise.norm(dim=1)
    return (along[:, None] * directions + across[:, None] * noise) * math.sqrt(directions.shape[1])


def _estimates(rows: Sequence[tuple[float, ...]]) -> list[Estimate]:
    return [estimate_mean(column) for column in zip(*rows, strict=True)]
