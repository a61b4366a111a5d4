"""Plots on a page: SVG that follows the page's theme, with a text for those who cannot see it.

Source: ds41's own.
"""

from __future__ import annotations

import hashlib
import io
import re
import textwrap
from html import escape

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from ds41.viz.diagram import localised, style_sheet
from ds41.viz.palette import PALETTE
from ds41.viz.style import LINE_LABEL

# Width in inches that the plot is laid out for on a phone; its text has the same size in points.
_NARROW = 3.5


class Plot:
    """A drawn plot. Notebooks show the HTML; where there is none, an image or the text."""

    def __init__(self, html: str, png: bytes, alt: str) -> None:
        self._html = html
        self._png = png
        self.alt = alt

    def _repr_html_(self) -> str:
        return localised(self._html)

    def _repr_png_(self) -> bytes:
        return self._png

    def __repr__(self) -> str:
        return self.alt


def show(fig: Figure, *, alt: str, caption: str = "", title: str | None = None, narrow: bool = True) -> Plot:
    """Turn a matplotlib figure into a figure of the book, and close it.

    The plot is inlined as SVG whose palette colours are CSS variables, so it changes with the page between light
    and dark. It is laid out twice, for the text column and for a phone, with text of the same size in both.

    Args:
        alt: what a reader who does not see the plot should know: what is drawn, and what it shows.
        caption: HTML under the plot: source, device, caveat.
        title: the plot's message as a sentence; default: the title of a single pair of axes, which moves from the
            picture into the page, where it can wrap.
        narrow: False keeps one layout, which a phone then shrinks.

    Raises:
        ValueError: ``alt`` is empty.
    """
    if not alt.strip():
        raise ValueError("alt is empty; expected a sentence that says what the plot shows")
    png = _save(fig, "png")
    if title is None:
        title = _take_title(fig)
    pictures = [("ds-wide" if narrow else "", _svg(fig))]
    if narrow:
        _make_narrow(fig)
        pictures.append(("ds-narrow", _svg(fig)))
    plt.close(fig)
    identity = "ds-fig-" + hashlib.sha256(repr((pictures, alt, caption, title)).encode()).hexdigest()[:10]
    body = ""
    for name, svg in pictures:
        # Two plots share ids such as "axes_1"; the page needs each once.
        prefix = f"{identity}-{name or 'plot'}-"
        svg = svg.replace(f' id="{LINE_LABEL}"', "")
        svg = re.sub(r'\bid="', f'id="{prefix}', svg)
        svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", svg)
        body += svg.replace("<svg ", f'<svg class="{name}" role="img" aria-label="{escape(alt)}" ', 1)
    html = "\n".join(
        (
            f'<figure class="ds-fig ds-plots" id="{identity}">',
            f"<style>{style_sheet('plots')}</style>",
            f'<p class="ds-title">{escape(title)}</p>' if title else "",
            f'<div class="ds-body">{body}</div>',
            f"<figcaption>{caption}</figcaption>" if caption else "",
            "</figure>",
        )
    )
    return Plot(html, png, alt)


def _make_narrow(fig: Figure) -> None:
    width, height = fig.get_size_inches()
    fig.set_size_inches(min(width, _NARROW), height)
    # Names beside the lines would take half of the width.
    for label in fig.findobj(lambda artist: artist.get_gid() == LINE_LABEL):
        label.set_text("\n".join(textwrap.wrap(label.get_text(), 12)))


def _take_title(fig: Figure) -> str:
    if fig.get_suptitle():
        title = fig.get_suptitle()
        fig.suptitle("")
        return title
    if len(fig.axes) != 1:
        return ""
    for place in ("left", "center", "right"):
        title = fig.axes[0].get_title(loc=place)
        if title:
            fig.axes[0].set_title("", loc=place)
            return title.replace("\n", " ")
    return ""


def _save(fig: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    # No date, so that the same plot gives the same bytes.
    metadata = {"Date": None} if kind == "svg" else None
    fig.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()


def _svg(fig: Figure) -> str:
    text = _save(fig, "svg").decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # In HTML the namespaces are understood; width and height are the page's business.
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'<svg ([^>]*?)width="[^"]*" height="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", text, count=1)
    for name, colour in PALETTE.items():
        text = re.sub(re.escape(colour.light) + r"\b", f"var(--ds-{name})", text, flags=re.IGNORECASE)
    return text
