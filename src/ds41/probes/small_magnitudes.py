"""FP4 at small magnitudes: what rounding main KV does to attention, by the size of what is rounded.

Random latents, queries and windows of the published sizes; every format attends to the same entries. Do small values,
whose relative error is largest, carry the error of the output? The design would be falsified if they did.
:mod:`ds41.probes.needle_masses` asks what the same rounding does to a needle.

Source: report section 2.4.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from ds41.attention.memory import RoundTrip
from ds41.formats import MAIN_KV
from ds41.probes.attention_case import AttentionCase, Setting
from ds41.probes.estimates import Estimate, estimate_columns
from ds41.probes.main_formats import MAIN_FORMATS
from ds41.probes.rounding import predicted_error_of_size

# A value below 1/24 of its block's maximum is nearer to zero than to the smallest magnitude, half a step of six.
RELATIVE_EDGES = (0.0, 1 / 96, 1 / 48, 1 / 24, 1 / 12, 1 / 6, 1 / 3, 2 / 3, 1.0)
ABSOLUTE_EDGES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, math.inf)
_EDGES = {True: RELATIVE_EDGES, False: ABSOLUTE_EDGES}


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
    outputs = tuple(OutputRow(name, setting.query_rms, *estimate_columns(rows)) for name, rows in found.items())
    by_size = []
    for (name, relative), of_seeds in sizes.items():
        for number, (low, high) in enumerate(pairwise(_EDGES[relative])):
            share, value_error, output_error, error_share, zeroed = estimate_columns(
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
