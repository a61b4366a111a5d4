#!/usr/bin/env python3
"""What one pass of training keeps for its backward, in bytes a token, and what a GPU then holds.

    python benchmarks/training_memory.py mini        # needs about 8 GB of memory

Counts the distinct storages that autograd saves in one pass on the CPU, parameters left out; weights, gradients and
optimiser states are counted from the parameters. So it says what a pass needs, not what an allocator adds.
"""

from __future__ import annotations

import argparse
import sys

import torch

from ds41.model import Model
from ds41.training.corpus import standard_library
from ds41.training.losses import step_losses
from ds41.training.optimizers import Optimizers
from ds41.training.recipe import PRESETS, preset_recipe
from ds41.training.signals import Signals
from ds41.training.stream import make_batch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=tuple(PRESETS))
    parser.add_argument("--tokens", type=int, default=512, help="length of the one row (default: 512)")
    options = parser.parse_args()
    torch.manual_seed(0)
    recipe = preset_recipe(options.preset)
    model = Model(recipe.config(), "cache")
    batch = make_batch(standard_library("train"), {"stream": 1.0}, 1, options.tokens, "memory")
    saved, alive = {}, []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        # A storage that was freed could give its address to another.
        alive.append(tensor)
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with Signals(model) as signals, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step_losses(model, signals, batch, recipe.stages[0], recipe, 0)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    a_token = sum(size for place, size in saved.items() if place not in weights) / options.tokens
    muon, adam = (
        sum(parameter.numel() for group in optimizer.param_groups for parameter in group["params"])
        for optimizer in Optimizers(model, recipe).each
    )
    states = 4 * (3 * muon + 4 * adam)
    tokens = PRESETS[options.preset].pass_tokens
    print(f"{options.preset}: {a_token / 1e6:.2f} MB a token kept for the backward")
    print(f"weights, gradients, momentum: {states / 1e9:.2f} GB")
    print(f"a pass of {tokens} tokens: {(states + a_token * tokens) / 1e9:.2f} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
