"""The pictures that chats and networks show for a link into the book: the page's title over the 890 bytes, to scale.

Bytes and colours come from the landing picture, book/_static/ledger.svg, which the package draws and a test compares.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from page_markup import PageError

SIZE = (1200, 630)
_MARGIN = 64
_BAR = (470, 54)  # top and height, in pixels


@dataclass(frozen=True)
class Bar:
    """Bytes of one token by the layer that owns them, their share of main KV, and the colours of both kinds."""

    owners: dict[str, int]
    main: int
    index: int
    colours: dict[str, str]

    @classmethod
    def of(cls, picture: str) -> Bar:
        """Read off the landing picture.

        Raises:
            PageError: the picture does not say what it shows.
        """
        owners = re.findall(r'class="bold">(\d+) B</tspan><tspan[^>]*>(layer \d+)<', picture)
        split = re.search(r"of which (\d+) are main KV and (\d+) index keys", picture)
        # Both themes name every colour, light first; of equal names a dict keeps the last.
        colours = dict(reversed(re.findall(r"--ds-(\w+):(#[0-9a-f]{6})", picture)))
        if not owners or split is None:
            raise PageError("ledger.svg does not name its owners' bytes; expected what ci/render_figures.py draws")
        return cls({layer: int(size) for size, layer in owners}, int(split[1]), int(split[2]), colours)

    @property
    def total(self) -> int:
        return sum(self.owners.values())


def draw(cards: dict[Path, str], book: str, bar: Bar) -> None:
    """Write a card for each title in `cards`."""
    with _canvas() as (fig, ax):
        ink, soft = bar.colours["ink"], bar.colours["neutral"]
        _draw_bar(ax, bar)
        ax.text(_MARGIN, SIZE[1] - 44, book, color=soft, fontsize=22, va="bottom")
        title = ax.text(_MARGIN, 84, "", color=ink, va="top", weight="bold", linespacing=1.25)
        for path, words in cards.items():
            # The longest titles still end above the bar.
            size, width = (56, 30) if len(words) <= 84 else (42, 42)
            title.set_text("\n".join(textwrap.wrap(words, width, max_lines=4, placeholder=" …")))
            title.set_fontsize(size)
            path.parent.mkdir(parents=True, exist_ok=True)
            fig.savefig(path, metadata={"Software": None}, pil_kwargs={"optimize": True})


@contextmanager
def _canvas() -> Iterator[tuple]:
    """A figure whose units are pixels, with fonts that come with matplotlib."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.family": "DejaVu Sans", "svg.hashsalt": "ds41"}):
        fig = Figure(figsize=(SIZE[0] / 72, SIZE[1] / 72), dpi=72, facecolor="#ffffff")
        ax = fig.add_axes((0, 0, 1, 1))
        ax.set(xlim=(0, SIZE[0]), ylim=(SIZE[1], 0))
        ax.axis("off")
        yield fig, ax


def _draw_bar(ax, bar: Bar) -> None:
    from matplotlib.patches import Rectangle

    top, height = _BAR
    gap = 8
    scale = (SIZE[0] - 2 * _MARGIN - gap * (len(bar.owners) - 1)) / bar.total
    left = float(_MARGIN)
    for size in bar.owners.values():
        main = scale * size * bar.main / (bar.main + bar.index)
        ax.add_patch(Rectangle((left, top), main, height, color=bar.colours["main"], lw=0))
        width = scale * size - main
        # The notches say index keys without the colour.
        ax.add_patch(Rectangle((left + main, top + 12), width, height - 12, color=bar.colours["index"], lw=0))
        teeth = max(2, round(width / 16))
        for tooth in range(teeth):
            x = left + main + width * tooth / teeth
            ax.add_patch(Rectangle((x, top), width / teeth / 2, 12.5, color=bar.colours["index"], lw=0))
        ax.text(left, top - 12, f"{size} B", color=bar.colours["ink"], fontsize=22, va="bottom")
        left += scale * size + gap
