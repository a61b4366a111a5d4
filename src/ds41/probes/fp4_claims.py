"""What would show that FP4 main KV is too coarse, and what the probes found: each claim with its number.

Thresholds stand here, in the code, and not beside the results. A claim that fails says so.

Source: report section 2.4.4 for the claim that FP4 suffices; the tests are ds41's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ds41.config import ModelConfig
from ds41.probes.attention_case import Setting
from ds41.probes.format_comparison import NOT_ROUNDED, FormatRow
from ds41.probes.needle_masses import NeedleRow, needle_masses
from ds41.probes.norm_weights import (
    HeavyRow,
    SpikeRow,
    WeightRow,
    heavy_channel_sweep,
    spike_sweep,
    weight_sweep,
)
from ds41.probes.rounding import predicted_rounding, worst_case_weight
from ds41.probes.small_magnitudes import OutputRow, SizeRow, output_errors

# A norm weight of a trained model is near 1; one of 8 is far away.
GROWN_WEIGHTS = (2.0, 4.0, 8.0)
"""Norm weights that are tried in place of those near 1."""
# Values below 1/24 of their block's maximum become zero.
_ZERO_BELOW = 1 / 24
# Share of answers that a model must find without rounding to say something, and the net share that it may lose.
_ABLE = 0.5
_NET_LOSS = 0.05
# Nats a token below which an added loss counts as none.
_SMALL_LOSS = 0.01


@dataclass(frozen=True)
class Claim:
    """One statement of the design, what would falsify it, and what was found. holds: None where nothing is decided."""

    claim: str
    falsified_if: str
    found: str
    holds: bool | None


@dataclass(frozen=True)
class FP4Report:
    """All measurements on random latents, for tables and plots."""

    seeds: int
    outputs: tuple[OutputRow, ...]
    sizes: tuple[SizeRow, ...]
    needles: tuple[NeedleRow, ...]
    weights: tuple[WeightRow, ...]
    spikes: tuple[SpikeRow, ...]
    heavy: tuple[HeavyRow, ...]
    claims: tuple[Claim, ...]


def probe_fp4(
    config: ModelConfig | None = None,
    seeds: int = 100,
    heads: int | None = 16,
    query_sizes: Sequence[float] = (1.0, 4.0),
) -> FP4Report:
    """Everything that needs no trained model, in the published sizes.

    Args:
        config: sizes of the attention; None for the published ones. heads: how many look; None for all of them.
        query_sizes: root mean squares of query channels.
    """
    config = ModelConfig.flash() if config is None else config
    outputs, sizes, needles = (), (), ()
    for size in query_sizes:
        setting = Setting.of(config, size, heads)
        new_outputs, new_sizes = output_errors(setting, seeds=seeds)
        outputs, sizes = outputs + new_outputs, sizes + new_sizes
        needles += needle_masses(setting, seeds=seeds)
    channels = config.head_dim
    report = FP4Report(
        seeds,
        outputs,
        sizes,
        needles,
        weight_sweep(seeds=seeds, channels=channels),
        spike_sweep(channels=channels),
        heavy_channel_sweep(seeds=seeds, channels=channels),
        (),
    )
    return replace(report, claims=synthetic_claims(report, channels))


def synthetic_claims(report: FP4Report, channels: int) -> tuple[Claim, ...]:
    """The claims that random latents decide."""
    return (
        _small_values(report.sizes),
        _faint_needles(report.needles),
        _noise_by_margin(report.needles),
        _grown_weights(report.weights),
        _saturation(report, channels),
        _floor(report.weights),
        _heavy_channel(report.heavy),
    )


def trained_claims(rows: Sequence[FormatRow]) -> tuple[Claim, ...]:
    """The claims that a trained model decides, from rows of one or more context lengths.

    Only lengths count at which the model without rounding finds half of the answers: where it finds few, rounding has
    nothing to take. Without such a length nothing is decided.

    Raises:
        ValueError: a length lacks FP4, FP8 or the reference.
    """
    by_length: dict[int, dict[str, FormatRow]] = {}
    for row in rows:
        by_length.setdefault(row.length, {})[row.format] = row
    for length, formats in by_length.items():
        missing = [name for name in (NOT_ROUNDED, "FP4", "FP8") if name not in formats]
        if missing:
            raise ValueError(f"length {length} has no row of {', '.join(missing)}; it has {', '.join(formats)}")
    able = [one for _, one in sorted(by_length.items()) if one[NOT_ROUNDED].accuracy.mean >= _ABLE]
    return _answers_as_fp8(by_length, able), _context_growth(able)


def _answers_as_fp8(by_length: dict[int, dict[str, FormatRow]], able: list[dict[str, FormatRow]]) -> Claim:
    found = [
        f"{one['FP4'].length}: {one['FP4'].penalty.text(4)} nats against {one['FP8'].penalty.text(4)}, "
        f"{one['FP4'].lost} answers lost and {one['FP4'].gained} gained of {one['FP4'].answers}"
        for one in able
    ]
    if not able:
        reached = ", ".join(f"{one[NOT_ROUNDED].accuracy.text()} at {length}" for length, one in by_length.items())
        found = [f"no length at which the model finds half of the answers ({reached})"]
    falsified = any(
        one["FP4"].penalty.low > one["FP8"].penalty.high
        or one["FP4"].lost - one["FP4"].gained > _NET_LOSS * one["FP4"].answers
        for one in able
    )
    # Few rows make wide intervals, which nothing can falsify: those decide nothing.
    decided = falsified or all(one["FP4"].penalty.high <= _SMALL_LOSS for one in able)
    return Claim(
        "FP4 main KV answers as FP8 does, at equal selection",
        "at a length the loss that FP4 adds lies above that of FP8, interval against interval, or more than a "
        "twentieth of the answers go, net",
        "; ".join(found),
        not falsified if able and decided else None,
    )


def _context_growth(able: list[dict[str, FormatRow]]) -> Claim:
    costs = [(one["FP4"].length, one["FP4"].penalty) for one in able]
    return Claim(
        "what FP4 costs does not grow with the context",
        "the added loss at the longest length lies above that at the shortest, interval against interval",
        ", ".join(f"{penalty.text(4)} nats at {length}" for length, penalty in costs) or "no length to compare",
        costs[-1][1].low <= costs[0][1].high if len(costs) > 1 else None,
    )


def _small_values(sizes: Sequence[SizeRow]) -> Claim:
    small = [row for row in sizes if row.format == "FP4" and row.relative and row.high <= _ZERO_BELOW]
    by_query: dict[float, float] = {}
    for row in small:
        by_query[row.query_rms] = by_query.get(row.query_rms, 0.0) + row.error_share.mean
    values = sum(row.share.mean for row in small) / len(by_query)
    shares = ", ".join(f"{share:.1%} at query size {size:g}" for size, share in by_query.items())
    return Claim(
        "small values, though they lose everything, do not carry the error of the output",
        "values below 1/24 of their block's maximum carry more than a tenth of its square",
        f"{values:.1%} of the values, {min(row.zeroed.mean for row in small):.0%} or more of each size zeroed; they "
        f"carry {shares}",
        max(by_query.values()) <= 0.1,
    )


def _faint_needles(needles: Sequence[NeedleRow]) -> Claim:
    rows = [row for row in needles if row.format == "FP4" and row.margin < 0]
    worst = min(rows, key=lambda row: row.mass.mean / row.exact_mass)
    kept = worst.mass.mean / worst.exact_mass
    return Claim(
        "a needle below its rivals keeps its softmax mass on average",
        "at a margin below 0 a needle loses more than a twentieth of its mass",
        f"the worst keeps {kept:.1%} (margin {worst.margin:g}, query size {worst.query_rms:g}, "
        f"{worst.mass.text(4)} of {worst.exact_mass:.4f})",
        kept >= 0.95,
    )


def _noise_by_margin(needles: Sequence[NeedleRow]) -> Claim:
    found, holds = [], True
    for size in sorted({row.query_rms for row in needles}):
        rows = sorted((r for r in needles if r.format == "FP4" and r.query_rms == size), key=lambda row: row.margin)
        low, high = rows[0], rows[-1]
        holds = holds and low.noise.low <= high.noise.high
        found.append(
            f"query size {size:g}: {low.noise.text()} at margin {low.margin:g}, {high.noise.text()} at "
            f"{high.margin:g}, predicted {low.predicted_noise:.3f}"
        )
    return Claim(
        "rounding moves a margin by error times query size, however small the margin",
        "the margin's noise is larger at the lowest margin than at the highest, interval against interval",
        "; ".join(found),
        holds,
    )


def _grown_weights(weights: Sequence[WeightRow]) -> Claim:
    errors = {row.weight: row.error.mean for row in weights if row.format == "FP4"}
    grown = ", ".join(f"{errors[weight]:.5f} at {weight:g}" for weight in GROWN_WEIGHTS)
    return Claim(
        "norm weights that grow to 2, 4 and 8 together change nothing",
        "the relative error differs at all: these factors move every scale by a power of two",
        f"{errors[1.0]:.5f} at 1, {grown}",
        all(errors[weight] == errors[1.0] for weight in GROWN_WEIGHTS),
    )


def _saturation(report: FP4Report, channels: int) -> Claim:
    saturated = [row for row in report.weights if row.format == "FP4" and row.saturated.mean > 0]
    first = min(saturated, key=lambda row: row.weight)
    spike = min((row for row in report.spikes if row.weight > 1 and row.error > 1 / 16), key=lambda row: row.weight)
    clipped = next(row.clipped.mean for row in report.weights if row.format == "FP4" and row.weight == 1.0)
    return Claim(
        "no scale saturates at weights up to 8",
        "a block maximum passes 2688 at a weight of 8 or less",
        f"one channel with the whole norm passes it from {worst_case_weight(channels):.1f} (predicted) and is cut to "
        f"{1 - spike.error:.0%} at {spike.weight:g}; Gaussian latents from {first.weight:g} on "
        f"({first.saturated.mean:.2g} of blocks, predicted {first.predicted_saturated:.2g}). Rounded-down scales clip "
        f"{clipped:.0%} of blocks at any weight",
        min(first.weight, spike.weight) > max(GROWN_WEIGHTS),
    )


def _floor(weights: Sequence[WeightRow]) -> Claim:
    rows = sorted((row for row in weights if row.format == "FP4"), key=lambda row: -row.weight)
    reference = next(row.error.mean for row in rows if row.weight == 1.0)
    below = [row for row in rows if row.weight < 1]
    first = next(row for row in below if row.error.mean > 1.05 * reference)
    lost = next(row for row in below if row.error.mean > 0.5)
    return Claim(
        "weights down to 1/16 stay above the floor of the scale",
        "the error at a weight of 1/16 or more is over 1.05 times that at 1",
        f"first at weight {first.weight:g}: {first.error.mean:.3f} against {reference:.3f}, predicted "
        f"{first.predicted_error:.3f}, {first.subnormal.mean:.0%} of scales subnormal; half of the norm is lost from "
        f"{lost.weight:g} on ({lost.zeroed.mean:.0%} of values zero)",
        first.weight < 1 / 16,
    )


def _heavy_channel(heavy: Sequence[HeavyRow]) -> Claim:
    rows = sorted((row for row in heavy if row.format == "FP4"), key=lambda row: row.ratio)
    other = {row.ratio: row for row in heavy if row.format == "FP8"}
    grown = max((row for row in rows if row.ratio <= max(GROWN_WEIGHTS)), key=lambda row: row.ratio)
    broken = next((row for row in rows if row.needle_mass.mean < 0.5 * row.exact_mass), None)
    found = (
        f"at {grown.ratio:g} quiet channels have an error of {grown.quiet_error.mean:.1%} (predicted "
        f"{grown.predicted_error:.1%}; at equal weights {predicted_rounding().error:.1%}; FP8 "
        f"{other[grown.ratio].quiet_error.mean:.1%}), whole rows {grown.row_error.mean:.1%}"
    )
    if broken is not None:
        found += (
            f"; a needle told apart by quiet channels alone loses half of its mass from {broken.ratio:g} on "
            f"({broken.needle_mass.text()} of {broken.exact_mass:.3f}; FP8 {other[broken.ratio].needle_mass.text()})"
        )
    return Claim(
        "one channel of a block that grows to 8 times the others does not drown them",
        "the other channels' relative error passes one half at a ratio of 8 or less",
        found,
        grown.quiet_error.mean <= 0.5,
    )
