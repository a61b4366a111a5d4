"""Exercises of chapter 14, what comes after one GPU."""

from __future__ import annotations

from ds41.config import ModelConfig
from ds41.deployment import spread
from ds41.engine_check import fit_requests
from ds41.engine_facts import recorded_logs
from ds41.engine_storages import stored_ways
from ds41.exercises import close, exercise

GIB = 2**30


@exercise("14.1")
def weights_of_one_gpu(answer: object) -> str | None:
    """GiB of weights on each of 16 GPUs, attention whole on each, no drafter."""
    config = ModelConfig.flash()
    expected = spread(config, 16, "data", drafter=False)
    if close(answer, expected.nbytes / GIB):
        return None
    if close(answer, spread(config, 16, drafter=False).nbytes / GIB):
        return "That is tensor parallelism, which splits what is no expert as well."
    if close(answer, expected.experts / GIB):
        return "Those are the experts. What does every GPU keep beside them?"
    return "A sixteenth of the experts, and all of the rest."


@exercise("14.2")
def a_token_on_eight_gpus(answer: object) -> str | None:
    """Bytes that one token takes in all of a tensor-parallel group of 8, V4's rows and FP8 keys."""
    each = next(way for way in stored_ways(ModelConfig.flash()) if way.name == "v4-fp8keys").bytes_per_token
    if close(answer, 8 * each, 0):
        return None
    if close(answer, each, 0):
        return "That is one GPU of the group. What do the other seven hold?"
    if close(answer, 8 * 890, 0):
        return "Those are the trained formats. Which rows does this engine write?"
    return "Two and a half entries of the engine's two records, and a head that cannot be split."


@exercise("14.3")
def what_a_request_is_charged(answer: object) -> str | None:
    """GiB that an engine charges one request, from a recorded log."""
    check = recorded_logs()["v41-h100-tp8"].check()
    expected = check.request_bytes / GIB
    if close(answer, expected):
        return None
    if close(answer, check.printed_rate):
        return "That is the memory by token. How many tokens has a request?"
    if close(answer, check.expected.request_bytes / GIB):
        return "That is what the ledger makes of it. What does the engine charge?"
    return "The memory holds a certain number of requests. The log tells both."


@exercise("14.4")
def printed_size(answer: object) -> str | None:
    """A function from memory, request length, bytes per token and fixed bytes to the size that vLLM prints."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for memory, length, rate, fixed in ((10**10, 1_000, 890, 0), (10**10, 1_000, 890, 10**6), (4e9, 10**6, 1790, 3e8)):
        got = answer(memory, length, rate, fixed)
        expected = length * memory / (rate * length + fixed)
        if close(got, expected, 1e-4):
            continue
        if close(got, memory / rate, 1e-4):
            return "It forgets what a request costs whatever its length."
        if close(got, memory / (rate * length + fixed), 1e-4):
            return "Those are requests. The engine prints tokens."
        return (
            f"With {memory:,.0f} bytes, {length:,} tokens a request, {rate} a token and {fixed:,.0f} fixed it is wrong."
        )
    return None


@exercise("14.5")
def rate_from_two_starts(answer: object) -> str | None:
    """Bytes per token from two recorded starts of one engine."""
    checks = [recorded_logs()[key].check() for key in ("v41-spark-300k", "v41-spark-1m")]
    cost = fit_requests((check.log.request_tokens, check.request_bytes) for check in checks)
    if close(answer, cost.rate, 0.02):
        return None
    if any(close(answer, check.printed_rate, 0.005) for check in checks):
        return "One start alone mixes what a token costs with what a request costs."
    if close(answer, cost.fixed, 0.2):
        return "That is what a request costs beside its tokens."
    return "Two lengths, two costs: how much more does the longer request cost, by token?"
