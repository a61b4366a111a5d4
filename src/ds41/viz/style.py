"""One style for all plots: colours by meaning, direct labels, log axes for bytes and context.

Source: ds41's own.
"""

from __future__ import annotations

import logging
from importlib import resources
from typing import Literal

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from ds41.viz.palette import PALETTE

AxisName = Literal["x", "y"]
Standing = Literal["published", "measured", "predicted"]
CONTEXT_TICKS = {2**12: "4K", 2**16: "64K", 2**20: "1M"}
# Marks the labels that show() wraps on a narrow page.
LINE_LABEL = "line-label"
_CYCLE = ("main", "index", "window", "memory", "neutral")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def use_style() -> None:
    """Give every following plot the book's style. Colours are the light ones; :func:`ds41.viz.show` turns them."""
    # The style names fonts of several systems; that this machine lacks most of them is no news.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    with resources.as_file(resources.files("ds41.viz").joinpath("ds41.mplstyle")) as path:
        mpl.style.use(path)
    ink, grid, page, neutral = (colour(name) for name in ("ink", "grid", "page", "neutral"))
    mpl.rcParams.update(
        {
            "figure.facecolor": page,
            "axes.facecolor": page,
            "savefig.facecolor": page,
            "text.color": ink,
            "axes.titlecolor": ink,
            "axes.labelcolor": neutral,
            "axes.edgecolor": neutral,
            "xtick.color": neutral,
            "ytick.color": neutral,
            "grid.color": grid,
            "axes.prop_cycle": cycler(color=[colour(name) for name in _CYCLE]),
        }
    )


def colour(name: str) -> str:
    """The colour of a meaning for plots: "main", "index", "window", "memory", "hit", "neutral", "ink", ...

    Raises:
        ValueError: a meaning that is none; the message lists them.
    """
    if name not in PALETTE:
        raise ValueError(f"colour is {name!r}; expected one of: {', '.join(PALETTE)}")
    return PALETTE[name].light


def marks(meaning: str, standing: Standing) -> dict:
    """Keyword arguments for ``ax.plot``: published points hollow, measured ones filled, predictions as lines.

    Raises:
        ValueError: a meaning or a standing that is none.
    """
    hue = colour(meaning)
    # Points at the edge of the axes are shown whole, and above the lines.
    points = {"color": hue, "linestyle": "none", "marker": "o", "clip_on": False, "zorder": 3}
    if standing == "published":
        return {**points, "markerfacecolor": colour("page")}
    if standing == "measured":
        return points
    if standing == "predicted":
        return {"color": hue, "linestyle": "-", "marker": ""}
    raise ValueError(f"standing is {standing!r}; expected published, measured or predicted")


def context_axis(ax: Axes, axis: AxisName = "x", label: str = "context, tokens") -> None:
    """A log axis of context lengths with ticks at 4K, 64K and 1M.

    Raises:
        ValueError: an axis that is neither "x" nor "y".
    """
    _log_scale(ax, axis, base=2)
    one = _axis(ax, axis)
    one.set_major_locator(FixedLocator(list(CONTEXT_TICKS)))
    one.set_major_formatter(FuncFormatter(lambda value, _: CONTEXT_TICKS.get(round(value), f"{value:,.0f}")))
    _label(ax, axis, label)


def bytes_axis(ax: Axes, axis: AxisName = "y", label: str = "bytes", log: bool = True) -> None:
    """An axis of bytes, log unless told otherwise, with ticks such as 10 kB and 1 GB (powers of ten).

    Raises:
        ValueError: an axis that is neither "x" nor "y".
    """
    if log:
        _log_scale(ax, axis, base=10)
        _axis(ax, axis).set_major_locator(LogLocator(base=10, numticks=8))
    _axis(ax, axis).set_major_formatter(FuncFormatter(lambda value, _: readable_bytes(value)))
    _label(ax, axis, label)


def readable_bytes(value: float) -> str:
    """1e9 -> "1 GB": decimal units, three significant digits."""
    step = 0
    while abs(value) >= 1000 ** (step + 1) and step < len(_UNITS) - 1:
        step += 1
    return f"{value / 1000**step:.3g} {_UNITS[step]}"


def label_line(line: Line2D, text: str, at: int = -1, offset: tuple[float, float] = (6, 0), **kwargs) -> Annotation:
    """Write a line's name beside it, in its colour, instead of a legend.

    Args:
        at: index of the data point to stand at.
        offset: points to the right and up from there.
    """
    x, y = line.get_xdata()[at], line.get_ydata()[at]
    if "ha" not in kwargs:
        kwargs["ha"] = "left" if offset[0] > 0 else "right" if offset[0] < 0 else "center"
    if "va" not in kwargs:
        kwargs["va"] = "center" if offset[1] == 0 else "bottom" if offset[1] > 0 else "top"
    label = line.axes.annotate(
        text, (x, y), xytext=offset, textcoords="offset points", color=line.get_color(), annotation_clip=False, **kwargs
    )
    label.set_gid(LINE_LABEL)
    return label


def _axis(ax: Axes, axis: AxisName):
    if axis not in ("x", "y"):
        raise ValueError(f"axis is {axis!r}; expected x or y")
    return ax.xaxis if axis == "x" else ax.yaxis


def _log_scale(ax: Axes, axis: AxisName, base: int) -> None:
    one = _axis(ax, axis)
    (ax.set_xscale if axis == "x" else ax.set_yscale)("log", base=base)
    one.set_minor_locator(NullLocator())


def _label(ax: Axes, axis: AxisName, label: str) -> None:
    (ax.set_xlabel if axis == "x" else ax.set_ylabel)(label)
