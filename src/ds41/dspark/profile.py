"""How long a step takes by its tokens, measured on the machine at hand: what the scheduler decides by.

Source: ds41's own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from ds41.cache import Cache
from ds41.dspark.drafter import Drafter
from ds41.dspark.throughput_curve import ThroughputCurve
from ds41.model import Model

_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
_REQUESTS = (1, 2, 4, 8)


def profile_steps(
    model: Model,
    drafter: Drafter,
    context: int,
    counts: Sequence[int] = _COUNTS,
    requests: int = 8,
    repeats: int = 5,
) -> ThroughputCurve:
    """Seconds of a step of the model, by the tokens that it feeds to up to ``requests`` sequences.

    Args:
        context: tokens that each sequence holds. counts: tokens of a step, ascending; those beyond one for each
            sequence are spread over them, as drafts are. A sequence takes no more than a block and the token before it.
        repeats: the median of so many is taken.

    Returns:
        A curve that does not fall (:meth:`ThroughputCurve.smoothed`).

    Raises:
        ValueError: more tokens than so many sequences take in a step.
    """
    size = drafter.config.dspark_block_size + 1
    counts = [count for count in counts if count <= requests * size]
    cache = _filled(model, drafter, context, requests, size)
    seconds = []
    for count in counts:
        rows = _spread(count, requests, size)
        fed = [torch.ones(row, dtype=torch.int64) for row in rows]

        def step(fed: list[torch.Tensor] = fed, rows: list[int] = rows) -> None:
            model.extend(fed, cache, {row: tokens for row, tokens in enumerate(rows) if tokens})
            for row in range(requests):
                cache.truncate(row, context)

        seconds.append(_median(step, repeats, model.device))
    return ThroughputCurve(tuple(counts), tuple(seconds)).smoothed()


def profile_drafts(
    model: Model, drafter: Drafter, context: int, requests: Sequence[int] = _REQUESTS, repeats: int = 5
) -> ThroughputCurve:
    """Seconds of a draft by the sequences that are drafted for, the Markov pass included; as :func:`profile_steps`."""
    cache = _filled(model, drafter, context, max(requests), 1)
    seconds = [
        _median(lambda count=count: drafter.draft(model, cache, [1] * count, range(count)), repeats, model.device)
        for count in requests
    ]
    return ThroughputCurve(tuple(requests), tuple(seconds)).smoothed()


def _filled(model: Model, drafter: Drafter, context: int, requests: int, spare: int) -> Cache:
    cache = drafter.new_cache(model, context + spare, requests, rollback=spare)
    ids = torch.randint(0, model.config.vocab_size, (context,), generator=torch.Generator().manual_seed(0))
    model.prefill([ids, *[ids[:0]] * (requests - 1)], cache, decoder="bounded")
    for row in range(1, requests):
        cache.fork(0, row)
    return cache


def _spread(count: int, requests: int, most: int) -> list[int]:
    """Tokens of each sequence: one each first, then evenly more."""
    rows = [count // requests + (row < count % requests) for row in range(requests)]
    if max(rows) > most:
        raise ValueError(f"{count} tokens for {requests} sequences; expected {requests * most} or fewer")
    return rows


def _median(step: Callable[[], object], repeats: int, device: torch.device) -> float:
    found = []
    # The first is for what is set up once.
    for _ in range(repeats + 1):
        began = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - began)
    return statistics.median(found[1:])
