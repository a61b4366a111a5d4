"""The checkpoint of a run that may be killed: replaced as a whole, and refused by any other run.

Source: ds41's own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch

STATE = "state.pt"
"""The file of a run's checkpoint."""


class ResumeError(ValueError):
    """The folder's checkpoint belongs to another run, or cannot be read."""


def write_state(path: Path, state: Mapping[str, object]) -> None:
    """Replace the checkpoint at ``path``; one that is killed while it writes leaves the last."""
    partial = path.with_suffix(".partial")
    torch.save(dict(state), partial)
    os.replace(partial, path)


def read_state(path: Path, identity: Mapping[str, object]) -> dict | None:
    """The checkpoint at ``path``, on the CPU; None where there is none.

    Args:
        identity: what the run depends on, as plain values by name; a checkpoint holds the same.

    Raises:
        ResumeError: it cannot be read, or belongs to another run.
    """
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ResumeError(f"{path} cannot be read as a checkpoint ({type(error).__name__})") from error
    if not isinstance(state, dict):
        raise ResumeError(f"{path} holds a {type(state).__name__}; expected the state of a run")
    for name, expected in identity.items():
        if state.get(name) != expected:
            raise ResumeError(
                f"{path} belongs to another run: its {name} differs{_differing(state.get(name), expected)}; "
                "train into another folder"
            )
    return state


def digest(weights: Mapping[str, torch.Tensor] | None) -> str | None:
    """SHA-256 of weights by name; None for none."""
    if weights is None:
        return None
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode())
        found.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def _differing(found: object, expected: object) -> str:
    """Which settings of two recipes differ."""
    if not (isinstance(found, dict) and isinstance(expected, dict)):
        return ""
    return f" in {', '.join(sorted(k for k in found.keys() | expected.keys() if found.get(k) != expected.get(k)))}"
