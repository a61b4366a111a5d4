"""Results of long measurements that ship with the package, so that a chapter can show them where it cannot rerun them.

Each file is JSON as its command in ``benchmarks/`` wrote it, the environment included.
"""

from __future__ import annotations

import json
from importlib import resources


def read_measured(name: str) -> dict:
    """The results ``name``, such as "ablations".

    Raises:
        ValueError: there are none of that name; the message lists those there are.
    """
    folder = resources.files("ds41").joinpath("data/measured")
    known = sorted(entry.name.removesuffix(".json") for entry in folder.iterdir())
    if name not in known:
        raise ValueError(f"no results named {name!r}; expected one of {', '.join(known)}")
    return json.loads(folder.joinpath(f"{name}.json").read_text(encoding="utf-8"))
