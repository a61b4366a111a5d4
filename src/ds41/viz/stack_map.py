"""The whole inference stack on one map: every part opens its chapter, switches say what works, one token is followed.

What happens comes from :mod:`ds41.viz.stack_v41` and :mod:`ds41.viz.stack_v4`, a token's way from
:mod:`ds41.viz.stack_token`, places from :mod:`ds41.viz.stack_parts`. ``js/stack.js`` only shows one state after
another; all words stand in Python.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product

from ds41.config import ModelConfig
from ds41.systems import System, system
from ds41.vision.sizes import plan_image
from ds41.viz.diagram import Diagram, choices, said, table
from ds41.viz.layer_map import halves
from ds41.viz.stack_boxes import AT_REST, NOTHING, arrow_layer, box, drawn, edge_labels, legend, place
from ds41.viz.stack_flows import CACHES, PHASES, UNKNOWN, State, Travel, Turn
from ds41.viz.stack_links import chapters_address, page
from ds41.viz.stack_parts import AROUND, BY_KEY, CHAPTERS, HEIGHTS, LANES, PARTS, ROUTES
from ds41.viz.stack_token import Stop, number, v4_path, v41_path
from ds41.viz.stack_v4 import v4_state
from ds41.viz.stack_v41 import v41_state
from ds41.viz.style import CONTEXT_TICKS, readable_bytes

MODELS = {"v41": "V4.1-Flash", "v4": "V4-Flash"}
CONTEXTS = tuple(CONTEXT_TICKS)
_FIRST = ("v41", "prefill", "replay")
_STEPS = {"back": "Back", "next": "Next"}
_V4_NAMES = {"encoder": "All layers", "keys": "HBM entries", "read": "HBM entries"}
_HINT = "<p>A token comes in as an id. Step through its stops and see what is left of it, in bytes.</p>"


def inference_stack(
    config: ModelConfig | None = None,
    context: int | None = None,
    new_tokens: int = 2_048,
    picture: tuple[int, int] = (1280, 720),
) -> Diagram:
    """The map of ``config`` (default: the published one) beside V4-Flash.

    Args:
        context: tokens of the prompt, shown first: 4K, 64K or 1M, as far as the model has them; the longest if None.
        new_tokens: of the prompt, those that this turn brings; with a hit all others are found. picture: width and
            height in pixels of the picture among them.

    Raises:
        ValueError: a context that is not offered, no prefix longer than a window beside the new tokens, a picture of
            more tokens than are new, or layers that are not an encoder and a decoder with keys. ImageError: a picture
            that the model cannot take.
    """
    config = config or ModelConfig.flash()
    if not config.kv_source_layer_ids or len(halves(config)) != 2:
        raise ValueError("these layers are not an encoder and a decoder with keys of their own")
    contexts = [one for one in CONTEXTS if one <= config.max_position_embeddings]
    if not contexts:
        raise ValueError(f"max_position_embeddings is {config.max_position_embeddings}; expected {CONTEXTS[0]} or more")
    context = contexts[-1] if context is None else context
    if context not in contexts:
        raise ValueError(f"context is {context}; expected one of: {', '.join(map(str, contexts))}")
    if not 1 <= new_tokens < contexts[0] - config.sliding_window:
        raise ValueError(
            f"new_tokens is {new_tokens}; expected 1 to {contexts[0] - config.sliding_window - 1}, so that a prefix "
            "longer than a window is left to be found"
        )
    if config.vision is not None and (span := plan_image(*picture, config.vision).span_tokens) > new_tokens:
        raise ValueError(f"picture is {picture}, {span} tokens; expected no more than the {new_tokens} new ones")
    theirs = system("deepseek-v4-flash")
    states = all_states(config, theirs, contexts, new_tokens, picture)
    paths = {"v41": v41_path(config), "v4": v4_path(theirs)}
    first = states[(*_FIRST, context)]
    return Diagram(
        kind="stack",
        title="The whole stack: every part opens its chapter",
        body=_switches(contexts, context)
        + _map(config, first)
        + legend()
        + _around()
        + _says(first)
        + _walk(paths["v41"], _longest(paths)),
        caption=_HINT,
        table=_table(states, contexts) + _token_table(paths),
        table_title="All arrows and the token’s way as tables",
        data=_data(config, theirs, states, paths),
    )


def all_states(
    config: ModelConfig, theirs: System, contexts: Sequence[int], new: int, picture: tuple[int, int]
) -> dict[tuple[str, str, str, int], State]:
    """Every combination of model, phase, cache and context."""
    states = {}
    for model, phase, cache, context in product(MODELS, PHASES, CACHES, contexts):
        turn = Turn(context, new, picture)
        ours = model == "v41"
        state = v41_state(config, turn, phase, cache) if ours else v4_state(theirs, turn, phase, cache)
        states[model, phase, cache, context] = state
    return states


def _note(how: str, words: str) -> list:
    return [how, said(words)]


def _data(config: ModelConfig, theirs: System, states: Mapping, paths: Mapping[str, Sequence[Stop]]) -> dict:
    """What the script needs. States share most of what they say, so they point into lists."""
    parts = [part.key for part in PARTS]
    noted = {key: [_note(*state.parts.get(part, AT_REST)) for part in parts] for key, state in states.items()}
    labels = {
        key: [list(edge_labels(state.travels).get(edge, NOTHING)) for edge in ROUTES["wide"]]
        for key, state in states.items()
    }
    longest = _longest(paths)
    notes, carried = _distinct(noted.values()), _distinct(labels.values())
    return {
        "parts": parts,
        "arrows": list(ROUTES["wide"]),
        "notes": notes,
        "labels": carried,
        "states": {
            " ".join(map(str, key)): [
                [notes.index(one) for one in noted[key]],
                [carried.index(one) for one in labels[key]],
                state.text,
            ]
            for key, state in states.items()
        },
        "models": {
            model: {
                "names": _names(model),
                "pictures": drawn(config if model == "v41" else theirs),
                "trail": _trail(path, longest),
                "stops": [_stop_data(one) for one in path],
            }
            for model, path in paths.items()
        },
        "words": {"step": "Step {at} of {all}: {name}", "start": "the whole way", "hint": _HINT},
        "site": chapters_address(),
    }


def _distinct(lists: Iterable[list]) -> list:
    found = []
    for one in chain.from_iterable(lists):
        if one not in found:
            found.append(one)
    return found


def _names(model: str) -> dict[str, str]:
    changed = _V4_NAMES if model == "v4" else {}
    return {part.key: changed.get(part.key, part.name) for part in PARTS if part.key in _V4_NAMES}


def _stop_data(stop: Stop) -> dict:
    label = (readable_bytes(float(stop.nbytes)), "this token") if stop.edge else ()
    return {"part": stop.part, "edge": stop.edge, "label": label, "text": f"{stop.text} <b>So far: {stop.so_far}.</b>"}


def _switches(contexts: Sequence[int], context: int) -> str:
    groups = (
        ("model", "Model", [(key, name, "") for key, name in MODELS.items()], _FIRST[0]),
        ("phase", "Phase", [(key, name, "") for key, name in PHASES.items()], _FIRST[1]),
        ("cache", "Prefix cache", [(key, name, "") for key, name in CACHES.items()], _FIRST[2]),
        ("context", "Context", [(str(one), CONTEXT_TICKS[one], "") for one in contexts], str(context)),
    )
    return f'<form class="ds-controls ds-switches">{"".join(choices(*group) for group in groups)}</form>'


def _map(config: ModelConfig, state: State) -> str:
    lanes = "".join(
        f'<div class="ds-lane" style="{place(*places)}"><span>{name}</span></div>' for name, *places in LANES
    )
    arrows = "".join(arrow_layer(layout, state) for layout in HEIGHTS)
    pictures = drawn(config)
    parts = "".join(box(part, state, pictures) for part in PARTS)
    heights = ";".join(f"--{name}:{height}px" for name, height in HEIGHTS.items())
    return (
        f'<div class="ds-map" role="group" aria-label="The inference stack" style="{heights}">'
        f"{lanes}{parts}{arrows}</div>"
    )


def _around() -> str:
    links = "".join(f'<li><a href="{page(one)}"><small>{one[:2]}</small> {CHAPTERS[one]}</a></li>' for one in AROUND)
    return f'<ul class="ds-around"><li>Around it:</li>{links}</ul>'


def _says(state: State) -> str:
    return f'<p class="ds-says" aria-live="polite">{state.text}</p>'


def _walk(path: Sequence[Stop], longest: float) -> str:
    buttons = "".join(
        f'<button type="button" class="ds-button" data-act="{act}">{name}</button>' for act, name in _STEPS.items()
    )
    return (
        '<div class="ds-follow"><p class="ds-now">Follow one token</p>'
        '<form class="ds-controls ds-steps"><label class="ds-field"><span>Step</span>'
        f'<input type="range" name="step" min="0" max="{len(path)}" value="0"></label>'
        f'<div class="ds-buttons">{buttons}</div></form><ol class="ds-trail">{_trail(path, longest)}</ol></div>'
    )


def _longest(paths: Mapping[str, Sequence[Stop]]) -> float:
    """Bytes of the longest bar: both models are drawn to one scale."""
    return float(max(stop.nbytes or 0 for path in paths.values() for stop in path))


def _trail(path: Sequence[Stop], longest: float) -> str:
    """A row for each stop: its bytes of one token."""
    return "".join(_stop(stop, longest) for stop in path)


def _stop(stop: Stop, longest: float) -> str:
    if stop.bars is None:
        return f"<li><span>{stop.name}</span><b>{UNKNOWN}</b></li>"
    bars = "".join(
        f'<i class="ds-{kind}" style="width:{100 * float(nbytes) / longest:.3g}%"></i>' for kind, nbytes in stop.bars
    )
    return f'<li><span>{stop.name}</span><span class="ds-track">{bars}</span><b>{number(stop.nbytes)} B</b></li>'


def _table(states: Mapping, contexts: Sequence[int]) -> str:
    rows = []
    for model, phase, cache in product(MODELS, PHASES, CACHES):
        if phase == "decode" and cache != _FIRST[2]:
            continue
        every = [states[model, phase, cache, context].travels for context in contexts]
        for alike in zip(*every, strict=True):
            one = alike[0]
            which = f", {CACHES[cache].lower()}" if phase == "prefill" else ""
            name = f"{MODELS[model]}, {PHASES[phase].lower()}{which}"
            way = f"{BY_KEY[one.source].name} → {BY_KEY[one.target].name}"
            each = f" {one.each}" if one.each else ""
            rows.append((name, way, f"{one.what}{each}", *map(_exactly, alike)))
    header = ("state", "arrow", "what", *(CONTEXT_TICKS[context] for context in contexts))
    return table(header, rows, numeric=range(3, 3 + len(contexts)))


def _exactly(travel: Travel) -> str:
    return travel.amount if travel.nbytes is None else f"{travel.nbytes:,} B"


def _token_table(paths: Mapping[str, Sequence[Stop]]) -> str:
    rows = [
        (
            MODELS[model],
            at,
            stop.name,
            BY_KEY[stop.part].name,
            UNKNOWN if stop.bars is None else number(stop.nbytes),
        )
        for model, path in paths.items()
        for at, stop in enumerate(path, start=1)
    ]
    return table(("model", "stop", "one token", "where", "bytes"), rows, (1, 4))
