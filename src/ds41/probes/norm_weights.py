"""How large and how small an RMSNorm weight may be before FP4 main KV notices, and what one heavy channel costs.

The prediction comes from the number formats alone: Gaussian channels, eight magnitudes, a scale with E4M3's steps. The
measurement rounds random latents with :data:`ds41.formats.MAIN_KV`.

Source: report section 2.4.4 (the norm argument).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ds41.attention import SequenceMemory
from ds41.attention.memory import RoundTrip
from ds41.formats import MAIN_KV
from ds41.model import Model
from ds41.norm import rms_norm
from ds41.probes.estimates import Estimate, estimate_columns, estimate_mean
from ds41.probes.main_formats import MAIN_FORMATS, UNROUNDED
from ds41.probes.rounding import (
    REACH,
    SCALE_STEP,
    SMALLEST_NORMAL_SCALE,
    predicted_rounding,
    relative_error,
    share_of_blocks_below,
    worst_case_weight,
)
from ds41.small_floats import E2M1_MAX
from ds41.step import Step

POWERS_OF_TWO = tuple(2.0**exponent for exponent in range(-14, 12))
HEAVY_RATIOS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0)


@dataclass(frozen=True)
class WeightRow:
    """Gaussian latents under one norm weight. Shares and predictions are None where the format has no E4M3 scale.

    error: norm of the rounding error over the norm of the latents. saturated: share of blocks with a maximum beyond
    2688. clipped: those that lose any of their maximum. subnormal, floored: those with a scale below 2^-6, or of
    2^-9. zeroed: share of values that become zero.
    """

    format: str
    weight: float
    error: Estimate
    zeroed: Estimate
    predicted_error: float | None = None
    saturated: Estimate | None = None
    predicted_saturated: float | None = None
    clipped: Estimate | None = None
    subnormal: Estimate | None = None
    predicted_subnormal: float | None = None
    floored: Estimate | None = None
    predicted_floored: float | None = None


@dataclass(frozen=True)
class HeavyRow:
    """One channel in each block of 16 has a norm weight ``ratio`` times that of the other 15, the quiet ones.

    quiet_error: relative error of the quiet channels; predicted_error: of FP4, None for others. row_error: of whole
    rows. zeroed: share of quiet values that become zero. needle_mass: softmax mass on a needle that only quiet
    channels tell apart; exact_mass: without rounding.
    """

    format: str
    ratio: float
    quiet_error: Estimate
    predicted_error: float | None
    row_error: Estimate
    zeroed: Estimate
    needle_mass: Estimate
    exact_mass: float


@dataclass(frozen=True)
class SpikeRow:
    """A latent with its whole norm in one channel, the worst for the range. Errors are relative to that channel.

    predicted: what the reach of 2688 cuts off; rounding adds at most 1/17.
    """

    weight: float
    error: float
    predicted: float


@dataclass(frozen=True)
class SourceRow:
    """What a trained source writes, and what FP4 does to it.

    smallest, largest_weight: magnitudes of the compressor norm's weights. spread: the largest weight of a block over
    its median, at its worst. largest_value: of any latent. error, zeroed, subnormal, saturated: as in
    :class:`WeightRow`. query_rms: of the queries of its layers. logit_noise: deviation of logits by rounding, between
    queries and entries of one sequence; predicted: error times the sizes of queries and entries.
    """

    layer: int
    smallest_weight: float
    largest_weight: float
    spread: float
    largest_value: float
    error: float
    zeroed: float
    subnormal: float
    saturated: float
    query_rms: float
    logit_noise: float
    predicted_noise: float


def weight_sweep(
    weights: Sequence[float] = POWERS_OF_TWO,
    formats: Mapping[str, RoundTrip] = MAIN_FORMATS,
    seeds: int = 100,
    rows: int = 16,
    channels: int = 512,
) -> tuple[WeightRow, ...]:
    """Normalised Gaussian latents [rows, channels] under each weight, rounded in each format."""
    _check_positive("weights", weights)
    latents = [_latents(seed, rows, channels) for seed in range(seeds)]
    result = []
    for weight in weights:
        for name, main_format in formats.items():
            measured = [_rounded(main_format, latent * weight) for latent in latents]
            estimates = {key: estimate_mean([one[key] for one in measured]) for key in measured[0]}
            predictions = {}
            if main_format is MAIN_KV:
                predictions = {
                    "predicted_error": predicted_rounding(weight).error,
                    "predicted_saturated": 1 - share_of_blocks_below(REACH, weight),
                    # Half a step below 2^-6 rounds up to it, and half a step above 2^-9 down.
                    "predicted_subnormal": share_of_blocks_below(E2M1_MAX * 7.5 * SCALE_STEP, weight),
                    "predicted_floored": share_of_blocks_below(E2M1_MAX * 1.5 * SCALE_STEP, weight),
                }
            result.append(WeightRow(name, weight, **estimates, **predictions))
    return tuple(result)


def spike_sweep(weights: Sequence[float] = POWERS_OF_TWO, channels: int = 512) -> tuple[SpikeRow, ...]:
    """FP4 on the latent with one channel that is not zero, under each weight."""
    _check_positive("weights", weights)
    result = []
    for weight in weights:
        latent = torch.zeros(1, channels)
        latent[0, 0] = weight * math.sqrt(channels)
        kept = MAIN_KV.fake_quantize(latent)[0, 0] / latent[0, 0]
        result.append(SpikeRow(weight, float(abs(1 - kept)), max(0.0, 1 - worst_case_weight(channels) / weight)))
    return tuple(result)


def heavy_channel_sweep(
    ratios: Sequence[float] = HEAVY_RATIOS,
    formats: Mapping[str, RoundTrip] = MAIN_FORMATS,
    seeds: int = 100,
    rows: int = 64,
    channels: int = 512,
    margin: float = 3.0,
) -> tuple[HeavyRow, ...]:
    """The first channel of each block grows. The needle's logit is ``margin`` above the log-sum-exp of other rows.

    The query, of root mean square 1, sees the quiet channels only, so that exact logits do not depend on the ratio.
    """
    _check_positive("ratios", ratios)
    quiet = torch.arange(channels) % MAIN_KV.block != 0
    cases = [_needle_case(seed, rows, channels, margin, quiet) for seed in range(seeds)]
    exact_mass = 1 / (1 + math.exp(-margin))
    result = []
    for ratio in ratios:
        weight = torch.where(quiet, 1.0, ratio)
        for name, main_format in formats.items():
            measured = [_heavy(main_format, latent * weight, query, quiet) for latent, query in cases]
            errors, row_errors, zeroed, masses = estimate_columns(measured)
            expected = predicted_rounding(1.0, ratio).error if main_format is MAIN_KV else None
            result.append(HeavyRow(name, ratio, errors, expected, row_errors, zeroed, masses, exact_mass))
    return tuple(result)


@torch.no_grad()
def trained_sources(model: Model, ids: torch.Tensor, queries: int = 64) -> tuple[SourceRow, ...]:
    """Main entries that each source of a model writes for ids [B, T], looked at before they are rounded.

    queries: how many tokens of the first row ask, in each of the source's layers, for :attr:`SourceRow.logit_noise`.
    """
    plans = [plan for plan in model.config.layers if plan.ratio]
    asked: dict[int, torch.Tensor] = {}
    memories = []

    def remember(step: Step) -> SequenceMemory:
        memories.append(SequenceMemory(model.config, step, True, UNROUNDED))
        return memories[0]

    hooks = [
        model.layers[plan.index].attn.query.register_forward_hook(
            lambda _module, _given, made, layer=plan.index: asked.update({layer: made[1].to(torch.float32)})
        )
        for plan in plans
    ]
    try:
        model(ids, memory=remember)
    finally:
        for hook in hooks:
            hook.remove()
    result = []
    for source in (plan for plan in plans if plan.owns_kv):
        entries = memories[0].written(source.index)[0].to(torch.float32)
        weights = model.layers[source.index].attn.compressor.norm.weight.abs()
        blocks = weights.unflatten(0, (-1, MAIN_KV.block))
        own = torch.cat([asked[plan.index] for plan in plans if plan.kv_source == source.index], 1)
        tokens = torch.linspace(0, ids.shape[1] - 1, min(queries, ids.shape[1]), device=ids.device).long()
        first = entries[: ids.shape[1] // source.ratio]
        moved = own[tokens].flatten(0, 1) @ (MAIN_KV.fake_quantize(first) - first).T * first.shape[1] ** -0.5
        found, query_rms = _rounded(MAIN_KV, entries), _rms(own[tokens])
        result.append(
            SourceRow(
                source.index,
                float(weights.min()),
                float(weights.max()),
                float((blocks.amax(1) / blocks.median(1).values).max()),
                float(entries.abs().max()),
                *(found[name] for name in ("error", "zeroed", "subnormal", "saturated")),
                query_rms,
                _rms(moved),
                found["error"] * query_rms * _rms(first),
            )
        )
    return tuple(result)


def _rounded(main_format: RoundTrip, x: torch.Tensor) -> dict[str, float]:
    rounded = main_format.fake_quantize(x)
    shares = {"error": relative_error(rounded, x), "zeroed": _share((rounded == 0) & (x != 0))}
    if main_format is MAIN_KV:
        scales = MAIN_KV.scale_values(MAIN_KV.encode(x).scales)
        largest = x.unflatten(-1, (-1, MAIN_KV.block)).abs().amax(-1)
        shares |= {
            "saturated": _share(largest > REACH),
            "clipped": _share(MAIN_KV.clipped_blocks(x)),
            "subnormal": _share(scales < SMALLEST_NORMAL_SCALE),
            "floored": _share(scales == SCALE_STEP),
        }
    return shares


def _heavy(
    main_format: RoundTrip, x: torch.Tensor, query: torch.Tensor, quiet: torch.Tensor
) -> tuple[float, float, float, float]:
    rounded = main_format.fake_quantize(x)
    logits = rounded @ query * x.shape[1] ** -0.5
    zeroed = _share(rounded[:, quiet] == 0)
    mass = float(torch.softmax(logits, 0)[0])
    return relative_error(rounded[:, quiet], x[:, quiet]), relative_error(rounded, x), zeroed, mass


def _needle_case(
    seed: int, rows: int, channels: int, margin: float, quiet: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents [rows, channels], the needle first, and a query [channels] of quiet channels."""
    latent = _latents(seed, rows, channels)
    query = torch.randn(channels, generator=torch.Generator().manual_seed(2**31 + seed)) * quiet
    query *= math.sqrt(channels) / query.norm()
    logits = latent @ query * channels**-0.5
    wanted = torch.logsumexp(logits[1:], 0) + margin
    # The query's square is the number of channels, so a multiple of it moves the logit by sqrt(channels).
    latent[0] += query * (wanted - logits[0]) * channels**-0.5
    return latent, query


def _latents(seed: int, rows: int, channels: int) -> torch.Tensor:
    return rms_norm(torch.randn(rows, channels, generator=torch.Generator().manual_seed(seed)))


def _rms(x: torch.Tensor) -> float:
    return float(x.square().mean().sqrt())


def _share(mask: torch.Tensor) -> float:
    return float(mask.to(torch.float32).mean())


def _check_positive(name: str, values: Sequence[float]) -> None:
    wrong = next((value for value in values if not value > 0), None)
    if wrong is not None:
        raise ValueError(f"{name} holds {wrong}; expected numbers above zero")
