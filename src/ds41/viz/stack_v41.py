"""What V4.1-Flash does with one turn, for each phase, cache and context; bytes and tokens by the rules of serving.

Source: report sections 2.2, 3.2.1 and 3.2.2.
"""

from __future__ import annotations

from ds41 import flops, weights
from ds41.cache import PageLayout
from ds41.config import ModelConfig
from ds41.deployment import smallest
from ds41.engram import lookups
from ds41.ledger import bytes_per_token, window_bytes
from ds41.reads import decode_reads
from ds41.records import exact
from ds41.roofline import DEVICES
from ds41.vision.sizes import plan_image
from ds41.viz.replay_timeline import resume
from ds41.viz.serving_steps import Stack
from ds41.viz.serving_trace import ID_BYTES, IN_STORE, IN_WINDOW_POOL
from ds41.viz.stack_flows import ABSENT, CACHES, RESTS, SETTLED, WORKS, State, Travel, Turn
from ds41.viz.style import readable_bytes

_BF16_BYTES = 2
_DEVICE = "H200"


def v41_state(config: ModelConfig, turn: Turn, phase: str, cache: str) -> State:
    """This model's state; the pool keeps the windows of all layers, as :class:`ds41.serving.Engine` does."""
    stack = Stack(config, "all", PageLayout.of(config))
    return (_prefill if phase == "prefill" else _decode)(stack, turn, cache)


def _prefill(stack: Stack, turn: Turn, cache: str) -> State:
    config, end = stack.config, turn.context
    run = resume(config, end, 0 if cache == "miss" else turn.known, "all" if cache == "windows" else "gone")
    fed, tail, source = end - run.start, end - run.tail, config.decoder_start
    travels = [
        Travel("client", "endpoint", "tokens", amount=f"{end:,}"),
        Travel("endpoint", "prefill", "ids", end * ID_BYTES),
    ]
    parts = _rest(stack, turn, cache)
    if config.vision is not None:
        wide, high = turn.picture
        span = plan_image(wide, high, config.vision).span_tokens
        parts["vision"] = (WORKS, f"{span:,} vectors")
        travels += [
            Travel("endpoint", "vision", "pixels", amount=f"{wide:,} × {high:,}"),
            Travel("vision", "prefill", "vectors", span * config.hidden_size * _BF16_BYTES),
        ]
    if run.hit:
        travels.append(Travel("store", "prefill", "pages", stack.pages(0, run.hit), kind="main"))
    if cache == "windows":
        travels.append(Travel("windows", "prefill", "windows", stack.pooled(turn.known), kind="window"))
    if rows := stack.engram(run):
        travels.append(Travel("engram", "prefill", "rows", rows, kind="memory"))
    stored, handed = stack.written(run.hit, end), stack.handed(0, end)[1] + stack.private(end)
    travels += [
        Travel("prefill", "store", "pages", stored, kind="main"),
        Travel("prefill", "decode", "handover", handed, kind="main"),
    ]
    again = f"{run.replayed:,} again + {end - run.hit:,} new" if run.replayed else f"{fed:,} tokens"
    parts |= {
        "prefill": (WORKS, ""),
        "encoder": (WORKS, f"{again}, layers 0–{source - 1}"),
        "tail": (WORKS, f"the last {tail:,}, layers {source}–{config.num_hidden_layers - 1}"),
        "keys": (WORKS, f"{readable_bytes(stack.pages(0, end))}, {float(bytes_per_token(config)):g} B a token"),
        "rings": (WORKS, f"{readable_bytes(window_bytes(config))} at any length"),
        "store": (WORKS, f"{readable_bytes(stack.pages(0, end))} of this turn, {IN_STORE}"),
    }
    cost = flops.prefill(config, fed, "bounded", cached=run.start).total
    cold = flops.prefill(config, end, "full").total
    found = {
        "miss": f"No tier knows the prompt, so all {end:,} tokens run through the encoder.",
        "replay": f"The pages of {run.hit:,} tokens come back from disk; their windows are gone. The last "
        f"{run.replayed:,} of them run again to make new ones, beside {end - run.hit:,} new tokens.",
        "windows": f"The pages of {run.hit:,} tokens come back from disk and their windows from memory. Only "
        f"{end - run.hit:,} new tokens run.",
    }[cache]
    text = (
        f"<b>Prefill, {CACHES[cache].lower()}.</b> {found} Layer {source} writes keys for every new token; "
        f"beyond that the decoder runs on the last {tail:,}. That is {_share(cost, cold)} of the operations that all "
        "layers on all tokens would take."
    )
    return State(parts, tuple(travels), text)


def _decode(stack: Stack, turn: Turn, cache: str) -> State:
    config, end = stack.config, turn.context
    reads = decode_reads(config, end)
    main, index, ring = (sum(getattr(read, kind) for read in reads) for kind in ("main", "index", "window"))
    token, drafts = exact(bytes_per_token(config)), config.dspark_block_size if config.num_nextn_predict_layers else 0
    steps = f"1–{1 + drafts} tokens" if drafts else "1 token"
    held = stack.pages(0, end) + window_bytes(config)
    parts = _rest(stack, turn, cache)
    parts |= {
        "decode": (WORKS, ""),
        "layers": (WORKS, f"layers 0–{config.num_hidden_layers - 1}, token by token"),
        "read": (WORKS, f"reads {readable_bytes(index)} of keys, {readable_bytes(main)} of records"),
        "turning": (WORKS, f"reads {readable_bytes(ring)} a token"),
        "windows": (WORKS, f"{readable_bytes(stack.pooled(end))}, {IN_WINDOW_POOL}"),
        "store": (WORKS, f"{readable_bytes(stack.pages(0, end))} and the answer, {IN_STORE}"),
    }
    travels = [
        Travel("decode", "endpoint", "a step", amount=steps),
        Travel("endpoint", "client", "a step", amount=steps),
        Travel("decode", "store", "pages", token, kind="main", each="a token"),
        Travel("decode", "windows", "windows", stack.pooled(end), kind="window", each="at the end"),
    ]
    if drafts:
        parts["drafter"] = (WORKS, f"{drafts} guesses, verified in one step")
    if rows := sum(read.nbytes for read in lookups(config)):
        travels.append(Travel("engram", "decode", "rows", rows, kind="memory", each="a token"))
    text = (
        f"<b>Decode.</b> Each token runs through all {config.num_hidden_layers} layers and reads "
        f"{readable_bytes(main + index + ring)} of pages and windows; {readable_bytes(held)} are there, and what is "
        f"borrowed is read by every borrower. It adds {token:g} B. When the turn ends, its windows wait "
        f"{IN_WINDOW_POOL} in memory, and its pages stay on disk. {SETTLED}"
    )
    return State(parts, tuple(travels), text)


def _rest(stack: Stack, turn: Turn, cache: str) -> dict[str, tuple[str, str]]:
    """What holds in both phases, and what a part says while it rests."""
    config = stack.config
    kept = f"{readable_bytes(stack.pooled(turn.known))}, {IN_WINDOW_POOL}"
    pool = {"windows": (WORKS, kept), "replay": (RESTS, "gone after minutes"), "miss": (RESTS, "nothing of this one")}
    experts = f"{config.num_experts_per_tok} of {config.n_routed_experts} a token"
    fewest = smallest(config, DEVICES[_DEVICE], tokens=turn.context)
    parts = {
        "client": (WORKS, ""),
        "endpoint": (WORKS, ""),
        "mixing": (WORKS, f"{config.hc_mult} streams"),
        "experts": (WORKS, experts),
        "kernels": (WORKS, "read stored codes"),
        "gpus": (WORKS, f"{fewest.gpus} × {_DEVICE} at least"),
        "windows": pool[cache],
    }
    if config.engram_layer_ids:
        parts["engram"] = (WORKS, f"{readable_bytes(weights.engram_table(config).nbytes)}, read ahead")
    for part, there in (
        ("engram", config.engram_layer_ids),
        ("drafter", config.num_nextn_predict_layers),
        ("vision", config.vision),
    ):
        if not there:
            parts[part] = (ABSENT, "not in this configuration")
    return parts


def _share(part: int, whole: int) -> str:
    share = 100 * part / whole
    return f"{share:.2g} %" if share < 99.5 else f"{share:.3g} %"
