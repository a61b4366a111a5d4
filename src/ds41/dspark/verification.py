"""How many drafted tokens stand, and which token follows them: rejection sampling that leaves the target as it was.

A draft x stands with probability min(1, p_t(x) / p_d(x)). The first that does not stand is replaced by a draw from
what the target has more of than the drafter, max(p_t - p_d, 0); when all stand, the target's next row gives one token
more. Each token then follows the target exactly, whatever the drafter proposes. Temperature 0 needs no case of its own:
its rows have all mass on one id, so a draft stands if and only if it is the target's id.

Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding"; Chen et al. 2023,
"Accelerating Large Language Model Decoding with Speculative Sampling"; the DSpark paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ds41.sampling import draw

# Less left over than this is rounding, not a distribution.
_SMALLEST_RESIDUAL = 1e-8
# Rows that were rounded to float32 on their way sum to 1 within this.
_SUM_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Verified:
    """accepted: how many drafts stand, from the first on. token: the id that follows them; it was never a guess."""

    accepted: int
    token: int


def verify(
    target: torch.Tensor, drafts: Sequence[int] | torch.Tensor, proposed: torch.Tensor, random: torch.Generator
) -> Verified:
    """Accept drafts up to the first rejection, and give the token that follows.

    One random number goes to each draft that is looked at and one to the token.

    Args:
        target: float64 [k+1, vocab], the target's distributions behind the prefix and behind each draft.
        drafts: k ids, each drawn from its row of ``proposed``. Whether a draft is among them may depend on the drafts
            before it, never on itself or on a later one: see :mod:`ds41.dspark.schedule`.
        proposed: float64 [k, vocab], what the drafts were drawn from; one-hot rows where the largest was taken.

    Raises:
        ValueError: shapes do not fit, a row is no distribution, or a draft is an id that ``proposed`` cannot give.
    """
    ids = [int(token) for token in drafts]
    target, proposed = (rows.detach().to("cpu", torch.float64) for rows in (target, proposed))
    _check(target, ids, proposed)
    for place, token in enumerate(ids):
        wanted, guessed = target[place], proposed[place]
        mark = float(torch.rand((), generator=random, dtype=torch.float64))
        if mark * float(guessed[token]) >= float(wanted[token]):
            residual = (wanted - guessed).clamp_(min=0)
            rest = residual if float(residual.sum()) > _SMALLEST_RESIDUAL else wanted
            return Verified(place, draw(rest, random))
    return Verified(len(ids), draw(target[-1], random))


def _check(target: torch.Tensor, drafts: list[int], proposed: torch.Tensor) -> None:
    count = len(drafts)
    if target.dim() != 2 or target.shape[0] != count + 1:
        raise ValueError(f"target has shape {list(target.shape)}; expected [{count + 1}, vocab] for {count} drafts")
    vocab = target.shape[1]
    if proposed.shape != (count, vocab):
        raise ValueError(f"proposed has shape {list(proposed.shape)}; expected {[count, vocab]}")
    for name, rows in (("target", target), ("proposed", proposed)):
        sums = rows.sum(-1)
        # NaN is caught as well: it is within nothing.
        right = (rows >= 0).all(-1) & ((sums - 1).abs() <= _SUM_TOLERANCE)
        if not bool(right.all()):
            row = int((~right).nonzero()[0])
            raise ValueError(
                f"{name}[{row}] sums to {float(sums[row])}, its smallest is {float(rows[row].min())}; "
                "expected probabilities that sum to 1"
            )
    for place, token in enumerate(drafts):
        if not 0 <= token < vocab:
            raise ValueError(f"drafts[{place}] is {token}; expected an id from 0 to {vocab - 1}")
        if not float(proposed[place, token]) > 0:
            raise ValueError(f"drafts[{place}] is {token}, to which proposed[{place}] gives no probability")
