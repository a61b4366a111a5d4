"""Results of long measurements that ship with the package, so that a chapter can show them where it cannot rerun them.

Each file is JSON, the environment included. ``ablations``: ``benchmarks/ablations.py --rows 100 --write``.
``probe_selection``, ``probe_replay`` and ``probe_fp4``: ``ds41 probe NAME --json``, the first with ``--full``.
``probe_pairs``: the parts named ``pair`` of ``ds41 probe replay --seeds 6`` and ``ds41 probe fp4``, with ``--model``
the base of the ablations and ``--beside`` the variant without replay in training, and without FP4.
``simulation``: ``benchmarks/simulation.py --write``.

Source: ds41's own.
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
