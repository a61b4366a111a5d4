"""What layers select in a text, as a still picture: a line of tokens for each layer, and the text with its marks.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from html import escape

from ds41.viz.diagram import Diagram, table
from ds41.viz.layer_map import MODE_NAMES


@dataclass(frozen=True)
class LayerChoice:
    """What one layer selects for one token.

    ratio: tokens that an entry stands for. visible: entries that there are. entries: those selected, ascending. pool:
    entries of the candidate pool that the layer chose from, or that it makes for later ones; None if nothing is left
    out. pool_source: the layer that makes the pool, or None. followers: layers that reuse the choice.
    """

    layer: int
    mode: str
    ratio: int
    visible: int
    entries: tuple[int, ...]
    pool: tuple[int, ...] | None
    pool_source: int | None
    followers: tuple[int, ...]

    def tokens(self, entries: Iterable[int] | None = None) -> list[int]:
        """Positions that the entries stand for (default: those selected), ascending."""
        chosen = self.entries if entries is None else entries
        return [entry * self.ratio + part for entry in chosen for part in range(self.ratio)]

    def beyond(self, start: int) -> tuple[int, ...]:
        """The selected entries all of whose tokens lie before position ``start``."""
        return tuple(entry for entry in self.entries if (entry + 1) * self.ratio <= start)


@dataclass(frozen=True)
class SelectionReport:
    """What a model selects for the token at position ``token``; position 0 is the begin token.

    spans: (start, end) in ``text`` of each token. window: tokens that every layer sees in any case. likely: the three
    likeliest next tokens with their probabilities.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    token: int
    window: int
    choices: tuple[LayerChoice, ...]
    likely: tuple[tuple[str, float], ...]

    @property
    def window_start(self) -> int:
        """The first position that the window holds."""
        return max(0, self.token + 1 - self.window)

    def reach(self, choice: LayerChoice) -> int:
        """How many tokens before the asking one the farthest selected token lies."""
        return self.token - choice.tokens()[0] if choice.entries else 0

    def words(self, choice: LayerChoice, entries: Iterable[int] | None = None) -> list[str]:
        """The selected text, neighbours together, line ends as ↵, the begin token as ⊢."""
        return [_visible(self._piece(first, last)) for first, last in _runs(choice.tokens(entries))]

    def diagram(self, shown: Collection[int] | None = None) -> Diagram:
        """The picture; ``shown`` are the layers whose text is open, by default the first."""
        shown = (self.choices[0].layer,) if shown is None else shown
        farthest = max(self.reach(choice) for choice in self.choices)
        if farthest >= self.window:
            title = f"The model looks up to {farthest:,} tokens back; its window ends after {self.window}"
        else:
            title = f"Nothing selected lies beyond the window of {self.window} tokens"
        likely = ((escape(_visible(text)), share) for text, share in self.likely)
        next_ones = ", ".join(f'<b translate="no">{text}</b> {100 * share:.0f} %' for text, share in likely)
        return Diagram(
            kind="lookup",
            title=title,
            body="".join(self._layer(choice, choice.layer in shown) for choice in self.choices) + _legend(),
            caption=f"{self.token + 1:,} tokens, the begin token included; the last one asks. Likeliest next: "
            f"{next_ones}.",
            table=self._table(),
        )

    def _layer(self, choice: LayerChoice, opened: bool) -> str:
        beyond = len(choice.beyond(self.window_start))
        name = f"layer {choice.layer}, {MODE_NAMES[choice.mode]}"
        if len(choice.entries) == choice.visible:
            what = f"all {choice.visible} entries: no more than it may select"
        else:
            what = f"{len(choice.entries)} of {choice.visible} entries, {beyond} beyond the window"
        return (
            f'<details class="ds-choice"{" open" if opened else ""}><summary><span class="ds-row"><b>{name}</b> '
            f"<small>{what}</small></span>{self._line(choice)}</summary>"
            f'<p class="ds-note">{self._note(choice)}</p>'
            f'<div class="ds-text" role="region" aria-label="The text, as {name}, selects from it" tabindex="0">'
            f'<span translate="no">{self._marked(choice)}</span></div></details>'
        )

    def _line(self, choice: LayerChoice) -> str:
        """All tokens from left to right: the pool below, selected ones above, the window's bracket over its end."""
        count, parts = self.token + 1, ""
        if choice.pool is not None:
            parts += f'<path class="ds-pool" d="{_blocks(_runs(choice.tokens(choice.pool)), 15, 4)}"/>'
        parts += f'<path class="ds-picked" d="{_blocks(_runs(choice.tokens()), 4, 11)}"/>'
        parts += f'<path class="ds-span" d="M{self.window_start} 4V1H{count}V4"/>'
        return (
            f'<svg class="ds-line" viewBox="0 0 {count} 20" preserveAspectRatio="none" aria-hidden="true">'
            f'<path class="ds-axis" d="M0 15H{count}"/>{parts}</svg>'
        )

    def _note(self, choice: LayerChoice) -> str:
        every = "An entry stands for one token" if choice.ratio == 1 else f"An entry stands for {choice.ratio} tokens"
        notes = [every, f"the farthest selected one lies {self.reach(choice):,} tokens back"]
        if choice.pool_source is not None:
            if choice.pool is None:
                notes.append(f"the pool of layer {choice.pool_source} holds every entry")
            elif choice.pool_source == choice.layer:
                notes.append(f"for later layers it makes a pool of {len(choice.pool)} entries")
            else:
                notes.append(f"it may choose among {len(choice.pool)}, the pool of layer {choice.pool_source}")
        if choice.followers:
            layers = ", ".join(map(str, choice.followers))
            many = len(choice.followers) > 1
            notes.append(f"layers {layers} reuse the choice" if many else f"layer {layers} reuses the choice")
        return "; ".join(notes) + "."

    def _marked(self, choice: LayerChoice) -> str:
        """The text up to the asking token; a character whose bytes are several tokens is marked with any of them."""
        picked = set(choice.tokens())
        pool = set(choice.tokens(choice.pool)) if choice.pool is not None else set()
        end = self.spans[self.token][1]
        kinds = [""] * end
        for position in range(1, self.token + 1):
            kind = ("s" if position in picked else "") + ("p" if position in pool else "")
            kind += "w" if position >= self.window_start else ""
            first, last = self.spans[position]
            for place in range(first, last):
                kinds[place] = "".join(sorted(set(kinds[place]) | set(kind)))
        begin = _run("s" if 0 in picked else "", "⊢")
        pieces, start = [begin], 0
        for place in range(1, end + 1):
            if place == end or kinds[place] != kinds[start]:
                pieces.append(_run(kinds[start], self.text[start:place]))
                start = place
        return "".join(pieces)

    def _piece(self, first: int, last: int) -> str:
        """The text of positions ``first`` to ``last``, both included."""
        text = self.text[self.spans[max(first, 1)][0] : self.spans[last][1]] if last else ""
        return ("⊢" if first == 0 else "") + text

    def _table(self) -> str:
        rows = [
            (
                f"layer {choice.layer}",
                MODE_NAMES[choice.mode],
                choice.ratio,
                choice.visible,
                "–" if choice.pool is None else len(choice.pool),
                len(choice.entries),
                len(choice.beyond(self.window_start)),
                self.reach(choice),
                " · ".join(self.words(choice)),
            )
            for choice in self.choices
        ]
        header = (
            "layer", "mode", "tokens per entry", "entries", "in the pool", "selected", "beyond the window",
            "farthest, tokens back", "selected text",
        )  # fmt: skip
        return table(header, rows, numeric=(2, 3, 4, 5, 6, 7))


def _runs(positions: Iterable[int]) -> list[tuple[int, int]]:
    """[1, 2, 3, 7] -> [(1, 3), (7, 7)]."""
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and position == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], position
        else:
            runs.append((position, position))
    return runs


def _blocks(runs: list[tuple[int, int]], top: int, height: int) -> str:
    return "".join(f"M{first} {top}H{last + 1}V{top + height}H{first}Z" for first, last in runs)


def _run(kind: str, text: str) -> str:
    shown = escape(text).replace("\n", '<span class="ds-end">↵</span>\n')
    if not kind:
        return shown
    name = " ".join({"s": "ds-s", "p": "ds-p", "w": "ds-w"}[letter] for letter in kind)
    element = "mark" if "s" in kind else "span"
    return f'<{element} class="{name}">{shown}</{element}>'


def _visible(text: str) -> str:
    """One line, and never only white space."""
    shown = text.replace("\n", "↵").replace("\t", "→")
    return shown if shown.strip() else shown.replace(" ", "␣")


def _legend() -> str:
    return (
        '<p class="ds-key"><span><mark class="ds-s">selected</mark></span>'
        '<span><span class="ds-p">in the candidate pool</span></span>'
        '<span><span class="ds-w">in the window</span></span><span>⊢ begin token</span><span>↵ end of a line</span></p>'
    )
