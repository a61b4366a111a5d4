"""A prompt resumed behind a hit, on one line of tokens: what is read, fed again, computed, written, and seen.

``js/replay.js`` draws the same for every other hit, prompt and policy; a test holds the two to the same HTML.

Source: report section 3.2.2; :mod:`ds41.replay`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ds41.config import ModelConfig
from ds41.replay import ShortHits, plan_replay
from ds41.viz.diagram import Diagram, choices, table
from ds41.viz.layer_map import halves

PROMPTS = (300, 768, 2048)
WINDOWS = {"gone": "Gone", "prefill": "Kept up to layer {source}", "all": "All kept"}
SHORT_HITS = {"recompute": "Recomputed", "replay": "Replayed"}

Windows = Literal["gone", "prefill", "all"]


@dataclass(frozen=True)
class Resumption:
    """One prompt behind one hit.

    found: tokens of the prefix that the store has. hit: those that are used, 0 where the hit is passed over.
    start: first token that is fed. tail: first token that the decoder's layers give an output for. sees: the first
    position whose window row a query may see, in the layers up to the last source and in those above it.
    """

    prompt: int
    window: int
    found: int
    hit: int
    start: int
    tail: int
    sees: tuple[int, int]

    @property
    def replayed(self) -> int:
        return self.hit - self.start

    def begin(self, group: int) -> int:
        """First token that a group attends for: 0 the encoder, 1 the last source, 2 the layers above it."""
        return self.tail if group else self.start

    def reach(self, group: int, query: int) -> tuple[int, int] | None:
        """Positions [first, end) whose rows a query sees, its own included; None if the group does not run on it."""
        if query < self.begin(group):
            return None
        return max(self.sees[group == 2], query - self.window + 1, 0), query + 1

    def clipped(self, group: int) -> int:
        """Tokens whose windows are shorter than in a prompt that was never interrupted."""
        first = self.sees[group == 2]
        if first == 0:
            return 0
        return max(0, min(self.prompt, first + self.window - 1) - self.begin(group))


def resume(
    config: ModelConfig,
    prompt: int,
    found: int,
    windows: Windows = "gone",
    short_hits: ShortHits = "recompute",
) -> Resumption:
    """What a prompt of ``prompt`` tokens does when the store has its first ``found``.

    windows: those of the prefix are gone; or the pool has those that a prefill runs on every token, layers up to the
    last source; or it has all (:func:`ds41.replay.snapshot_layers`).
    """
    window, tail = config.sliding_window, prompt - config.sliding_window
    if windows == "gone" or not found:
        plan = plan_replay(found, window, short_hits)
        hit, start = (found, plan.start) if plan.adopts else (0, 0)
        tail = max(start, tail)
        return Resumption(prompt, window, found, hit, start, tail, (start, tail))
    # The layers above begin anew, for which their tokens have to come through the encoder.
    start = found if windows == "all" else max(0, min(found, tail))
    tail = max(start, tail)
    goes_on = windows == "all" and tail == start
    return Resumption(prompt, window, found, found, start, tail, (0, 0 if goes_on else tail))


def replay_timeline(
    config: ModelConfig | None = None,
    hit: int = 500,
    prompt: int = 768,
    windows: Windows = "gone",
    short_hits: ShortHits = "recompute",
    query: int | None = None,
) -> Diagram:
    """The timeline of ``config`` (default: the published one).

    Args:
        hit: tokens of the prompt that the store has, less than all. prompt: one of 300, 768 and 2,048 tokens.
        query: the token whose windows are drawn; the one after the prompt if None.

    Raises:
        ValueError: a value that cannot be, or a configuration whose layers are not an encoder and a decoder.
    """
    config = config or ModelConfig.flash()
    query = prompt if query is None else query
    for name, value, allowed in (
        ("prompt", prompt, PROMPTS),
        ("windows", windows, tuple(WINDOWS)),
        ("short_hits", short_hits, tuple(SHORT_HITS)),
    ):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; expected one of: {', '.join(map(str, allowed))}")
    if not 0 <= hit < prompt:
        raise ValueError(f"hit is {hit}; expected 0 to {prompt - 1}, less than the prompt")
    if not 0 <= query <= prompt:
        raise ValueError(f"query is {query}; expected 0 to {prompt}")
    if len(halves(config)) != 2:
        raise ValueError(f"decoder_start is {config.decoder_start}; these layers are not an encoder and a decoder")
    shown = resume(config, prompt, hit, windows, short_hits)
    return Diagram(
        kind="replay",
        title=f"Behind a hit, {config.sliding_window} tokens run again and write nothing but windows",
        body=f'<div class="ds-picture">{_readouts(config, shown)}{_lanes(config, shown, query)}</div>{_LEGEND}'
        f"{_controls(config, prompt, hit, windows, short_hits, query)}"
        f'<p class="ds-query" aria-live="polite">{query_words(config, shown, query)}</p>',
        caption=overview(config, shown),
        table=_table(config, shown),
        data={
            "window": config.sliding_window,
            "source": config.decoder_start,
            "ratios": [plan.ratio for plan in config.layers if plan.owns_kv],
            "layers": config.num_hidden_layers,
            "groups": _groups(config),
        },
    )


def token_layers(config: ModelConfig, shown: Resumption) -> int:
    """Tokens that each layer attends for, summed over the layers."""
    lower = config.decoder_start
    return lower * (shown.prompt - shown.start) + (config.num_hidden_layers - lower) * (shown.prompt - shown.tail)


def entries_written(config: ModelConfig, shown: Resumption) -> int:
    return sum(shown.prompt // plan.ratio - shown.hit // plan.ratio for plan in config.layers if plan.owns_kv)


def _readouts(config: ModelConfig, shown: Resumption) -> str:
    cold = token_layers(config, resume(config, shown.prompt, 0))
    spent = token_layers(config, shown)
    # Halves up, as the script rounds.
    tenths = (2000 * spent + cold) // (2 * cold)
    cells = (
        ("tokens fed again", f"{shown.replayed:,}", f"and {shown.prompt - shown.hit:,} new"),
        ("entries written", f"{entries_written(config, shown):,}", "for the new tokens only"),
        ("tokens × layers run", f"{spent:,}", f"{tenths // 10}.{tenths % 10} % of a cold one"),
    )
    return "<dl>" + "".join(
        f'<div><dt>{name}</dt><dd>{value}</dd><dd class="ds-fine">{note}</dd></div>' for name, value, note in cells
    ) + "</dl>"  # fmt: skip


def _lanes(config: ModelConfig, shown: Resumption, query: int) -> str:
    """Global KV, encoder, decoder; the axis and the line of the hit."""
    prompt, hit = shown.prompt, shown.hit
    pages = _segment("read", 0, hit, prompt) + _segment("main", hit, prompt, prompt)
    parts = [_lane("global KV: read and written", "ds-pages", pages)]
    for group, name in enumerate(_groups(config)):
        begin = shown.begin(group)
        runs = _segment("replay", begin, hit, prompt) + _segment("run", max(begin, hit), prompt, prompt)
        reach = shown.reach(group, query)
        seen = _segment("window", *reach, prompt) if reach else ""
        parts.append(_lane(f"{'decoder' if group else 'encoder'}, {name}", "ds-half", runs + seen))
    line = f'<span class="ds-line" style="left:calc(100% * {hit} / {prompt + 1})"></span>' if hit else ""
    axis = f"<span>token 0</span><span>hit at {hit:,}</span><span>next: {prompt:,}</span>"
    return (
        f'<div class="ds-tokens" aria-hidden="true">{"".join(parts)}{line}</div>'
        f'<p class="ds-axis" aria-hidden="true">{axis}</p>'
    )


def _lane(label: str, name: str, inside: str) -> str:
    return f'<p class="ds-label">{label}</p><div class="ds-lane {name}">{inside}</div>'


def _segment(kind: str, begin: int, end: int, prompt: int) -> str:
    """A stretch of tokens; the place after the prompt is the next one's."""
    if begin >= end:
        return ""
    return (
        f'<i class="ds-{kind}" style="left:calc(100% * {begin} / {prompt + 1});'
        f'width:calc(100% * {end - begin} / {prompt + 1})"></i>'
    )


_LEGEND = (
    '<ul class="ds-legend">'
    '<li><i class="ds-key ds-read"></i>entries read</li>'
    '<li><i class="ds-key ds-main"></i>entries written</li>'
    '<li><i class="ds-key ds-replay"></i>fed again, windows only</li>'
    '<li><i class="ds-key ds-run"></i>new tokens run</li>'
    '<li><i class="ds-key ds-window"></i>window of the chosen token</li></ul>'
)


def _controls(config: ModelConfig, prompt: int, hit: int, windows: str, short_hits: str, query: int) -> str:
    def options(of: dict[str, str]) -> list[tuple[str, str, str]]:
        return [(key, name, "") for key, name in of.items()]

    names = {key: name.format(source=config.decoder_start) for key, name in WINDOWS.items()}
    return (
        '<form class="ds-controls">'
        '<label class="ds-field"><span>Tokens found in the store</span>'
        f'<input type="range" name="slider" min="0" max="{prompt - 1}" step="1" value="{hit}"></label>'
        '<label class="ds-field"><span>Exactly</span>'
        f'<input type="number" name="hit" min="0" max="{prompt - 1}" step="1" value="{hit}"></label>'
        + choices("windows", "Windows at the hit", options(names), windows)
        + choices("short", "Hits of at most one window", options(SHORT_HITS), short_hits)
        + choices("prompt", "Tokens of the prompt", [(str(n), f"{n:,}", "") for n in PROMPTS], str(prompt))
        + '<label class="ds-field"><span>Token whose windows are drawn</span>'
        f'<input type="range" name="query" min="0" max="{prompt}" step="1" value="{query}"></label></form>'
    )


def overview(config: ModelConfig, shown: Resumption) -> str:
    """The picture in words."""
    new = shown.prompt - shown.hit
    if shown.found and not shown.hit:
        return (
            f"<b>Hit of {shown.found:,} passed over.</b> All its tokens would have to run again, so nothing would be "
            "saved: the prompt is computed from token 0, as if nothing had been stored, to the same bytes."
        )
    if not shown.hit:
        least = f"{shown.prompt - shown.tail:,}"
        return f"<b>No hit.</b> All {new:,} tokens run through the encoder, the last {least} through the decoder."
    if shown.sees[0] == 0 and shown.start > 0:
        again = f"Tokens {shown.start:,} to {shown.hit - 1:,} are fed again for the decoder's sake"
        return (
            f"<b>Hit of {shown.hit:,}, windows kept.</b> {again if shown.replayed else 'Nothing is fed again'}. The "
            "encoder goes on as if it had never stopped, and what it stores is what it would have stored."
        )
    if shown.start == 0:
        fed = "The whole prefix is fed again. Nothing before it is missing, so its windows are what they were."
    else:
        fed = (
            f"Tokens {shown.start:,} to {shown.hit - 1:,} are fed again. The first {shown.clipped(0)} of all tokens "
            "fed see less than their window."
        )
    return f"<b>Hit of {shown.hit:,}, windows gone.</b> {fed}"


def query_words(config: ModelConfig, shown: Resumption, query: int) -> str:
    """What one token sees."""
    if query < shown.start:
        return f"<b>Token {query:,}</b> is not fed. Its entries are read from the store; its window rows stay missing."
    kind = "next" if query == shown.prompt else "fed again" if query < shown.hit else "new"
    parts = []
    for group, name in enumerate(_groups(config)):
        reach, one = shown.reach(group, query), name.startswith("layer ")
        if reach is None:
            parts.append(f"{name.capitalize()} {'does' if one else 'do'} not run on it.")
            continue
        first, end = reach
        full = min(shown.window, query + 1)
        count = f"all {full}" if end - first == full else f"{end - first} of {full}"
        parts.append(f"{name.capitalize()} {'sees' if one else 'see'} {count} rows, from position {first:,}.")
    return f"<b>Token {query:,}</b>, {kind}. {' '.join(parts)}"


def _table(config: ModelConfig, shown: Resumption) -> str:
    rows = []
    for group, name in enumerate(_groups(config)):
        begin = shown.begin(group)
        rows.append(
            (
                name,
                f"{begin:,}–{shown.prompt - 1:,}",
                f"{max(0, shown.hit - begin):,}",
                f"{shown.prompt - max(begin, shown.hit):,}",
                f"{shown.clipped(group):,}",
            )
        )
    return table(("layers", "tokens run", "fed again", "new", "windows cut short"), rows, numeric=(2, 3, 4))


def _groups(config: ModelConfig) -> list[str]:
    """The encoder, the last source, and the layers above it if there are any."""
    source, last = config.decoder_start, config.num_hidden_layers - 1
    above = {0: [], 1: [f"layer {last}"]}.get(last - source, [f"layers {source + 1}–{last}"])
    return ["layer 0" if source == 1 else f"layers 0–{source - 1}", f"layer {source}", *above]
