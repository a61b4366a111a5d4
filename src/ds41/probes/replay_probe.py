"""The probe as a whole: every hit of one prompt, kinds of text, needles, generated text, a control and the findings.

A run takes a model and a label, so that a model whose post-training simulated replay and one whose did not can stand
side by side.

Source: report section 3.2.2 for the rule that is probed; the probe is ds41's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ds41.decoder_tail import Decoder
from ds41.model import Model
from ds41.probes.estimates import Estimate, estimate_mean
from ds41.probes.replay_distance import Request
from ds41.probes.replay_findings import Finding, findings, judge
from ds41.probes.replay_inputs import KINDS, Kind, Shape, Texts, requests
from ds41.probes.replay_positions import after_hits, answers, offsets_after, standard_ways
from ds41.probes.replay_summary import (
    CurveRow,
    NeedleRow,
    PlaceRow,
    Sample,
    TextRow,
    TextSample,
    curve_rows,
    kinds_of,
    near_kl,
    needle_rows,
    place_rows,
    text_rows,
)

# The seed of the one prompt whose hits are all tried; none of those of the kinds.
_SWEPT = -1


@dataclass(frozen=True)
class Sweep:
    """Every hit of one prompt. kl, largest, same_top: way -> for each hit a number for each offset."""

    kind: str
    hits: tuple[int, ...]
    offsets: tuple[int, ...]
    kl: dict[str, tuple[tuple[float, ...], ...]]
    largest: dict[str, tuple[tuple[float, ...], ...]]
    same_top: dict[str, tuple[tuple[bool, ...], ...]]


@dataclass(frozen=True)
class TextSweep:
    """One prompt of ``end`` tokens, answered behind each hit: way -> a number for each hit.

    first_different: tokens of ``tokens`` before the first that differs, all of them if none does.
    """

    kind: str
    end: int
    tokens: int
    hits: tuple[int, ...]
    kl: dict[str, tuple[float, ...]]
    equal_share: dict[str, tuple[float, ...]]
    first_different: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class PositionRun:
    """All that was measured on one model; plain values.

    near_kl: kind -> way -> mean KL of the first window for each seed, from which two runs are compared.
    """

    label: str
    quantization: str
    layers: int
    window: int
    page_tokens: int
    seeds: int
    ways: dict[str, int]
    sweep: Sweep
    text_sweep: TextSweep
    curves: list[CurveRow]
    places: list[PlaceRow]
    needles: list[NeedleRow]
    texts: list[TextRow]
    near_kl: dict[str, dict[str, list[float]]]
    findings: list[Finding]


@dataclass(frozen=True)
class Comparison:
    """Replay of two models on the same prompts: KL of the first window, and the second's minus the first's, nats."""

    kind: str
    first: Estimate
    second: Estimate
    difference: Estimate
    smaller: Literal["first", "second", "undecided"]


def probe_positions(
    model: Model,
    label: str,
    texts: Texts,
    seeds: int = 4,
    kinds: Sequence[Kind] = tuple(KINDS),
    page_tokens: int = 16,
    latest: int | None = None,
    new_tokens: int = 16,
    stride: int = 8,
) -> PositionRun:
    """Run the probe. The first seeds are the same prompts however many there are.

    Args:
        model: of the byte vocabulary. label: what to call it. texts: what prompts are cut from.
        seeds: prompts a kind, 2 or more.
        latest: the last page edge with a hit, in tokens; five windows if None.
        new_tokens: of each generated text. stride: every how many hits of the one prompt a text is generated.

    Raises:
        ValueError: fewer than two seeds, or sizes that leave no room.
    """
    if seeds < 2:
        raise ValueError(f"seeds is {seeds}; expected 2 or more, for intervals")
    window = model.config.sliding_window
    offsets = offsets_after(window)
    shape = Shape(window, page_tokens, offsets[-1], 5 * window if latest is None else latest)
    ways = standard_ways(model.config)
    measured = {way: ways[way] for way in ("absent", "replay")}
    samples = kind_samples(model, texts, kinds, range(seeds), shape, measured, offsets)
    control = control_samples(model, texts, ways, shape)
    prompt = requests("code", texts, _SWEPT, shape)["even"].ids
    replayed = {"replay": window}
    written = text_samples(model, texts, kinds, range(seeds), shape, replayed, new_tokens)
    return PositionRun(
        label=label,
        quantization=model.quantization,
        layers=model.config.num_hidden_layers,
        window=window,
        page_tokens=page_tokens,
        seeds=seeds,
        ways=ways,
        sweep=sweep_hits(
            model, "code", prompt, range(1, shape.latest + 1), measured, offsets_after(window, 1), page_tokens
        ),
        text_sweep=sweep_texts(
            model, "code", prompt[: shape.latest], stride, replayed, new_tokens, page_tokens=page_tokens
        ),
        curves=curve_rows(samples, offsets),
        places=place_rows(samples, offsets, window),
        needles=needle_rows(samples),
        texts=text_rows(written, new_tokens),
        near_kl={
            kind: {way: near_kl(samples, kind, way, offsets, window) for way in measured} for kind in kinds_of(samples)
        },
        findings=findings(samples, control, offsets, window),
    )


def kind_samples(
    model: Model,
    texts: Texts,
    kinds: Sequence[Kind],
    seeds: Sequence[int],
    shape: Shape,
    ways: dict[str, int],
    offsets: Sequence[int],
) -> list[Sample]:
    """One sample for each kind, seed and place."""
    asked = [
        (kind, seed, place, request)
        for kind in kinds
        for seed in seeds
        for place, request in requests(kind, texts, seed, shape).items()
    ]
    found = after_hits(model, [request for *_, request in asked], ways, offsets, shape.page_tokens)
    return [
        Sample(kind, seed, place, request.hit, one)
        for (kind, seed, place, request), one in zip(asked, found, strict=True)
    ]


def text_samples(
    model: Model,
    texts: Texts,
    kinds: Sequence[Kind],
    seeds: Sequence[int],
    shape: Shape,
    ways: dict[str, int],
    new_tokens: int,
) -> list[TextSample]:
    """Greedy texts right after a hit and one window of prompt later, for each kind and seed."""
    asked = []
    for kind in kinds:
        for seed in seeds:
            request = requests(kind, texts, seed, shape)["even"]
            for after in (0, shape.window):
                asked.append((kind, seed, after, Request(request.ids[: request.hit + after], request.hit)))
    found = answers(model, [request for *_, request in asked], ways, new_tokens, page_tokens=shape.page_tokens)
    return [
        TextSample(kind, seed, after, request.hit, one)
        for (kind, seed, after, request), one in zip(asked, found, strict=True)
    ]


def control_samples(
    model: Model, texts: Texts, ways: dict[str, int], shape: Shape, prompts: int = 2, offsets: Sequence[int] = (0, 1)
) -> list[Sample]:
    """Hits so long that an exact replay leaves tokens out: two in each of a few prompts of code."""
    edge = -(-(ways["exact"] + shape.window) // shape.page_tokens) * shape.page_tokens
    asked = []
    for seed in range(prompts):
        longer = Shape(shape.window, shape.page_tokens, 2 * shape.window, edge)
        ids = requests("code", texts, seed, longer)["even"].ids
        asked += [(seed, place, Request(ids, hit)) for place, hit in (("page edge", edge), ("odd", edge + 1))]
    chosen = {way: ways[way] for way in ("replay", "exact")}
    found = after_hits(model, [request for *_, request in asked], chosen, offsets, shape.page_tokens)
    return [Sample("code", seed, place, one.hit, got) for (seed, place, one), got in zip(asked, found, strict=True)]


def sweep_hits(
    model: Model,
    kind: str,
    ids: Sequence[int],
    hits: Sequence[int],
    ways: dict[str, int],
    offsets: Sequence[int],
    page_tokens: int = 16,
) -> Sweep:
    """Every one of ``hits`` in one prompt."""
    ids = tuple(ids)
    found = after_hits(model, [Request(ids, hit) for hit in hits], ways, offsets, page_tokens)
    tables = [
        {way: tuple(getattr(one[way], name) for one in found) for way in ways} for name in ("kl", "largest", "same_top")
    ]
    return Sweep(kind, tuple(hits), tuple(offsets), *tables)


def sweep_texts(
    model: Model,
    kind: str,
    ids: Sequence[int],
    stride: int,
    ways: dict[str, int],
    new_tokens: int,
    decoder: Decoder = "bounded",
    page_tokens: int = 16,
) -> TextSweep:
    """The same prompt answered behind every hit, or every ``stride``-th one, counted back from its end."""
    ids = tuple(ids)
    hits = tuple(sorted(range(len(ids), 0, -stride)))
    found = answers(model, [Request(ids, hit) for hit in hits], ways, new_tokens, decoder, page_tokens)
    return TextSweep(
        kind,
        len(ids),
        new_tokens,
        hits,
        {way: tuple(one[way].kl for one in found) for way in ways},
        {way: tuple(one[way].equal_share for one in found) for way in ways},
        {
            way: tuple(new_tokens if one[way].first_different is None else one[way].first_different for one in found)
            for way in ways
        },
    )


def compare_runs(first: PositionRun, second: PositionRun) -> list[Comparison]:
    """What replay changes in two models, on the same prompts.

    Raises:
        ValueError: runs of other seeds, kinds or windows.
    """
    shapes = [(run.seeds, run.window, run.page_tokens, tuple(run.near_kl)) for run in (first, second)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"runs have seeds, window, page and kinds {shapes[0]} and {shapes[1]}; expected the same")
    rows = []
    for kind, own in first.near_kl.items():
        a, b = own["replay"], second.near_kl[kind]["replay"]
        difference = estimate_mean([y - x for x, y in zip(a, b, strict=True)], 1 - 0.05 / len(first.near_kl))
        smaller = {"holds": "second", "falsified": "first", "undecided": "undecided"}[judge(difference, 0, 0)]
        rows.append(Comparison(kind, estimate_mean(a), estimate_mean(b), difference, smaller))
    return rows
