"""The stops of a request's way, and the sizes of what moves: bytes by the ledger, tokens by the rules of replay."""

from __future__ import annotations

from dataclasses import dataclass

from ds41 import ledger
from ds41.cache import PageLayout
from ds41.config import ModelConfig
from ds41.engram import lookups
from ds41.reads import kv_bytes_read
from ds41.replay import KeptWindows, snapshot_layers
from ds41.serving.handover import CHUNK_PAGES
from ds41.viz.replay_timeline import Resumption
from ds41.viz.serving_trace import EVICTABLE, ID_BYTES, IN_STORE, IN_USE, IN_WINDOW_POOL, Flow, Kept, Step
from ds41.weights import engram_table


@dataclass(frozen=True)
class Stack:
    """A model as it is served: ``windows`` says whose windows the pool keeps, pages are those of ``layout``."""

    config: ModelConfig
    windows: KeptWindows
    layout: PageLayout

    @property
    def tables(self) -> tuple[Kept, ...]:
        """The Engram tables, which stay whatever comes."""
        if not self.config.engram_layer_ids:
            return ()
        return (Kept("engram", engram_table(self.config).nbytes, "weights"),)

    def pages(self, start: int, end: int) -> int:
        """Bytes of global KV that the tokens from ``start`` to ``end`` add to a sequence."""
        return ledger.global_bytes(self.config, end) - ledger.global_bytes(self.config, start)

    def private(self, tokens: int) -> int:
        """Bytes that a sequence of ``tokens`` tokens has beside its pages: windows, open groups, Engram history."""
        state = ledger.open_group_bytes(self.config, tokens) + ledger.engram_history_bytes(self.config)
        return ledger.window_bytes(self.config) + state

    def pooled(self, tokens: int) -> int:
        """Of :meth:`private`, what the window pool keeps between two turns."""
        layers = self.config.num_hidden_layers
        left_out = layers - len(tuple(snapshot_layers(self.config, self.windows)))
        return self.private(tokens) - ledger.window_bytes(self.config) * left_out // layers

    def engram(self, run: Resumption) -> int:
        """Bytes of the Engram rows that a prompt reads: of all tokens fed, above the last source of its tail."""
        source = self.config.decoder_start
        return sum(
            read.nbytes * (run.prompt - (run.start if read.layer <= source else run.tail))
            for read in lookups(self.config)
        )

    def whole_pages(self, tokens: int) -> int:
        """Tokens of the whole pages of a prefix: only those are found in a worker's memory."""
        return tokens // self.layout.page_tokens * self.layout.page_tokens

    def written(self, stored: int, end: int) -> int:
        """Bytes that go to the store when it has ``stored`` tokens of ``end``: a page that was partial goes again."""
        return self.pages(self.whole_pages(stored), end)

    def handed(self, held: int, prompt: int) -> tuple[int, int]:
        """Pages that travel to a worker with those of ``held`` tokens, in whole chunks, and their bytes."""
        first = held // self.layout.page_tokens // CHUNK_PAGES * CHUNK_PAGES
        count = self.layout.pages_for(prompt) - first
        return count, count * self.layout.nbytes


def arrival(prompt: int) -> tuple[Step, Step]:
    """A prompt of text comes in and waits for a prefill worker."""
    request = Step(
        "endpoint",
        "takes the request",
        "The client sends the whole conversation each time. The endpoint knows whose it is by its key, and turns it "
        "into token ids.",
        (Flow("clients", "endpoint", "tokens", amount=f"{prompt:,}"),),
    )
    return request, queued(prompt)


def queued(prompt: int) -> Step:
    """A prompt waits for a prefill worker."""
    return Step(
        "prefill",
        "has it in its queue",
        "It waits for a worker with room. Nothing but its ids travels: the tiers are asked by them.",
        (Flow("endpoint", "prefill", "ids", prompt * ID_BYTES),),
    )


def nothing_found() -> Step:
    """No tier knows any prefix of the prompt."""
    return Step(
        "prefill",
        "looks for the prefix",
        "Neither the worker's memory nor the store has a prefix of these ids.",
        (
            Flow("pages", "prefill", "found", amount="nothing", kind="main"),
            Flow("store", "prefill", "found", amount="nothing", kind="main"),
        ),
    )


def prefill(stack: Stack, run: Resumption) -> tuple[Step, Step]:
    """A prompt is computed, and its pages are stored while it is."""
    config, new = stack.config, run.prompt - run.hit
    source, last = config.decoder_start, config.num_hidden_layers - 1
    tail = run.prompt - run.tail
    again = f"{run.replayed:,} again and " if run.replayed else ""
    computed = f"{again}{new:,} new × layers 0–{source - 1}, the last {tail:,} × layers {source}–{last}"
    read = ""
    if run.replayed:
        replay = f'<i class="ds-swatch ds-hit"></i>{counted(run.replayed)}'
        read = f"{replay} before the hit line run again and write nothing but windows. "
    rows = stack.engram(run)
    flows = (Flow("prefill", "pages", "pages", stack.pages(run.hit, run.prompt), kind="main"),)
    if rows:
        flows += (Flow("engram", "prefill", "rows", rows, kind="memory"),)
    reads = Step(
        "prefill",
        "reads the prompt",
        f"{read}Every new token runs through the encoder and gets its entries of all sources, those of layer {source} "
        f"too; the decoder runs on the last {tail:,}. With the prompt's end the first token of the answer is drawn.",
        flows,
        computed,
        (Kept("pages", stack.pages(0, run.prompt), IN_USE),),
    )
    stores = Step(
        "prefill",
        "stores what is new",
        "New pages go to the store, and those of a long prompt while it is read, so that a crash does not cost all of "
        "it. No windows go there.",
        (Flow("prefill", "store", "pages", stack.written(run.hit, run.prompt), kind="main"),),
        kept=(Kept("store", stack.pages(0, run.prompt), IN_STORE),),
    )
    return reads, stores


def hand_over(stack: Stack, held: int, prompt: int) -> Step:
    """A decode worker takes a prompt over; ``held``: tokens whose pages it has."""
    had = f" It still has those of {held:,} tokens from the turn before." if held else ""
    return Step(
        "decode",
        "takes the sequence over",
        f"{_bundle(stack, held, prompt)} travel to the decode worker.{had} The prefill worker is free for the next "
        "prompt.",
        (handed(stack, held, prompt),),
        kept=(Kept("pages", stack.pages(0, prompt), IN_USE),),
    )


def handed(stack: Stack, held: int, prompt: int) -> Flow:
    """What goes from prefill to decode: pages that a worker with those of ``held`` tokens lacks, and private rows."""
    _, nbytes = stack.handed(held, prompt)
    return Flow("prefill", "decode", "pages, windows", nbytes + stack.private(prompt), kind="main")


def _bundle(stack: Stack, held: int, prompt: int) -> str:
    count, nbytes = stack.handed(held, prompt)
    private = f"{stack.private(prompt):,} B of the sequence's own, windows above all,"
    return f"{count:,} pages of {nbytes // count:,} B and {private}"


def decode(stack: Stack, prompt: int, answer: int, given: int = 0) -> tuple[Step, Step]:
    """An answer is written; ``given``: tokens of it that the client has already."""
    config = stack.config
    step = kv_bytes_read(config, prompt + 1)
    rows = sum(read.nbytes for read in lookups(config))
    flows = (Flow("pages", "decode", "KV", step, kind="main", each="a token"),)
    if rows:
        flows += (Flow("engram", "decode", "rows", rows, kind="memory", each="a token"),)
    writes = Step(
        "decode",
        "writes the answer",
        f"Each token reads {step:,} B of pages and windows, a part of what is there, and adds its own entries.",
        flows,
        f"{answer:,} × layers 0–{config.num_hidden_layers - 1}",
        (Kept("pages", stack.pages(0, prompt + answer), IN_USE),),
    )
    text = "Tokens leave as they are drawn; the first came from the prefill."
    first = (Flow("prefill", "endpoint", "token", amount="1"),)
    if given:
        text = f"The {counted(given)} that the client has are not sent again; the others leave as they are drawn."
        first = ()
    streams = Step(
        "clients",
        "read the stream",
        text,
        (
            *first,
            Flow("decode", "endpoint", "tokens", amount=f"{answer - max(given, 1):,}"),
            Flow("endpoint", "clients", "tokens", amount=f"{answer - given:,}"),
        ),
    )
    return writes, streams


def leave(stack: Stack, prompt: int, answer: int, before: bool = False) -> Step:
    """What stays of a turn. ``before``: the pool still has the windows of the turn before."""
    end = prompt + answer
    pages, windows = stack.pages(0, end), stack.pooled(end)
    recycled = " Windows of the turn before are recycled." if before else ""
    return Step(
        "decode",
        "leaves its state behind",
        "The answer's pages follow the prompt's into the store, the windows go to the pool. In device memory the pages "
        f"stay until others need the room.{recycled}",
        (
            Flow("decode", "store", "pages", stack.written(prompt, end), kind="main"),
            Flow("decode", "windows", "windows", windows, kind="window"),
        ),
        kept=(
            Kept("pages", pages, EVICTABLE),
            Kept("store", pages, IN_STORE),
            Kept("windows", windows, IN_WINDOW_POOL),
        ),
    )


def counted(tokens: int) -> str:
    """A count in words: "1 token", "2,000 tokens", "no tokens"."""
    return f"{tokens:,} token{'' if tokens == 1 else 's'}" if tokens else "no tokens"
