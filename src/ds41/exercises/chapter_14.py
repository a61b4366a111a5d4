"""Exercises of chapter 14, what comes after one GPU."""

from __future__ import annotations

from ds41 import weights
from ds41.config import ModelConfig
from ds41.deployment import spread
from ds41.engine_check import fit_requests
from ds41.engine_facts import recorded_logs
from ds41.engine_storages import stored_ways
from ds41.exercises import close, exercise
from ds41.language import say

GIB = 2**30
# Memory, length of a request, bytes a token and bytes a request whatever its length.
_ENGINES = ((10**10, 1_000, 890, 0), (10**10, 1_000, 890, 10**6), (4e9, 10**6, 1790, 3e8))


@exercise(
    "14.1",
    level="easy",
    minutes=5,
    hints=(
        'This is data-parallel attention. The section "One head cannot be split" says what stays spread then, and '
        "what every GPU has whole.",
        "The table of the released checkpoint has the parts and where each has to be. Divide one of them, and add "
        "what else has to be on GPUs and is not optional.",
    ),
)
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
    if close(answer, expected.nbytes / 1e9):
        return "Those are GB of 10^9 bytes. A GiB is 2^30 bytes."
    if close(answer, expected.nbytes):
        return "Right in bytes; the question asks for GiB."
    if close(answer, spread(config, 16, "data").nbytes / GIB):
        return "That counts the drafter, too."
    if close(answer, (expected.nbytes + weights.vision(config).nbytes) / GIB, 0.002):
        return "That counts the vision tower, too."
    if close(answer, spread(config, 16, "data", drafter=False, engram=True).nbytes / GIB):
        return "Engram's tables lie in host memory here."
    if close(answer, (expected.nbytes - _projections(config)) / GIB):
        return "Engram's tables lie in host memory, its projections do not."
    return "A sixteenth of the experts, and all of the rest."


def _projections(config: ModelConfig) -> int:
    return len(config.engram_layer_ids) * weights.engram_projection(config).nbytes


@exercise(
    "14.2",
    level="easy",
    minutes=4,
    hints=(
        'The section "One head cannot be split" says what each GPU of a tensor-parallel group holds of a latent cache.',
        "Find how many entries a token has on average over all sources, from their ratios; an entry here is a row and "
        "a key. Then count the GPUs that hold them.",
    ),
)
def a_token_on_eight_gpus(answer: object) -> str | None:
    """Bytes that one token takes in all of a tensor-parallel group of 8, V4's rows and FP8 keys."""
    way = next(way for way in stored_ways(ModelConfig.flash()) if way.name == "v4-fp8keys")
    each = way.bytes_per_token
    if close(answer, 8 * each, 0):
        return None
    if close(answer, each, 0):
        return "That is one GPU of the group. What do the other seven hold?"
    if close(answer, each / 8, 0):
        return "That splits the cache over the group. A latent cache has one head."
    if close(answer, 8 * 890, 0):
        return "Those are the trained formats. Which rows does this engine write?"
    if close(answer, 8 * (584 + 132), 0):
        return "That is one entry on all eight. How many entries has a token?"
    if close(answer, 8 * each * 584 / (584 + 132), 0.001):
        return "The keys are missing."
    return "Two and a half entries of the engine's two records, and a head that cannot be split."


@exercise(
    "14.3",
    level="easy",
    minutes=4,
    hints=(
        'The section "Reading a log" says what the printed number of tokens counts.',
        "Turn the printed tokens into full-length requests. Those share the printed memory.",
    ),
)
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
    if close(answer, check.memory_bytes / check.request_bytes):
        return "That is how many requests the memory holds. How large is one of them?"
    if close(answer, 1 / expected):
        return "That is how many requests a GiB holds. Turn it round."
    if any(close(answer, check.request_bytes / unit) for unit in (1, 1e6, 1e9, 2**20)):
        return "The size is right, the unit is not: the question asks for GiB."
    return "The memory holds a certain number of requests. The log tells both."


@exercise(
    "14.4",
    level="medium",
    minutes=7,
    hints=(
        'The section "Reading a log" says what vLLM counts when it prints a cache size; exercise 14.3 goes the other '
        "way.",
        "First the bytes that one full-length request costs, then how many of them the memory holds, in fractions, "
        "then how many tokens those have.",
    ),
)
def printed_size(answer: object) -> str | None:
    """A function from memory, request length, bytes per token and fixed bytes to the size that vLLM prints."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for memory, length, rate, fixed in _ENGINES:
        try:
            got = answer(memory, length, rate, fixed)
        except Exception as error:
            return say(
                "It stops with {error}. It is called with four numbers: memory, length, bytes a token, fixed bytes.",
                error=repr(error),
            )
        request = rate * length + fixed
        if close(got, length * memory / request, 1e-4):
            continue
        if got is None:
            return "It returns None. Does it end with a return?"
        if close(got, memory / rate, 1e-5):
            return "It forgets what a request costs whatever its length."
        if close(got, memory / request, 1e-4):
            return "Those are requests. The engine prints tokens."
        if close(got, memory / (rate + fixed), 1e-4):
            return "A request pays the fixed bytes once, not once for each of its tokens."
        if close(got, (memory - fixed) / rate, 1e-5):
            return "Every request pays the fixed bytes, not the first one alone."
        if close(got, length * (memory // request), 1e-4):
            return "Those are whole requests. vLLM counts the last one in part, too."
        return say(
            "With {memory:,.0f} bytes, {length:,} tokens a request, {rate} a token and {fixed:,.0f} fixed it is "
            "wrong: it gives {got!r}.",
            memory=memory,
            length=length,
            rate=rate,
            fixed=fixed,
            got=got,
        )
    return None


@exercise(
    "14.5",
    level="medium",
    minutes=8,
    hints=(
        "Exercise 14.3 gives what an engine charges one request. Do that for both starts.",
        "A request costs a fixed part and a part that grows with its tokens. The two starts are two equations with "
        "these two unknowns; engine_check.fit_requests solves them as well.",
    ),
)
def rate_from_two_starts(answer: object) -> str | None:
    """Bytes per token from two recorded starts of one engine."""
    checks = [recorded_logs()[key].check() for key in ("v41-spark-300k", "v41-spark-1m")]
    cost = fit_requests((check.log.request_tokens, check.request_bytes) for check in checks)
    if close(answer, cost.rate, 0.02):
        return None
    if any(close(answer, check.printed_rate, 0.005) for check in checks):
        return "One start alone mixes what a token costs with what a request costs."
    if close(answer, cost.rate * 1e9 / GIB, 0.02):
        return "That takes a GiB for 10^9 bytes. It is 2^30."
    if close(answer, cost.rate / GIB, 0.02):
        return "That is in GiB a token; the question asks for bytes."
    if close(answer, cost.fixed, 0.2) or close(answer, cost.fixed / GIB, 0.2):
        return "That is what a request costs beside its tokens."
    return "Two lengths, two costs: how much more does the longer request cost, by token?"
