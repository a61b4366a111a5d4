"""Does a needle lose softmax mass where main KV is rounded and its margin is small?

Random latents, queries and windows of the published sizes; every format attends to the same entries.

Prediction. With entries of relative error e and queries of root mean square s, a logit moves by a random number of
deviation ``e * s``, whatever the logit is: the query meets the errors of all channels. Logits also shrink by the
format's gain. A needle of mass p then moves by ``p (1 - p)`` times the change of its margin, most at p = 1/2; a faint
one by that change times its own mass. The design would be falsified by a needle that loses mass beyond this, or by
noise that grows where the margin falls.

Source: report section 2.4.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ds41.attention.memory import RoundTrip
from ds41.probes.attention_case import AttentionCase, Setting
from ds41.probes.estimates import Estimate, estimate_columns
from ds41.probes.main_formats import MAIN_FORMATS, predicted_format
from ds41.probes.rounding import Rounding

MARGINS = (-6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


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
            mass, shift, noise, mass_noise = estimate_columns([measured[:, number].tolist() for measured in of_seeds])
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
