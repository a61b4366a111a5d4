"""One token's way through the stack: its bytes at each stop, from the encoder's hidden row to the disk.

The numbers are means over tokens: a source of ratio 2 writes one entry for two of them. Source: report sections 2.2 to
2.4.4, 3.2.1 and 3.2.2; V4 report section 3.5.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ds41 import ledger
from ds41.cache import PageLayout
from ds41.config import ModelConfig
from ds41.engram import lookups
from ds41.ledger import Storage
from ds41.records import Plane, Record, exact
from ds41.systems import System
from ds41.viz.serving_trace import IN_STORE, IN_WINDOW_POOL

_BF16_BYTES = 2


@dataclass(frozen=True)
class Stop:
    """One stop.

    part: where it is. name: a few words. text: what happens, as HTML. bars: bytes there by kind, drawn one after the
    other: "main", "index", "window", "memory", or "neutral" for what only passes through; None where they are not
    known. so_far: what has been read and kept until then, in words. edge: the arrow that it came along.
    """

    part: str
    name: str
    text: str
    bars: tuple[tuple[str, Fraction], ...] | None
    so_far: str
    edge: str = ""

    @property
    def nbytes(self) -> Fraction | None:
        return None if self.bars is None else sum((count for _, count in self.bars), Fraction(0))


def v41_path(config: ModelConfig) -> tuple[Stop, ...]:
    """This model's stops.

    Raises:
        ValueError: the configuration keeps no global KV.
    """
    owners = [plan for plan in config.layers if plan.owns_kv]
    if not owners:
        raise ValueError("kv_source_layer_ids is empty: no token of this configuration leaves anything to follow")
    storage, layout = Storage.published(config), PageLayout.of(config)
    entries, rope = ledger.entries_per_token(config), config.qk_rope_head_dim
    hidden, latent = config.hidden_size * _BF16_BYTES, config.head_dim * _BF16_BYTES
    main, index = entries * storage.main.nbytes, entries * storage.index.nbytes
    kept, entry = main + index, ledger.entry_bytes(config)
    ring = Fraction(config.num_hidden_layers * storage.window.nbytes)
    by_source = ledger.by_source(config)
    layers = ", ".join(str(plan.index) for plan in owners)
    shares = " + ".join(f"{number(row.bytes)}" for row in by_source)
    ratios = ", ".join(f"{tokens_of(plan.ratio)} in layer {plan.index}" for plan in owners)
    read = sum(one.nbytes for one in lookups(config))
    before = f"{read:,} B read, " if read else ""
    stops = []
    if read:
        where = " and ".join(str(one.layer) for one in lookups(config))
        rows = " + ".join(f"{one.rows} × {one.row_bytes}" for one in lookups(config))
        stops.append(
            Stop(
                "engram",
                "Engram rows, read",
                f"The token’s id and its neighbours’ say which rows layers {where} need, before any layer has run: "
                f"{rows} B come from host memory. They are only read; nothing is written back.",
                (("memory", Fraction(read)),),
                f"{before}nothing kept",
                "engram-prefill",
            )
        )
    stops += [
        Stop(
            "encoder",
            "Hidden row",
            f"The encoder carries the token as {config.hidden_size:,} channels of two bytes, in {config.hc_mult} "
            "parallel streams that are one row wherever a layer reads them. Kept for as long as the layer runs.",
            (("neutral", Fraction(hidden)),),
            f"{before}nothing kept",
        ),
        Stop(
            "encoder",
            "Latents of the sources",
            f"{len(owners)} layers ({layers}) project their row to one latent of {config.head_dim} channels, key "
            f"and value in one: {latent:,} B each in bf16. Other layers have none.",
            (("neutral", entries * latent),),
            f"{before}nothing kept",
        ),
        Stop(
            "encoder",
            "Rotated",
            f"RoPE turns the last {rope} of the {config.head_dim} channels by the position of the group’s first token. "
            "Not one byte more or less; the norm stays as it was.",
            (("neutral", entries * latent),),
            f"{before}nothing kept",
        ),
        Stop(
            "encoder",
            "FP4",
            f"Four bits a channel and a scale byte for 16: {_parts(storage.main)}, "
            f"{storage.main.nbytes} B a main record instead of {latent:,}.",
            (("main", main),),
            f"{before}{number(main)} B kept",
        ),
        Stop(
            "encoder",
            "Index keys beside them",
            f"From the same latent comes a key of {config.index_head_dim} channels to be found by: "
            f"{_parts(storage.index)}, {storage.index.nbytes} B. Together they are an entry: {storage.main.nbytes} + "
            f"{storage.index.nbytes} = {entry} B.",
            (("main", main), ("index", index)),
            f"{before}{number(kept)} B kept",
        ),
        Stop(
            "tail",
            "Four sources, one token" if len(owners) == 4 else "All sources, one token",
            f"One entry of {entry} B stands for as many tokens as its source compresses: {ratios}. So {shares} = "
            f"{number(kept)} B a token. Layer {owners[-1].index} writes for all of them, although it attends for the "
            "last window only.",
            tuple((kind, Fraction(part)) for plan in owners for kind, part in _split(config, plan.index)),
            f"{before}{number(kept)} B kept",
        ),
        Stop(
            "keys",
            "In its page",
            f"{layout.page_tokens} tokens share a page of {number(kept)} × {layout.page_tokens} = {layout.nbytes:,} B, "
            "main records and index keys of all sources together. Nothing is padded.",
            (("main", main), ("index", index)),
            f"{before}{number(kept)} B kept",
        ),
        Stop(
            "rings",
            "Beside it: window rows",
            f"Each of the {config.num_hidden_layers} layers also keeps {storage.window.nbytes} B of the token in a "
            f"ring, and overwrites them {config.sliding_window} tokens later.",
            (("window", ring),),
            f"{before}{number(kept)} B kept, {number(ring)} B for {config.sliding_window} tokens",
        ),
        Stop(
            "read",
            "Handed over",
            "The page goes to a decode worker as it is, byte by byte, with the windows of the last "
            f"{config.sliding_window} tokens. There every later token may select the entry.",
            (("main", main), ("index", index)),
            f"{before}{number(kept)} B kept, in two places",
            "prefill-decode",
        ),
        Stop(
            "store",
            "On disk",
            f"The same page lies in the prefix store for {IN_STORE}: {number(kept)} B of it are this token. Whoever "
            "sends this beginning again gets it back.",
            (("main", main), ("index", index)),
            f"{before}{number(kept)} B on disk",
            "prefill-store",
        ),
        Stop(
            "windows",
            "The windows’ end",
            f"If the token is among the last {config.sliding_window} when the turn ends, its window rows wait "
            f"{IN_WINDOW_POOL} in host memory. No window row reaches the disk: {config.sliding_window} tokens run "
            "again instead.",
            (("window", ring),),
            f"{before}{number(kept)} B on disk, no window row among them",
            "decode-windows",
        ),
    ]
    return tuple(stops)


def v4_path(theirs: System) -> tuple[Stop, ...]:
    """V4-Flash's stops, as far as they are known here."""
    main = [plane for plane in theirs.planes if plane.component == "main"]
    index = [plane for plane in theirs.planes if plane.component == "index"]
    entries = sum((Fraction(plane.layers, plane.ratio) for plane in main), Fraction(0))
    kept_main, kept_index = (sum((p.bytes_per_token for p in planes), Fraction(0)) for planes in (main, index))
    kept, window = theirs.bytes_per_token, theirs.window
    ring = Fraction(window.layers * window.record.nbytes)
    latent, record = main[0].record.parts[0].count + main[0].record.parts[1].count, main[0].record
    both = (("main", kept_main), ("index", kept_index))
    owners = " and ".join(f"{plane.layers} layers ({plane.name}) one for {tokens_of(plane.ratio)}" for plane in main)
    stored = f"{number(kept)} B kept"
    return (
        Stop(
            "encoder",
            "Hidden row",
            "How wide a row of V4-Flash is, is not among the numbers of this book.",
            None,
            "nothing kept",
        ),
        Stop(
            "encoder",
            "Latents of all layers",
            f"Every layer with a global branch projects for itself: {owners}, {latent} channels each, "
            f"{latent * _BF16_BYTES:,} B in bf16.",
            (("neutral", entries * latent * _BF16_BYTES),),
            "nothing kept",
        ),
        Stop(
            "encoder",
            "FP8, the rotary part in bf16",
            f"{_parts(record)}: {record.nbytes} B a main record instead of {latent * _BF16_BYTES:,}.",
            (("main", kept_main),),
            f"{number(kept_main)} B kept",
        ),
        Stop(
            "encoder",
            "Index keys beside them",
            f"{index[0].layers} layers keep a key to be found by, {index[0].record.nbytes} B for "
            f"{tokens_of(index[0].ratio)}. So {theirs.formula.replace(' / ', '/')} = {number(kept)} B a token.",
            both,
            stored,
        ),
        Stop("keys", "In memory", "How V4’s pages are laid out is not known here; the bytes are.", both, stored),
        Stop(
            "rings",
            "Beside it: window rows",
            f"Each of the {window.layers} layers keeps {window.record.nbytes} B of the token until {window.length} "
            "more have come.",
            (("window", ring),),
            f"{stored}, {number(ring)} B for {window.length} tokens",
        ),
        Stop(
            "read",
            "Handed over",
            "The answer is written from the same entries and windows.",
            both,
            f"{stored}, in two places",
            "prefill-decode",
        ),
        Stop(
            "store",
            "On disk",
            f"The entries lie on disk. So do the window rows, if the token is among the last {window.length} of a "
            "prompt or of an answer: as many bytes again as all of its layers keep.",
            (*both, ("window", ring)),
            f"{number(kept)} B on disk, for the last {window.length} tokens {number(kept + ring)} B",
            "prefill-store",
        ),
    )


def number(value: Fraction | int) -> str:
    """A count of bytes with as many decimals as it has: "890", "3,514.25"."""
    return f"{exact(Fraction(value)):,}"


def tokens_of(ratio: int) -> str:
    return "1 token" if ratio == 1 else f"{ratio} tokens"


def _parts(record: Record) -> str:
    return " + ".join(f"{number(part.nbytes)} B of {part.kind}" for part in record.parts)


def _split(config: ModelConfig, layer: int) -> tuple[tuple[str, Fraction], ...]:
    planes: list[Plane] = [plane for plane in ledger.planes(config) if plane.name == f"layer {layer}"]
    return tuple((plane.component, plane.bytes_per_token) for plane in planes)
