"""Drives an explorer as a reader would: sees what it shows, and finds its controls by what stands beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest


class Explored(NamedTuple):
    """What an explorer shows: the first result, the controls by label, the button, the place of the answers."""

    first: Any
    controls: dict[str, Any]
    button: Any
    place: Any


def explored(monkeypatch: pytest.MonkeyPatch, explorer: Callable, *args: Any, **options: Any) -> Explored:
    shown: list = []
    monkeypatch.setattr("IPython.display.display", lambda *items: shown.extend(items))
    explorer(*args, **options)
    first, box = shown
    row, button, place = box.children
    return Explored(first, dict(_controls(row)), button, place)


def _controls(box: Any):
    for child in box.children:
        if hasattr(child, "children"):
            yield from _controls(child)
        elif child.description:
            yield child.description, child
