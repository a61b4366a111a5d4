"""What bounded replay was expected to do before it was measured, and what would have falsified the design.

Predictions that are made for several kinds of text are tested with intervals widened for their number (Bonferroni), so
that all of them together are wrong by chance in one run of twenty.

Source: report section 3.2.2 for the claim; expectations and tolerances are ds41's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from ds41.probes.estimates import Estimate, estimate_mean, estimate_share
from ds41.probes.replay_summary import Sample, kinds_of, near_kl, per_seed, recalls

Verdict = Literal["holds", "falsified", "undecided"]
"""What an interval says of a claim."""
LOSS_TOLERANCE = 0.01
"""What replay may cost a following token, in nats; set before any trained model was measured."""
RECALL_TOLERANCE = 0.05
"""What replay may cost a needle's query, in answers; set before any trained model was measured."""
# A distance that should be none, as a share of that which replay makes where it leaves something out.
_NOTHING = 0.01
# A difference of places that matters, as a share of the mean.
_PLACE_SHARE = 0.5


@dataclass(frozen=True)
class Finding:
    """A prediction about one kind of text, or about all; what would falsify it, what was found, and what follows."""

    prediction: str
    kind: str
    falsified_by: str
    found: str
    verdict: Verdict


def findings(
    samples: Sequence[Sample], control: Sequence[Sample], offsets: Sequence[int], window: int
) -> list[Finding]:
    """All predictions beside what the samples show.

    Args:
        samples: with the ways "absent" and "replay". control: with the ways "replay" and "exact", hits long enough for
            an exact replay to leave tokens out.
    """
    return [
        _control(control),
        _short_hits(samples, offsets, window),
        *_above_absent(samples, offsets, window),
        *_fades(samples),
        *_places(samples, offsets, window),
        *_losses(samples, offsets, window),
        *_needles(samples),
    ]


def judge(estimate: Estimate, holds_below: float, falsified_above: float) -> Verdict:
    """ "holds" where the whole interval lies below the one bound, "falsified" where it lies above the other."""
    if estimate.high < holds_below:
        return "holds"
    return "falsified" if estimate.low > falsified_above else "undecided"


def _control(control: Sequence[Sample]) -> Finding:
    exact = max(max(sample.ways["exact"].kl) for sample in control)
    replay = fmean(sample.ways["replay"].kl[0] for sample in control)
    return Finding(
        "as many tokens as exact windows need give back the run that kept them",
        "all",
        f"a KL above {_NOTHING:.0%} of bounded replay's: then it is not the windows that the probe measures",
        f"largest KL {exact:.1e} nats over {len(control)} hits; bounded replay {replay:.1e}",
        "holds" if exact <= _NOTHING * replay else "falsified",
    )


def _short_hits(samples: Sequence[Sample], offsets: Sequence[int], window: int) -> Finding:
    short = [max(sample.ways["replay"].kl) for sample in samples if sample.place == "short"]
    others = fmean(value for kind in kinds_of(samples) for value in near_kl(samples, kind, "replay", offsets, window))
    largest = max(short, default=0.0)
    return Finding(
        "a hit of less than a window loses nothing",
        "all",
        f"a KL above {_NOTHING:.0%} of that of longer hits",
        f"largest KL {largest:.1e} nats over {len(short)} hits; mean of longer ones {others:.1e}",
        "undecided" if not short else "holds" if largest <= _NOTHING * others else "falsified",
    )


def _above_absent(samples: Sequence[Sample], offsets: Sequence[int], window: int) -> list[Finding]:
    found = []
    for kind in kinds_of(samples):
        replay, absent = (near_kl(samples, kind, way, offsets, window) for way in ("replay", "absent"))
        more = _family([a - b for a, b in zip(replay, absent, strict=True)], len(kinds_of(samples)))
        found.append(
            Finding(
                "replay is nearer to kept windows than no windows are",
                kind,
                "a mean KL that is not smaller than without windows",
                f"KL {fmean(replay):.1e} against {fmean(absent):.1e} nats, difference {_span(more)}",
                judge(more, 0, 0),
            )
        )
    return found


def _fades(samples: Sequence[Sample]) -> list[Finding]:
    found = []
    for kind in kinds_of(samples):
        first = per_seed(samples, kind, lambda sample: sample.ways["replay"].kl[0])
        last = per_seed(samples, kind, lambda sample: sample.ways["replay"].kl[-1])
        more = _family([b - a for a, b in zip(first, last, strict=True)], len(kinds_of(samples)))
        found.append(
            Finding(
                "what replay changes fades with new tokens",
                kind,
                "a KL that is larger at the end of what is compared than right after the hit",
                f"KL {fmean(first):.1e}, then {fmean(last):.1e} nats, difference {_span(more)}",
                judge(more, 0, 0),
            )
        )
    return found


def _places(samples: Sequence[Sample], offsets: Sequence[int], window: int) -> list[Finding]:
    found = []
    for kind in kinds_of(samples):
        even = near_kl(samples, kind, "replay", offsets, window, ("even",))
        for place in ("page edge", "odd"):
            values = near_kl(samples, kind, "replay", offsets, window, (place,))
            more = _family([a - b for a, b in zip(values, even, strict=True)], 2 * len(kinds_of(samples)))
            bound = _PLACE_SHARE * fmean(even)
            apart = more.low > 0 or more.high < 0
            within = -bound < more.low and more.high < bound
            found.append(
                Finding(
                    f"a hit at a place of the kind {place!r} is no worse and no better than one inside a page, even",
                    kind,
                    f"a difference that is not zero; it holds if it is below {_PLACE_SHARE:.0%} of the mean",
                    f"KL {fmean(values):.1e} against {fmean(even):.1e} nats, difference {_span(more)}",
                    "falsified" if apart else "holds" if within else "undecided",
                )
            )
    return found


def _losses(samples: Sequence[Sample], offsets: Sequence[int], window: int) -> list[Finding]:
    near, found = [at for at, offset in enumerate(offsets) if offset < window], []
    for kind in kinds_of(samples):
        values = per_seed(samples, kind, lambda sample: fmean(sample.ways["replay"].extra_loss[at] for at in near))
        extra = _family(values, len(kinds_of(samples)))
        found.append(
            Finding(
                "replay costs the next window of tokens next to nothing",
                kind,
                f"an extra loss above {LOSS_TOLERANCE} nats a token",
                f"extra loss {_span(extra)} nats",
                judge(extra, LOSS_TOLERANCE, LOSS_TOLERANCE),
            )
        )
    return found


def _needles(samples: Sequence[Sample]) -> list[Finding]:
    asked = [kind for kind in kinds_of(samples) if recalls(samples, kind, "replay")]
    found = []
    for kind in asked:
        seeds = recalls(samples, kind, "replay")
        kept, own = (sum(all(getattr(one, n) for one in seed) for seed in seeds) for n in ("kept_right", "right"))
        lost = sum(any(one.kept_right and not one.right for one in seed) for seed in seeds)
        share = estimate_share(lost, len(seeds), 1 - 0.05 / len(asked))
        finds = 2 * kept >= len(seeds)
        aside = "" if finds else "; this model does not find needles with its windows either"
        found.append(
            Finding(
                "what global entries hold is found after a replay as before",
                kind,
                f"more than {RECALL_TOLERANCE:.0%} of prompts with an answer lost",
                f"of {len(seeds)} prompts {own} right, with windows kept {kept}; {lost} lost, {share.text(2)}{aside}",
                judge(share, RECALL_TOLERANCE, RECALL_TOLERANCE) if finds else "undecided",
            )
        )
    return found


def _family(values: Sequence[float], tests: int) -> Estimate:
    return estimate_mean(values, 1 - 0.05 / tests)


def _span(estimate: Estimate) -> str:
    return f"{estimate.mean:.1e} [{estimate.low:.1e}, {estimate.high:.1e}]"
