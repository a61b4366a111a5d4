"""What a replay has to give, computed without a cache: the tokens from a position on, over entries that are given.

Window keys exist from that position on, in every layer; entries of the prefix come from a run over the prefix alone.
"""

import torch

from ds41.attention import SequenceMemory
from ds41.engram import look_back, new_history
from ds41.tokens import token_rows


class PrefixMemory(SequenceMemory):
    """One sequence whose step begins at ``start``, after ``hit`` tokens whose entries another memory holds."""

    def __init__(self, config, step, rounds, prefix: SequenceMemory, hit: int) -> None:
        super().__init__(config, step, rounds)
        self._config, self._prefix, self._hit = config, prefix, hit

    def append(self, layer, sequence, entry, main, index) -> None:
        new = (entry + 1) * self._config.layers[layer].ratio > self._hit
        super().append(layer, sequence[new], entry[new], main[new], index[new])
        self._main[layer] = torch.cat((self._prefix._main[layer], self._main[layer]))
        self._index[layer] = torch.cat((self._prefix._index[layer], self._index[layer]))
        self._offsets[layer] = torch.zeros(1, dtype=torch.int64)


@torch.no_grad()
def replayed_logits(model, ids: torch.Tensor, hit: int, start: int) -> torch.Tensor:
    """Logits of tokens ``start`` to the end, [T - start, vocab], after a hit of ``hit`` tokens."""
    rounds = model.quantization != "none"
    history = new_history(1, model.config.engram_max_ngram_size)
    before = token_rows(ids[:hit], 1, model.config, model.device)
    step = before.step([0])
    prefix = SequenceMemory(model.config, step, rounds)
    model._run(model._enter(before, step, history)[0], prefix)
    if model.hasher is not None:
        seen = model.hasher.compress(ids[:start])
        windows = look_back(seen, torch.arange(start), torch.zeros(start, dtype=torch.int64), history)
        history = windows[-1:, :-1] if start else history
    after = token_rows(ids[start:], 1, model.config, model.device)
    step = after.step([start])
    memory = PrefixMemory(model.config, step, rounds, prefix, hit)
    return model.logits(model._run(model._enter(after, step, history)[0], memory))
