"""What V4-Flash does with one turn, as far as it is known here: its caches (:mod:`ds41.systems`), and no engine.

Source: report sections 1 and 3.2.1; V4 report section 3.5.2.
"""

from __future__ import annotations

from ds41.records import exact
from ds41.systems import System
from ds41.viz.serving_trace import ID_BYTES
from ds41.viz.stack_flows import ABSENT, CACHES, SETTLED, UNKNOWN, WORKS, State, Travel, Turn
from ds41.viz.style import readable_bytes

_DRAWN = "It is drawn in V4.1’s pools; how it is served is not known here."


def v4_state(theirs: System, turn: Turn, phase: str, cache: str) -> State:
    """V4-Flash's state, as far as it is known here."""
    return (_prefill if phase == "prefill" else _decode)(theirs, turn, cache)


def v4_replay_tokens(theirs: System) -> int:
    """Tokens that V4 would have to run again for exact windows: a window for each layer."""
    return theirs.window.layers * theirs.window.length


def _prefill(theirs: System, turn: Turn, cache: str) -> State:
    end, layers = turn.context, theirs.window.layers
    hit = 0 if cache == "miss" else turn.known
    again = min(hit, v4_replay_tokens(theirs)) if cache == "replay" else 0
    fed, held = end - hit + again, theirs.nbytes(end)
    travels = [
        Travel("client", "endpoint", "tokens", amount=f"{end:,}"),
        Travel("endpoint", "prefill", "ids", end * ID_BYTES),
    ]
    if hit:
        travels.append(Travel("store", "prefill", "entries", theirs.nbytes(hit), kind="main"))
    if cache == "windows":
        travels.append(Travel("store", "prefill", "windows", theirs.window_bytes, kind="window"))
    travels += [
        Travel("prefill", "store", "entries", held - theirs.nbytes(hit), kind="main"),
        Travel("prefill", "store", "windows", theirs.window_bytes, kind="window"),
        Travel("prefill", "decode", "handover", held + theirs.window_bytes, kind="main"),
    ]
    counted = f"{again:,} again + {end - hit:,} new" if again else f"{fed:,} tokens"
    parts = _rest(theirs) | {
        "prefill": (WORKS, ""),
        "encoder": (WORKS, f"{counted}, layers 0–{layers - 1}"),
        "keys": (WORKS, f"{readable_bytes(held)}, {float(theirs.bytes_per_token):,g} B a token"),
        "rings": (WORKS, readable_bytes(theirs.window_bytes)),
        "store": (WORKS, f"{readable_bytes(held)} and windows, twice a turn"),
    }
    found = {
        "miss": f"No tier knows the prompt, so all {end:,} tokens run.",
        "replay": f"Entries of {hit:,} tokens come back from disk. Exact windows need a window for each layer again, "
        f"{v4_replay_tokens(theirs):,} tokens, "
        f"{'more than were found' if again == hit else f'beside {end - hit:,} new ones'}.",
        "windows": f"Entries of {hit:,} tokens come back from disk, and the windows that were stored there with them.",
    }[cache]
    text = (
        f"<b>V4-Flash, prefill, {CACHES[cache].lower()}.</b> {found} There is no half-way stop: every token runs "
        f"through all {layers} layers. It stores its windows on disk, at the end of each prompt and of each "
        f"answer. {_DRAWN}"
    )
    return State(parts, tuple(travels), text)


def _decode(theirs: System, turn: Turn, cache: str) -> State:
    end, layers = turn.context, theirs.window.layers
    token, window = exact(theirs.bytes_per_token), theirs.window_bytes
    index = sum(plane.bytes_read(end) for plane in theirs.planes if plane.component == "index")
    main = theirs.bytes_read(end) - index - theirs.window.nbytes(end)
    parts = _rest(theirs) | {
        "decode": (WORKS, ""),
        "layers": (WORKS, f"layers 0–{layers - 1}, token by token"),
        "read": (WORKS, f"reads {readable_bytes(index)} of keys, {readable_bytes(main)} of records"),
        "turning": (WORKS, f"reads {readable_bytes(window)} a token"),
        "store": (WORKS, f"{readable_bytes(theirs.nbytes(end))} and windows, twice a turn"),
    }
    travels = (
        Travel("decode", "endpoint", "tokens", amount="answer"),
        Travel("endpoint", "client", "tokens", amount="answer"),
        Travel("decode", "store", "entries", token, kind="main", each="a token"),
        Travel("decode", "store", "windows", window, kind="window", each="at the end"),
    )
    text = (
        f"<b>V4-Flash, decode.</b> Each token reads {readable_bytes(theirs.bytes_read(end))} of the "
        f"{readable_bytes(theirs.nbytes(end) + window)} that are there, and adds {token:,g} B on average. When the "
        f"turn ends, all windows go to disk beside the entries. {SETTLED} {_DRAWN}"
    )
    return State(parts, travels, text)


def _rest(theirs: System) -> dict[str, tuple[str, str]]:
    active, total = (count / 1e9 for count in (theirs.active_parameters, theirs.total_parameters))
    unknown = ("vision", "kernels", "gpus", "engram", "drafter")
    return dict.fromkeys(unknown, (ABSENT, UNKNOWN)) | {
        "client": (WORKS, ""),
        "endpoint": (WORKS, ""),
        "mixing": (WORKS, "not in one pass"),
        "experts": (WORKS, f"{active:g}B of {total:g}B active"),
        "tail": (ABSENT, "no half-way stop"),
        "windows": (ABSENT, "windows go to disk"),
    }
