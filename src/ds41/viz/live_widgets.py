"""What the explorers of a running kernel share: a result first, controls under it, an answer to each change.

The answer is HTML in a widget and runs no script, so it looks the same with ipywidgets 7 (Colab) and 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from types import ModuleType
from typing import Any, Protocol

from ds41.viz.diagram import Diagram

# Read out by screen readers when it appears, and seen by nobody.
_SAID = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap"
WITHOUT = "ipywidgets is not installed: no controls"


class Shown(Protocol):
    """Anything that a notebook shows as HTML."""

    def _repr_html_(self) -> str: ...


def explore(
    first: Shown,
    build: Callable[[ModuleType], Mapping[str, Mapping[str, Any]]],
    answer: Callable[..., Diagram],
    prompt: str,
    reset: str,
    refused: str,
) -> None:
    """Show ``first``, and under it controls; every change shows ``answer(**values)`` below them.

    Args:
        build: ipywidgets -> the controls, by heading ("" for none) and then by the name that ``answer`` has for them.
        answer: gets each control's value. A ValueError is shown in words, in place of a figure.
        prompt: what stands in the answer's place before anything has changed.
        reset: label of the button that brings the first values back.
        refused: title of the figure that shows an error.

    Without ipywidgets ``first`` stands alone, and a line says so.
    """
    from IPython.display import display

    display(first)
    try:
        import ipywidgets as widgets
    except ImportError:
        print(WITHOUT)
        return
    groups = build(widgets)
    controls = {name: control for group in groups.values() for name, control in group.items()}
    before = {name: control.value for name, control in controls.items()}
    place = widgets.HTML(value=f"<p>{escape(prompt)}</p>")
    setting = False

    def update(_change: object = None) -> None:
        if not setting:
            place.value = _page(answer, {name: control.value for name, control in controls.items()}, refused)

    def restore(_button: object) -> None:
        nonlocal setting
        setting = True
        try:
            for name, control in controls.items():
                control.value = before[name]
        finally:
            setting = False
        update()

    for control in controls.values():
        control.layout.width = "98%"
        control.observe(update, names="value")
    button = widgets.Button(description=reset, layout=widgets.Layout(width="auto"))
    button.on_click(restore)
    columns = [_column(widgets, heading, group) for heading, group in groups.items()]
    row = widgets.HBox(columns, layout=widgets.Layout(flex_flow="row wrap", align_items="flex-start"))
    display(widgets.VBox([row, button, place], layout=widgets.Layout(max_width="48rem")))


def refusal(title: str, error: Exception) -> Diagram:
    """An error in the place of a figure, in the words of whoever raised it."""
    return Diagram(kind="report", title=title, body=f"<p>{escape(str(error))}</p>")


def _page(answer: Callable[..., Diagram], values: dict[str, Any], refused: str) -> str:
    try:
        figure = answer(**values)
    except ValueError as error:
        figure = refusal(refused, error)
        said = f"{figure.title}: {error}"
    else:
        said = figure.title
    return f'<p role="status" style="{_SAID}">{escape(said)}</p>{figure._repr_html_()}'


def _column(widgets: ModuleType, heading: str, group: Mapping[str, Any]) -> Any:
    title = [widgets.HTML(value=f"<b>{escape(heading)}</b>")] if heading else []
    width = "23rem" if heading else "100%"
    return widgets.VBox([*title, *group.values()], layout=widgets.Layout(width=width, margin="0 1rem 0.5rem 0"))
