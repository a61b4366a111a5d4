"""A tiny model with a drafter, and a drafter that knows the answer."""

import dataclasses

import tiny_model
import torch

from ds41.dspark import Drafter
from ds41.model import Model

# Five layers, one of each kind, and two draft layers.
CONFIG = dataclasses.replace(
    tiny_model.CONFIG,
    initializer_range=0.15,
    num_nextn_predict_layers=2,
    dspark_target_layer_ids=(2, 4),
    dspark_block_size=4,
    dspark_noise_token_id=508,
    dspark_markov_rank=16,
    dspark_n_routed_experts=4,
    dspark_num_experts_per_tok=2,
)


def pair(config=CONFIG, quantization="cache", seed=0):
    """A model and a drafter with random weights."""
    torch.manual_seed(seed)
    return Model(config, quantization).requires_grad_(False), Drafter(config, quantization).requires_grad_(False)


def prompt(length=40, seed=1, vocab=512):
    return torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


class Oracle(Drafter):
    """Drafts what it is told to, with logits that put nearly all mass there."""

    def draft(self, model, cache, tokens, rows=(0,), pick=None):
        found = super().draft(model, cache, tokens, rows, pick)
        size, at = self.config.dspark_block_size, cache.lengths[0] + 1
        ids = torch.tensor([(self.truth[at : at + size] + [0] * size)[:size]])
        if self.wrong_at is not None and self.wrong_at < size:
            ids[0, self.wrong_at] = (ids[0, self.wrong_at] + 1) % self.config.vocab_size
        return found._replace(ids=ids)
