"""A request's way through the serving stack, step by step: what travels, what is computed, what stays where.

A journey is plain data. :mod:`ds41.viz.serving_journeys` derives journeys from a configuration; here
:func:`journey_of` reads one from what a real request reported.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from inspect import signature
from typing import TYPE_CHECKING

from ds41.serving.keys import as_ids
from ds41.serving.store import PrefixStore
from ds41.serving.windows import LIFETIME_S

if TYPE_CHECKING:
    from ds41.serving.pools.requests import RequestReport, Stage
    from ds41.serving.turn import TurnReport

# Everything that a request may pass, in the order in which the map shows it.
POOLS = {"vision": "vision pool", "prefill": "prefill pool", "decode": "decode pool"}
TIERS = {"engram": "Engram", "pages": "device pages", "windows": "window pool", "store": "prefix store"}
BOXES = {"clients": "clients", "endpoint": "endpoint", **POOLS, **TIERS}
IN_USE, EVICTABLE = "in use", "evictable"
ID_BYTES = as_ids((0,)).itemsize


def lifetime(seconds: float) -> str:
    """A lifetime in words: "72 h", "10 min", "30 s"."""
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"


IN_STORE = f"≥ {lifetime(signature(PrefixStore).parameters['guaranteed_s'].default)}"
IN_WINDOW_POOL = lifetime(LIFETIME_S)


@dataclass(frozen=True)
class Flow:
    """What travels along one edge.

    source, target: keys of ``BOXES``. what: a word or two. kind: the palette's name of its colour. nbytes: None where
    bytes are not counted; ``amount`` then says how much it is. each: for what so much travels, "" for all at once.
    """

    source: str
    target: str
    what: str
    nbytes: int | None = None
    amount: str = ""
    kind: str = "neutral"
    each: str = ""

    def __post_init__(self) -> None:
        for end in (self.source, self.target):
            if end not in BOXES:
                raise ValueError(f"box is {end!r}; expected one of: {', '.join(BOXES)}")


@dataclass(frozen=True)
class Kept:
    """What a tier holds of the conversation from a step on, and how long it stays. 0 bytes: nothing any more."""

    tier: str
    nbytes: int
    stays: str = ""


@dataclass(frozen=True)
class Step:
    """One step. box: where it happens. does: a few words. text: a sentence, as HTML. computed: tokens, in words.

    kept: of the tiers that the step changes. fault: the worker of the box is lost in it.
    """

    box: str
    does: str
    text: str
    flows: tuple[Flow, ...] = ()
    computed: str = ""
    kept: tuple[Kept, ...] = ()
    fault: bool = False

    def __post_init__(self) -> None:
        edges = [frozenset((flow.source, flow.target)) for flow in self.flows]
        if len(set(edges)) < len(edges):
            raise ValueError(f"step {self.does!r} has two flows between the same boxes; expected one of each pair")


@dataclass(frozen=True)
class Journey:
    """A request from its arrival to its end.

    note: small print beside the name. overview: HTML. before: what the tiers hold before the first step.
    """

    name: str
    note: str
    overview: str
    steps: tuple[Step, ...]
    before: tuple[Kept, ...] = ()

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError(f"journey {self.name!r} has no steps; expected one or more")


def journey_of(report: RequestReport, name: str = "A traced request", note: str = "measured") -> Journey:
    """The journey of a real request whose answer has ended: visits, waits, tokens and bytes as they were counted.

    Raises:
        ValueError: the request visited no worker.
    """
    if not report.stages:
        raise ValueError("the report has no stages; expected those of a request that a worker has taken")
    last = {stage.pool: stage for stage in report.stages if stage.outcome == "done"}
    steps = [_arrival(report)]
    for stage in report.stages:
        # What the engines counted belongs to the last visit.
        steps += _visit(report, stage) if last.get(stage.pool) is stage else [_passed(stage)]
    if report.generated_tokens:
        steps.append(_answer(report))
    overview = (
        f"<b>{escape(name)}.</b> {report.prompt_tokens:,} tokens of prompt and {report.generated_tokens:,} of answer, "
        f"as they were counted.{_times(report)}"
    )
    return Journey(name, note, overview, tuple(steps))


def _times(report: RequestReport) -> str:
    if report.seconds is None:
        return ""
    first = "" if report.first_token_s is None else f", the first token after {_seconds(report.first_token_s)}"
    lost = {POOLS[stage.pool]: None for stage in report.stages if stage.outcome == "lost"}
    again = f" A worker of the {' and of the '.join(lost)} was lost on the way." if lost else ""
    return f" <span>It took {_seconds(report.seconds)}{first}.</span>{again}"


def _arrival(report: RequestReport) -> Step:
    pictures = f", {report.picture_tokens:,} of them of pictures" if report.picture_tokens else ""
    return Step(
        "endpoint",
        "takes the request",
        f"The whole conversation arrives: {report.prompt_tokens:,} tokens{pictures}.",
        (Flow("clients", "endpoint", "tokens", amount=f"{report.prompt_tokens:,}"),),
    )


def _passed(stage: Stage) -> Step:
    does = {"done": "runs", "lost": "is killed", "failed": "fails", "cancelled": "is told to stop"}[stage.outcome]
    return Step(stage.pool, does, _where(stage), fault=stage.outcome == "lost")


def _where(stage: Stage) -> str:
    worker = f'<b translate="no">{escape(stage.worker)}</b>'
    return f"<span>Worker {worker}: waited {_seconds(stage.waited_s)}, there for {_seconds(stage.seconds)}.</span>"


def _visit(report: RequestReport, stage: Stage) -> Iterator[Step]:
    """The steps of a visit that went well."""
    if stage.pool == "vision":
        vectors = Flow("vision", "prefill", "vectors", amount=f"{report.picture_tokens:,}")
        text = f"{_where(stage)} Each place of a picture gets a vector."
        yield Step("vision", "encodes the pictures", text, (vectors,), f"{report.picture_tokens:,} vectors")
    elif stage.pool == "prefill":
        yield from _turn(report.prefill, "prefill", _where(stage))
    else:
        if report.handed_bytes:
            yield _hand_over(report)
        before = 0 if report.prefill is None else report.prefill.stored_bytes
        yield from _turn(report.decode, "decode", _where(stage), before)


def _hand_over(report: RequestReport) -> Step:
    return Step(
        "decode",
        "takes the sequence over",
        f"Of the prompt's {report.prompt_pages:,} pages those travel that the worker lacks, and "
        f"{report.window_bytes:,} B that are the sequence's own.",
        (Flow("prefill", "decode", "pages, windows", report.handed_bytes, kind="main"),),
    )


def _turn(turn: TurnReport | None, pool: str, where: str, before: int = 0) -> Iterator[Step]:
    """What an engine counted: found, computed, left behind. before: bytes that the request has stored already."""
    if turn is None:
        yield Step(pool, "runs", where)
        return
    if pool == "prefill":
        found = _found(turn)
        text = f"{where} Of the prompt, {turn.hit_tokens:,} tokens were found; windows: {turn.windows}."
        yield Step(pool, "looks for the prefix", text, found)
        where = ""
    again = f", {turn.replayed_tokens:,} again" if turn.replayed_tokens else ""
    does = "reads the prompt" if pool == "prefill" else "writes the answer"
    drafted = f" {turn.accepted_tokens:,} of {turn.drafted_tokens:,} drafts stood." if turn.drafted_tokens else ""
    text = f"{where} {turn.computed_tokens:,} tokens ran for the first time{again}.{drafted}".strip()
    yield Step(pool, does, text, computed=f"{turn.computed_tokens:,} new{again}")
    if turn.stored_bytes or turn.kept_window_bytes or turn.refused:
        refused = f" Refused: {escape(turn.refused)}." if turn.refused else ""
        text = f"What the next turn may find, beside what was there before.{refused}"
        yield Step(pool, "leaves its state behind", text, _left(turn, pool), kept=_added(turn, before))


def _found(turn: TurnReport) -> tuple[Flow, ...]:
    """From which tiers a prefix came."""
    flows = []
    if turn.live_tokens + turn.resident_tokens:
        tokens = turn.live_tokens + turn.resident_tokens
        flows.append(Flow("pages", "prefill", "tokens", amount=f"{tokens:,}", kind="main"))
    if turn.store_bytes:
        flows.append(Flow("store", "prefill", "pages", turn.store_bytes, kind="main"))
    if turn.window_bytes:
        flows.append(Flow("windows", "prefill", "windows", turn.window_bytes, kind="window"))
    return tuple(flows) or (Flow("store", "prefill", "found", amount="nothing"),)


def _left(turn: TurnReport, pool: str) -> tuple[Flow, ...]:
    flows = (
        Flow(pool, "store", "pages", turn.stored_bytes, kind="main"),
        Flow(pool, "windows", "windows", turn.kept_window_bytes, kind="window"),
    )
    return tuple(flow for flow in flows if flow.nbytes)


def _added(turn: TurnReport, before: int = 0) -> tuple[Kept, ...]:
    """What a request has put into the tiers; ``before``: what of it was in the store already."""
    kept = (
        Kept("store", turn.stored_bytes and before + turn.stored_bytes, IN_STORE),
        Kept("windows", turn.kept_window_bytes, IN_WINDOW_POOL),
    )
    return tuple(one for one in kept if one.nbytes)


def _answer(report: RequestReport) -> Step:
    """The first token comes from the prefill, the others from whichever workers decoded."""
    first = 0 if report.prefill is None else report.prefill.generated_tokens
    drawn = {"prefill": first, "decode": report.generated_tokens - first}
    flows = [Flow(pool, "endpoint", "tokens", amount=f"{count:,}") for pool, count in drawn.items() if count]
    flows.append(Flow("endpoint", "clients", "tokens", amount=f"{report.generated_tokens:,}"))
    return Step("clients", "have the answer", f"It ended with: {report.finish}.", tuple(flows))


def _seconds(value: float) -> str:
    """Three digits, never as a power of ten: 999.6 ms are a second."""
    milliseconds = float(f"{1000 * value:.3g}")
    return f"{milliseconds:g} ms" if milliseconds < 1000 else f"{float(f'{value:.3g}'):,g} s"
