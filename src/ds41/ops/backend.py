"""The one place that decides whether an operation runs as plain torch or as a Triton kernel.

Source: ds41's own.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import Literal

import torch

from ds41.environment import interpreting

BackendName = Literal["torch", "triton"]
"""Where an operation runs: plain torch, which is the definition, or a Triton kernel."""

OVERRIDE = "DS41_BACKEND"
"""The environment variable that names a backend for the whole process."""
OLDEST_CAPABILITY = (7, 5)
"""Compute capability of the oldest GPU that kernels are compiled for, the T4."""


class BackendUnavailable(RuntimeError):
    """The backend asked for cannot run here; the message says what is missing."""


@dataclass(frozen=True)
class Backend:
    """What runs an operation, and why."""

    name: BackendName
    reason: str


def choose_backend(device: torch.device | str, backend: BackendName | None = None) -> Backend:
    """The backend for tensors on ``device``: ``backend`` if given, else DS41_BACKEND if set, else the better one.

    "torch" is the definition and runs anywhere. "triton" is for CUDA devices; on a CPU it needs Triton's
    interpreter, which checks kernels and is no way to run them fast, so there it is used only when asked for.

    Raises:
        ValueError: an unknown name. BackendUnavailable: "triton" is asked for and cannot run on ``device``.
    """
    device = torch.device(device)
    asked, by = (backend, "the caller") if backend is not None else (os.environ.get(OVERRIDE) or None, OVERRIDE)
    if asked not in (None, "torch", "triton"):
        raise ValueError(f"{by} asks for backend {asked!r}; expected 'torch' or 'triton'")
    if asked == "torch":
        return Backend("torch", f"{by} asks for it")
    if asked is None and device.type == "cpu":
        return Backend(
            "torch", "plain torch is the fast one on a CPU; there kernels are only interpreted, to check them"
        )
    obstacle = _obstacle(device)
    if asked == "triton":
        if obstacle is not None:
            raise BackendUnavailable(f"{by} asks for backend 'triton' on {device}: {obstacle}")
        return Backend("triton", f"{by} asks for it")
    if obstacle is not None:
        return Backend("torch", obstacle)
    if interpreting():
        return Backend("torch", "TRITON_INTERPRET is set, so kernels would be interpreted on the CPU, to check them")
    return Backend("triton", f"compiled kernels run on {device}")


def _obstacle(device: torch.device) -> str | None:
    """Why kernels cannot run on tensors of ``device``; None if they can."""
    if device.type not in ("cpu", "cuda"):
        return f"the kernels are for CUDA devices, not for {device.type}"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if interpreting():
        return None
    if device.type == "cpu":
        return (
            "on a CPU kernels need Triton's interpreter; call ds41.environment.prepare('cpu') or set "
            "TRITON_INTERPRET=1 before anything imports triton"
        )
    if torch.version.hip:
        return "the kernels are checked on NVIDIA GPUs only"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST_CAPABILITY:
        needed, found = (".".join(map(str, pair)) for pair in (OLDEST_CAPABILITY, capability))
        return f"the kernels need compute capability {needed}; {device} has {found}"
    return None
