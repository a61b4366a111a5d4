"""Exercises of chapter 01, what bytes decide."""

from __future__ import annotations

from bisect import bisect

from ds41 import ledger, reads, weights
from ds41.config import ModelConfig
from ds41.economics import GIB, capacity, even_split_turn, share_for_ratio
from ds41.exercises import close, exercise
from ds41.systems import from_config, system

SESSION_TOKENS = 65_536
POOL_BYTES = 40 * GIB
BATCH_TOKENS = 262_144
# Where the parts of the answer to 01.5 switch on, and the longest context.
CONTEXTS = (0, 128, 512, 513, 1_024, 1_026, 4_096, 16_384, 20_000, 2**20)


@exercise("01.1")
def sessions_in_a_pool(answer: object) -> str | None:
    """Whole sessions of 65,536 tokens, windows included, in 40 GiB."""
    config = ModelConfig.flash()
    fits = capacity(from_config(config), POOL_BYTES, SESSION_TOKENS)
    if close(answer, int(fits.live_contexts), 0):
        return None
    if close(answer, float(fits.contexts), 0.002):
        return "That counts the global KV alone; each session keeps its windows too."
    if close(answer, float(fits.live_contexts), 0.002):
        return "Nearly: a session fits whole or not at all."
    if close(answer, 40e9 / (POOL_BYTES / float(fits.live_contexts)), 0.002):
        return "A GiB is 2^30 bytes, not 10^9."
    return "Divide the pool by what one session keeps: its global KV and all of its windows."


@exercise("01.2")
def batch_where_kv_outweighs_weights(answer: object) -> str | None:
    """Smallest batch whose decode step reads more KV than weights, at 262,144 tokens."""
    config = ModelConfig.flash()
    kv = reads.kv_bytes_read(config, BATCH_TOKENS)
    batch = bisect(range(10**6), 0, lo=1, key=lambda count: count * kv - weights.read_per_step(config, count))
    if close(answer, batch, 0.002):
        return None
    if close(answer, weights.read_per_step(config) / kv, 0.02):
        return "Further sequences pick further experts: the weights of one sequence are not those of a batch."
    if close(answer, weights.read_per_step(config) / ledger.global_bytes(config, BATCH_TOKENS), 0.02):
        return "A step does not read all that is kept, and a batch reads more weights than one sequence."
    return "Compare batch × kv_bytes_read with read_per_step(config, batch) for growing batches."


@exercise("01.3")
def turn_for_an_eighth(answer: object) -> str | None:
    """New tokens a turn at which one checkpoint of V4's windows makes the store exactly eight times V4.1's."""
    config = ModelConfig.flash()
    share = share_for_ratio(config, 8)
    # A turn of n tokens has the share w / (g n + w), and the even split is w / g.
    expected = float(even_split_turn(checkpoints=1)) * (1 - share) / share
    if close(answer, expected):
        return None
    if close(answer, 2 * expected):
        return "That is for two checkpoints; here it is one."
    if close(answer, float(even_split_turn(checkpoints=1))):
        return "There the windows are half of the store and the ratio is 7.9; go on to 8."
    return "Set (global + windows) of V4 equal to eight times V4.1's global KV, and solve for the tokens."


@exercise("01.4")
def factor_at_equal_formats(answer: object) -> str | None:
    """V4-Flash's bytes per token over V4.1-Flash's, both in V4.1's formats."""
    ours, v4 = system("deepseek-v4.1-flash"), system("deepseek-v4-flash")
    if close(answer, float(system("deepseek-v4-flash", "fp4").bytes_per_token / ours.bytes_per_token)):
        return None
    if close(answer, float(v4.bytes_per_token / ours.bytes_per_token)):
        return "That is the whole factor, with each in its own formats."
    if close(answer, float(v4.bytes_per_token / system("deepseek-v4.1-flash", "fp8").bytes_per_token), 0.02):
        return "That stores V4.1 larger; store V4-Flash smaller instead: 288 bytes a record, 68 a key."
    return "V4-Flash: 21 layers keep an entry and a key per 4 tokens, 20 layers an entry per 128."


@exercise("01.5")
def index_bytes_of_a_step(answer: object) -> str | None:
    """A function from the context to the bytes of index keys that one decode step reads."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    config = ModelConfig.flash()
    for tokens in CONTEXTS:
        expected = sum(read.index for read in reads.decode_reads(config, tokens))
        got = answer(tokens)
        if not close(got, expected, 0):
            return f"For {tokens:,} tokens it gives {got!r}. {_reason(tokens, config)}"
    return None


def _reason(tokens: int, config: ModelConfig) -> str:
    if tokens <= config.index_topk:
        return f"Up to {config.index_topk} entries are all taken, and none needs a score."
    if tokens <= 2 * config.index_topk:
        return f"A layer with two tokens an entry sees half as many, and takes up to {config.index_topk} unscored."
    pool = config.candidate_topk_blocks * config.candidate_block_size
    if tokens <= pool:
        return "Four Full layers score, three of them over half as many entries, and four Reindex layers."
    return f"Reindex layers score at most the candidate pool of {pool:,} entries."
