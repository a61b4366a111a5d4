"""Run under torchrun: one run from its beginning, and one from a checkpoint of another number of workers."""

import sys

import torch
from tiny_run import tiny_corpus, tiny_recipe

from ds41.training.distributed import Workers
from ds41.training.trainer import train

# Text weighs every byte alike, and all queries teach: nothing is drawn by a worker for itself.
RECIPE = tiny_recipe(steps=2, mix={"source": 1.0}, replayed=0.0)


def main(begun: str, continued: str) -> None:
    torch.set_num_threads(1)
    with Workers.of_environment(torch.device("cpu")) as workers:
        train(RECIPE, tiny_corpus(), begun, workers, stop_at=2)
        model = train(RECIPE, tiny_corpus(), continued, workers)
        if workers.rank == 0:
            torch.save(model.state_dict(), f"{continued}/returned.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
