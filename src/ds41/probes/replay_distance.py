"""What is asked of a replay, and how far what comes out is from a run that kept its windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Request:
    """A hit of ``hit`` tokens in a prompt.

    ids: the prompt and what follows the hit. answer: positions [begin, end) of tokens that a needle before the hit
    tells; None without a needle.
    """

    ids: tuple[int, ...]
    hit: int
    answer: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.hit <= len(self.ids):
            raise ValueError(f"hit is {self.hit}; expected 1 to {len(self.ids)}, the length of ids")
        if self.answer is not None and not self.hit <= self.answer[0] < self.answer[1] <= len(self.ids):
            raise ValueError(f"answer is {self.answer}; expected positions from {self.hit} on, up to {len(self.ids)}")


@dataclass(frozen=True)
class Recall:
    """The answer to a needle, teacher-forced. loss: nats a token; right: every token was the likeliest one."""

    loss: float
    right: bool
    kept_loss: float
    kept_right: bool


@dataclass(frozen=True)
class Divergence:
    """Distributions after a hit beside those of the run that kept its windows, one number for each offset.

    kl: of the kept distribution to this one, nats. largest: largest difference of a logit. same_top: the same
    likeliest token. extra_loss: of the token that follows in ids, nats; negative where this run predicts it better.
    """

    kl: tuple[float, ...]
    largest: tuple[float, ...]
    same_top: tuple[bool, ...]
    extra_loss: tuple[float, ...]
    recall: Recall | None = None


@dataclass(frozen=True)
class Answer:
    """Greedy text after a prompt's end beside that of the run that kept its windows.

    kl, largest, same_top: of the first distribution, as in :class:`Divergence`. first_different: number of tokens that
    are equal before the first one that is not; None if all are. equal_share: tokens that are equal, place by place.
    """

    kl: float
    largest: float
    same_top: bool
    first_different: int | None
    equal_share: float


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest id, the lowest of equals: [..., vocab] -> int64 [...]."""
    ids = torch.arange(logits.shape[-1], device=logits.device)
    return torch.where(logits == logits.amax(-1, keepdim=True), ids, logits.shape[-1]).amin(-1)


def divergence(kept: torch.Tensor, other: torch.Tensor, request: Request, offsets: Sequence[int]) -> Divergence:
    """How far ``other`` is from ``kept``: logits from offset 0 on, [D, vocab] with D beyond every offset asked for."""
    ids = torch.tensor(request.ids[request.hit :], device=kept.device)
    p, q = (logits.double().log_softmax(-1) for logits in (kept, other))
    at = torch.tensor(offsets, device=kept.device)
    p_at, q_at, following = p[at], q[at], ids[at, None]
    return Divergence(
        kl=tuple((p_at.exp() * (p_at - q_at)).sum(-1).clamp(min=0).tolist()),
        largest=tuple((kept[at] - other[at]).abs().amax(-1).tolist()),
        same_top=tuple((likeliest(kept[at]) == likeliest(other[at])).tolist()),
        extra_loss=tuple((p_at.gather(1, following) - q_at.gather(1, following))[:, 0].tolist()),
        recall=None if request.answer is None else _recall(p, q, ids, request),
    )


def answer(kept: torch.Tensor, other: torch.Tensor, kept_text: torch.Tensor, text: torch.Tensor) -> Answer:
    """Compare logits of the first token, [vocab], and greedy texts, int64 [N]."""
    p, q = kept.double().log_softmax(-1), other.double().log_softmax(-1)
    equal = (kept_text == text).tolist()
    return Answer(
        kl=max(0.0, float((p.exp() * (p - q)).sum())),
        largest=float((kept - other).abs().max()),
        same_top=equal[0],
        first_different=None if all(equal) else equal.index(False),
        equal_share=sum(equal) / len(equal),
    )


def _recall(kept: torch.Tensor, other: torch.Tensor, following: torch.Tensor, request: Request) -> Recall:
    places = torch.arange(request.answer[0] - request.hit, request.answer[1] - request.hit, device=kept.device)
    wanted = following[places]
    losses = [-float(logs[places].gather(1, wanted[:, None]).mean()) for logs in (other, kept)]
    right = [bool((likeliest(logs[places]) == wanted).all()) for logs in (other, kept)]
    return Recall(losses[0], right[0], losses[1], right[1])
