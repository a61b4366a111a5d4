"""Held-out rows for the probes of a trained model: needles far back, one query each.

Source: ds41's own.
"""

from __future__ import annotations

import torch

from ds41.config import ModelConfig
from ds41.probes.format_comparison import Questions
from ds41.probes.needle_rows import NeedleRows
from ds41.training.corpus import Corpus
from ds41.training.evaluation import far_enough
from ds41.training.stream import make_batch
from ds41.training.tasks import LINE, VALUE, Asked

# The mark between the two bytes of a value is asked for too: whatever asks, may look for the needle.
_ANSWER = VALUE[1] - VALUE[0] + 1


def needle_rows(config: ModelConfig, corpus: Corpus, length: int, count: int, seed: str = "probe") -> NeedleRows:
    """``count`` rows of ``length`` tokens whose needle neither window nor the latest top-k entries reach.

    Raises:
        ValueError: rows too short for such a needle.
    """
    ids, asked = _far(config, corpus, length, count, seed)
    answers = torch.tensor([[one.answers[0] + i for i in range(_ANSWER)] for one in asked])
    position = torch.arange(length)
    first = torch.tensor([one.needle for one in asked])[:, None]
    return NeedleRows(ids, answers, (position >= first) & (position < first + LINE), question=VALUE[0] - 1)


def questions(config: ModelConfig, corpus: Corpus, length: int, count: int, seed: str = "probe") -> Questions:
    """The same rows as :class:`ds41.probes.format_comparison.Questions`.

    Raises:
        ValueError: rows too short for a needle beyond window and top-k.
    """
    ids, asked = _far(config, corpus, length, count, seed)
    return Questions(ids, torch.arange(count), torch.tensor([one.answers[0] for one in asked]), _ANSWER)


def _far(config: ModelConfig, corpus: Corpus, length: int, count: int, seed: str) -> tuple[torch.Tensor, list[Asked]]:
    least = far_enough(config)
    if length < least + 4 * LINE:
        raise ValueError(
            f"length is {length}; expected {least + 4 * LINE} or more, room for a needle {least} tokens back"
        )
    ids, asked, first = [], [], 0
    while len(ids) < count:
        batch = make_batch(corpus, {"recall": 1.0}, 1, length, f"{seed} {length}", first, queries=1)
        (one,) = batch.asked[0]
        if one.query - one.needle >= least:
            ids.append(batch.ids[0])
            asked.append(one)
        first += 1
    return torch.stack(ids), asked
