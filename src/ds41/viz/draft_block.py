"""What the queries of one draft block attend to, against five ordinary decode steps, and what the Markov head corrects.

The rows in reach are those of the library: :func:`ds41.dspark.drafter.block_choice` for a block,
:func:`ds41.attention.window.visible_rows` for decode.

Source: report section 2.4.3; :mod:`ds41.dspark`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import torch

from ds41.attention.window import visible_rows
from ds41.config import ModelConfig
from ds41.dspark.drafter import block_choice
from ds41.step import Step
from ds41.viz.diagram import Diagram, choices, table

MODES = {"draft": "Draft block", "causal": "Causal decode"}
_NOTES = {"draft": "all at once", "causal": "one by one"}
# The newest context rows that are drawn where not all can be.
_NEWEST = 4
_GLYPHS = {0x09: "⇥", 0x0A: "⏎", 0x20: "␣"}
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


class MarkovStep(NamedTuple):
    """One place of a drafted block.

    before: the token that stands before it. base, corrected: the likeliest tokens without and with the Markov head's
    correction, each with its probability, the likeliest first. picked: the draft.
    """

    before: str
    base: Sequence[tuple[str, float]]
    corrected: Sequence[tuple[str, float]]
    picked: str


class Reach(NamedTuple):
    """Positions that each of k queries sees, ascending: rows of the context, and rows of the block itself."""

    context: list[list[int]]
    block: list[list[int]]


def draft_block(
    config: ModelConfig | None = None,
    position: int = 1000,
    query: int = 3,
    mode: str = "draft",
    steps: Sequence[Sequence[MarkovStep]] = (),
) -> Diagram:
    """The attention of one draft block of ``config`` (default: the published one).

    Args:
        position: of the newest context row; the block stands at the positions behind it. query: the one that is
            marked at first, counted from 1. mode: one of :data:`MODES`.
        steps: rounds that were drafted, each with one :class:`MarkovStep` a place; shown for the marked query.

    Raises:
        ValueError: a value is out of its range; a round has other than ``dspark_block_size`` places, a probability is
            none, or a place does not stand behind the token that was picked before it.
    """
    config = config or ModelConfig.flash()
    size = config.dspark_block_size
    if size < 1:
        raise ValueError(f"dspark_block_size is {size}: this configuration drafts nothing")
    if position < 0:
        raise ValueError(f"position is {position}; expected 0 or more")
    if not 1 <= query <= size:
        raise ValueError(f"query is {query}; expected 1 to {size}")
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; expected one of: {', '.join(MODES)}")
    rounds = [[MarkovStep(*step) for step in places] for places in steps]
    for number, places in enumerate(rounds):
        _check_round(f"steps[{number}]", places, size)
    reaches = {"draft": block_reach(config, position), "causal": causal_reach(config, position)}
    rows = {name: [_row(reaches, name, position, place) for place in range(size)] for name in MODES}
    words = {name: [reach_words(reaches, name, position, place) for place in range(size)] for name in MODES}
    markov = [[_markov(step, place) for place, step in enumerate(places)] for places in rounds]
    seen = len(reaches["draft"].context[0])
    return Diagram(
        kind="draft",
        title=f"All {size} queries of a draft block see the same {seen} rows of the context and the whole block",
        body=_picture(reaches, rows[mode], position, query)
        + (_correction(*markov[0][query - 1]) if markov else "")
        + _controls(config, query, mode, len(markov)),
        caption=words[mode][query - 1],
        table=_table(reaches, position),
        data={"rows": rows, "words": words, "markov": markov},
    )


def block_reach(config: ModelConfig, position: int) -> Reach:
    """What the queries of a draft block see whose context ends with ``position``."""
    window = config.sliding_window
    context = torch.arange(position + 1 - window, position + 1)
    seen = torch.arange(window).where(context >= 0, -1)
    return _reach(block_choice(seen[None], config.dspark_block_size), window, position)


def causal_reach(config: ModelConfig, position: int) -> Reach:
    """What tokens at the same positions see in ordinary decode steps: each its own sliding window."""
    window = config.sliding_window
    step = Step.of([config.dspark_block_size], [position + 1], torch.device("cpu"))
    return _reach(visible_rows(step, window, window, [0]), window, position)


def _reach(choice: torch.Tensor, window: int, position: int) -> Reach:
    """``choice`` counts the rows of a window that ends with ``position``, then those of the block."""
    places = [[position + 1 - window + row for row in rows if row >= 0] for rows in choice.tolist()]
    return Reach(
        [[place for place in rows if place <= position] for rows in places],
        [[place for place in rows if place > position] for rows in places],
    )


def _check_round(name: str, places: Sequence[MarkovStep], size: int) -> None:
    if len(places) != size:
        raise ValueError(f"{name} has {len(places)} places; expected {size}")
    for place, step in enumerate(places):
        for kind, likeliest in (("base", step.base), ("corrected", step.corrected)):
            if not likeliest:
                raise ValueError(f"{name}[{place}].{kind} is empty; expected one token or more")
            for token, probability in likeliest:
                if not 0 <= probability <= 1:
                    raise ValueError(
                        f"{name}[{place}].{kind} gives {token!r} the probability {probability}; expected 0 to 1"
                    )
        if place and step.before != places[place - 1].picked:
            picked = places[place - 1].picked
            raise ValueError(f"{name}[{place}] stands behind {step.before!r}; expected {picked!r}, picked before it")


def _columns(reach: Reach) -> tuple[list[int], list[int]]:
    """The context rows that are drawn: the oldest, among them all that decode would drop, and the newest."""
    context, oldest = reach.context[0], len(reach.block) + 1
    if len(context) <= oldest + _NEWEST + 1:
        return context, []
    return context[:oldest], context[-_NEWEST:]


def _row(reaches: dict[str, Reach], mode: str, position: int, place: int) -> str:
    oldest, newest = _columns(reaches["draft"])
    drafted, causal = ({*reach.context[place], *reach.block[place]} for reach in (reaches["draft"], reaches["causal"]))

    def cell(column: int) -> str:
        kind = "own" if column > position else "row"
        first = " ds-first" if column == position + 1 else ""
        state = ""
        if column in causal:
            state = " ds-seen"
        elif column in drafted:
            state = " ds-more" if mode == "draft" else " ds-less"
        return f'<i class="ds-{kind}{first}{state}"></i>'

    own = range(position + 1, position + 1 + len(reaches["draft"].block))
    gap = '<span class="ds-gap">…</span>' if newest else ""
    return (
        f'<span class="ds-name">{place + 1} <small>{_token(mode, place)}</small></span>'
        + "".join(map(cell, oldest)) + gap + "".join(map(cell, newest)) + "".join(map(cell, own))
    )  # fmt: skip


def _token(mode: str, place: int) -> str:
    """x₀ was drawn; the block goes on with noise, decode with what is drawn next."""
    return f"x{place}".translate(_SUBSCRIPTS) if place == 0 or mode == "causal" else "noise"


def _picture(reaches: dict[str, Reach], rows: Sequence[str], position: int, query: int) -> str:
    oldest, newest = _columns(reaches["draft"])
    size = len(rows)
    context = len(oldest) + len(newest) + bool(newest)
    first = reaches["draft"].context[0][0]
    lines = "".join(
        f'<div class="ds-query{" ds-chosen" if place + 1 == query else ""}" data-query="{place + 1}">{row}</div>'
        for place, row in enumerate(rows)
    )
    return (
        f'<div class="ds-picture" style="--columns:{context + size}" aria-hidden="true">'
        f'<div class="ds-query ds-head"><span>query</span><span style="grid-column:span {context}">'
        f'context, {first:,} to {position:,}</span><span class="ds-first" style="grid-column:span {size}">block</span>'
        f"</div>{lines}</div>"
        '<ul class="ds-legend" aria-hidden="true"><li><i class="ds-row ds-seen"></i>context row, seen</li>'
        '<li><i class="ds-own ds-seen"></i>block row, seen</li>'
        '<li><i class="ds-row ds-more"></i><i class="ds-own ds-more"></i>seen, and not by decode</li>'
        '<li><i class="ds-row ds-less"></i><i class="ds-own ds-less"></i>not seen, but by a draft</li></ul>'
    )


def reach_words(reaches: dict[str, Reach], mode: str, position: int, place: int) -> str:
    """What one query sees, place counted from 0, and what it would see in the other mode."""
    here, there = reaches[mode], reaches["causal" if mode == "draft" else "draft"]
    size, context, block = len(here.block), here.context[place], len(here.block[place])
    token = "the token drawn last" if place == 0 else "noise" if mode == "draft" else "a token drawn since"
    rows = f"all {size} block rows" if block == size else "itself alone" if block == 1 else f"{block} block rows"
    seen = "no context row"
    if context:
        places = f"{context[0]:,} to {position:,}" if len(context) > 1 else f"position {position:,}"
        seen = f"{_rows(len(context))} of the context, {places},"
    other = f"{len(there.context[place])} and {len(there.block[place])}"
    return f"<b>Query {place + 1}</b>, {token}, at position {position + 1 + place:,}, sees {seen} and {rows}. " + (
        f"A causal pass would see {other}." if mode == "draft" else f"In a draft block it sees {other}."
    )


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _markov(step: MarkovStep, place: int) -> tuple[str, str]:
    """What the correction did at one place, in words, and the likeliest tokens before and after it."""
    base, corrected = step.base[0][0], step.corrected[0][0]
    if base == corrected:
        verdict = "the Markov head keeps the likeliest token."
    else:
        verdict = f"the Markov head puts {_quoted(corrected)} before {_quoted(base)}."
    lines = [
        (str(rank + 1), *_likely(step.base, rank), *_likely(step.corrected, rank))
        for rank in range(max(len(step.base), len(step.corrected)))
    ]
    header = ("rank", "drafter alone", "probability", "with the Markov head", "probability")
    return (
        f"Query {place + 1}, after {_quoted(step.before)}: {verdict} Drafted is <b>{_quoted(step.picked)}</b>.",
        table(header, lines, numeric=(2, 4)),
    )


def _correction(words: str, likeliest: str) -> str:
    return (
        f'<p class="ds-place" aria-live="polite">{words}</p>'
        f'<div class="ds-scroll" role="region" aria-label="Likeliest tokens" tabindex="0">{likeliest}</div>'
    )


def _likely(likeliest: Sequence[tuple[str, float]], rank: int) -> tuple[str, str]:
    if rank >= len(likeliest):
        return "", ""
    token, probability = likeliest[rank]
    return _visible(token), f"{100 * probability:.1f} %"


def _visible(token: str) -> str:
    return token.translate(_GLYPHS)


def _quoted(token: str) -> str:
    return f'“<bdi translate="no">{escape(_visible(token))}</bdi>”'


def _controls(config: ModelConfig, query: int, mode: str, rounds: int) -> str:
    queries = [(str(number), str(number), "") for number in range(1, config.dspark_block_size + 1)]
    modes = [(key, name, _NOTES[key]) for key, name in MODES.items()]
    parts = choices("query", "Query", queries, str(query)) + choices("mode", "Attention", modes, mode)
    if rounds > 1:
        numbers = [(str(number), str(number + 1), "") for number in range(rounds)]
        parts += choices("round", "Round of drafts", numbers, "0")
    return f'<form class="ds-controls">{parts}</form>'


def _table(reaches: dict[str, Reach], position: int) -> str:
    reach = [rows for mode in MODES for rows in (reaches[mode].context, reaches[mode].block)]
    rows = [
        (place + 1, f"{position + 1 + place:,}", *(len(seen[place]) for seen in reach))
        for place in range(len(reaches["draft"].block))
    ]
    header = ("query", "position", "draft: context rows", "block rows", "causal: context rows", "block rows")
    return table(header, rows, numeric=tuple(range(len(header))))
