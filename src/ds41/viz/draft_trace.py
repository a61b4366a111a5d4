"""What a drafter does on one text: each round's guesses before and after the Markov head, for the picture.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ds41.dspark import Drafter
from ds41.model import Model
from ds41.viz.draft_block import MarkovStep

_SHOWN = 3


@torch.no_grad()
def markov_rounds(
    model: Model, drafter: Drafter, ids: Sequence[int], rounds: int, show: Callable[[int], str]
) -> list[list[MarkovStep]]:
    """Continue ``ids`` greedily by drafting, and keep what stood at every place of the first ``rounds`` blocks.

    Args:
        show: gives the text of one token.
    """
    size, markov = model.config.dspark_block_size, drafter.mtp[-1].markov_head
    cache = drafter.new_cache(model, len(ids) + rounds * (size + 1))
    token, found = int(model.prefill([list(ids)], cache)[0].argmax()), []
    for _ in range(rounds):
        drafts = drafter.draft(model, cache, [token])
        guesses = drafts.ids[0].tolist()
        steps = []
        for place, (before, picked) in enumerate(zip([token, *guesses], guesses, strict=False)):
            corrected = drafts.logits[0, place]
            base = corrected - markov.head(markov.embed(torch.tensor(before, device=corrected.device)))
            steps.append(MarkovStep(show(before), _likeliest(base, show), _likeliest(corrected, show), show(picked)))
        found.append(steps)
        told = model.decode([token, *guesses], cache)[0].argmax(-1).tolist()
        stands = next((n for n in range(size) if guesses[n] != told[n]), size)
        cache.truncate(0, cache.lengths[0] - (size - stands))
        token = told[stands]
    return found


def _likeliest(logits: torch.Tensor, show: Callable[[int], str]) -> list[tuple[str, float]]:
    mass, ids = torch.softmax(logits, -1).topk(_SHOWN)
    return [(show(token), float(share)) for share, token in zip(mass, ids.tolist(), strict=True)]
