"""Exercises of chapter 01, what bytes decide."""

from __future__ import annotations

from bisect import bisect

from ds41 import ledger, reads, weights
from ds41.config import ModelConfig
from ds41.economics import GIB, MILLION_TOKENS, capacity, even_split_turn, persistence, share_for_ratio
from ds41.exercises import close, exercise
from ds41.language import say
from ds41.ledger import Storage
from ds41.systems import from_config, system

SESSION_TOKENS = 65_536
POOL_BYTES = 40 * GIB
BATCH_TOKENS = 262_144
# Where the parts of the answer to 01.5 switch on, and the longest context.
CONTEXTS = (0, 128, 512, 513, 1_024, 1_026, 4_096, 16_384, 20_000, 2**20)


@exercise(
    "01.1",
    level="easy",
    minutes=5,
    hints=(
        "The formula of the section on prediction has both parts of what a sequence keeps. In the library they are "
        "ledger.global_bytes and ledger.window_bytes.",
        "economics.GIB turns the pool into bytes. Mind that the last session either fits whole or stays outside.",
    ),
)
def sessions_in_a_pool(answer: object) -> str | None:
    """Whole sessions of 65,536 tokens, windows included, in 40 GiB."""
    config = ModelConfig.flash()
    fits = capacity(from_config(config), POOL_BYTES, SESSION_TOKENS)
    if close(answer, int(fits.live_contexts), 0):
        return None
    if close(answer, float(fits.contexts), 0.0005):
        return "That counts the global KV alone; each session keeps its windows too."
    one_layer = ledger.window_bytes(config) // config.num_hidden_layers
    if close(answer, POOL_BYTES / (ledger.global_bytes(config, SESSION_TOKENS) + one_layer), 0.001):
        return "That counts the window of one layer; every layer has one."
    if close(answer, float(fits.live_contexts), 0.002):
        return "Nearly: a session fits whole or not at all."
    if close(answer, 40e9 / (POOL_BYTES / float(fits.live_contexts)), 0.002):
        return "A GiB is 2^30 bytes, not 10^9."
    return "Divide the pool by what one session keeps: its global KV and all of its windows."


@exercise(
    "01.2",
    level="medium",
    minutes=8,
    hints=(
        'The section "Where it would become true" finds such a batch for a million tokens, with bisect.',
        "KV reads grow in proportion to the batch; weights grow more slowly, as sequences share experts. Write the "
        "difference as a function of the batch, and let bisect find where it becomes positive.",
    ),
)
def batch_where_kv_outweighs_weights(answer: object) -> str | None:
    """Smallest batch whose decode step reads more KV than weights, at 262,144 tokens."""
    if callable(answer):
        return "Give the batch, not a function of it."
    config = ModelConfig.flash()
    if close(answer, _overtakes(config, BATCH_TOKENS), 0.002):
        return None
    if close(answer, _overtakes(config, MILLION_TOKENS), 0.002):
        return "That is the batch for a million tokens; shorter contexts read less KV each."
    kv = reads.kv_bytes_read(config, BATCH_TOKENS)
    if close(answer, weights.read_per_step(config) / kv, 0.02):
        return "Further sequences pick further experts: the weights of one sequence are not those of a batch."
    if close(answer, weights.read_per_step(config) / ledger.global_bytes(config, BATCH_TOKENS), 0.02):
        return "A step does not read all that is kept, and a batch reads more weights than one sequence."
    return "Compare batch × kv_bytes_read with read_per_step(config, batch) for growing batches."


def _overtakes(config: ModelConfig, tokens: int) -> int:
    kv = reads.kv_bytes_read(config, tokens)
    return bisect(range(10**6), 0, lo=1, key=lambda batch: batch * kv - weights.read_per_step(config, batch))


@exercise(
    "01.3",
    level="medium",
    minutes=8,
    hints=(
        "The section on persistence says what V4 and V4.1 store after a turn. v4.window_bytes is one checkpoint of "
        "all windows.",
        "For each new token V4's global KV stays below eight times V4.1's, by the same number of bytes. The checkpoint "
        "has to fill this gap. For how many tokens does it last?",
    ),
)
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
    if close(answer, float(even_split_turn(checkpoints=2))):
        return "That is where two checkpoints are half of the store; here it is one, and the ratio is 8."
    even = even_split_turn(checkpoints=1)
    if close(answer, float(even)):
        ratio = float(persistence(config, even, checkpoints=1).ratio)
        return say("There the windows are half of the store and the ratio is {ratio:.1f}; go on to 8.", ratio=ratio)
    if close(answer, expected * from_config(config).window_bytes / system("deepseek-v4-flash").window_bytes):
        return "V4 stored its own windows, which are larger than those of V4.1."
    return "Set (global + windows) of V4 equal to eight times V4.1's global KV, and solve for the tokens."


@exercise(
    "01.4",
    level="medium",
    minutes=8,
    hints=(
        "v4.formula shows which records make up V4-Flash's bytes per token. ledger.Storage.published(config) has "
        "V4.1's records.",
        "Leave V4-Flash its layers and its ratios, and put the smaller records in. Then divide by ours.bytes_per_token "
        "again.",
    ),
)
def factor_at_equal_formats(answer: object) -> str | None:
    """V4-Flash's bytes per token over V4.1-Flash's, both in V4.1's formats."""
    ours, v4, alike = (
        system("deepseek-v4.1-flash"),
        system("deepseek-v4-flash"),
        system("deepseek-v4-flash", "fp4"),
    )
    left = float(alike.bytes_per_token / ours.bytes_per_token)
    if close(answer, left):
        return None
    if close(answer, 1 / left):
        return "That is V4.1-Flash over V4-Flash; turn it round."
    if close(answer, float(v4.bytes_per_token / ours.bytes_per_token)):
        return "That is the whole factor, with each in its own formats."
    if close(answer, float(v4.bytes_per_token / alike.bytes_per_token)):
        return "That is the part that the formats account for; what remains without it?"
    if close(answer, float(alike.bytes_per_token / v4.bytes_per_token)):
        return "That is a share of the factor; give the factor that is left."
    if close(answer, float(alike.bytes_per_token)):
        return "Those are bytes per token of V4-Flash; how many times V4.1-Flash's are they?"
    storage = Storage.published(ModelConfig.flash())
    if close(answer, float(v4.bytes_per_token / system("deepseek-v4.1-flash", "fp8").bytes_per_token), 0.02):
        return say(
            "That stores V4.1 larger; store V4-Flash smaller instead: {record} bytes a record, {key} a key.",
            record=storage.main.nbytes,
            key=storage.index.nbytes,
        )
    sparse, _, dense = v4.planes
    return say(
        "V4-Flash: {sparse} layers keep an entry and a key per {few} tokens, {dense} layers an entry per {many}.",
        sparse=sparse.layers,
        few=sparse.ratio,
        dense=dense.layers,
        many=dense.ratio,
    )


@exercise(
    "01.5",
    level="hard",
    minutes=15,
    hints=(
        "config.layers is the plan: owns_selection says which layers score, ratio how many tokens an entry stands for, "
        "and candidate_source which of them score a pool only.",
        "A layer sees as many entries as there are whole groups of its ratio. A Reindex layer scores no more of them "
        "than config.candidate_topk_blocks blocks of config.candidate_block_size.",
        "A layer that sees config.index_topk entries or fewer takes them all, without reading a key. Decide this for "
        "each layer by itself, before you add up.",
    ),
)
def index_bytes_of_a_step(answer: object) -> str | None:
    """A function from the context to the bytes of index keys that one decode step reads."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    config = ModelConfig.flash()
    for tokens in CONTEXTS:
        expected = sum(read.index for read in reads.decode_reads(config, tokens))
        try:
            got = answer(tokens)
        except Exception as error:  # Whatever a reader's function raises is no fault of the check.
            return say("For {tokens:,} tokens it raises {error!r}.", tokens=tokens, error=error)
        if got is None:
            return say("For {tokens:,} tokens it gives None: is a return missing?", tokens=tokens)
        if not close(got, expected, 0):
            why = _reason(tokens, config, got, expected)
            return say("For {tokens:,} tokens it gives {got!r}. {why}", tokens=tokens, got=got, why=why)
    return None


def _reason(tokens: int, config: ModelConfig, got: object, expected: int) -> str:
    key = Storage.published(config).index.nbytes
    keys = expected // key
    if expected and close(got, keys, 0):
        return say("That counts keys; how many bytes has each?")
    if expected and close(got, keys * config.index_head_dim // 2, 0):
        return say("A key is stored with its scales.")
    if tokens <= config.index_topk:
        return say("Up to {most} entries are all taken, and none needs a score.", most=config.index_topk)
    if tokens <= 2 * config.index_topk:
        return say(
            "A layer with two tokens an entry sees half as many, and takes up to {most} unscored.",
            most=config.index_topk,
        )
    pool = config.candidate_topk_blocks * config.candidate_block_size
    if tokens <= pool:
        return say("Four Full layers score, three of them over half as many entries, and four Reindex layers.")
    return say("Reindex layers score at most the candidate pool of {pool:,} entries.", pool=pool)
