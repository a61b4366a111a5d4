"""How much memory a model would take, and how much there is."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

import torch
from torch import nn

_CGROUP = Path("/sys/fs/cgroup")
_MEMORY_FILE = Path("/proc/meminfo")


def model_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers, each in its own type; a model on the meta device will do."""
    return sum(tensor.numel() * tensor.element_size() for tensor in chain(model.parameters(), model.buffers()))


def available_bytes(device: torch.device) -> int | None:
    """Bytes that a new tensor on ``device`` may take without swapping; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    limits = [limit for limit in (_free_of_the_machine(), _free_of_the_container()) if limit is not None]
    return min(limits, default=None)


def _free_of_the_machine() -> int | None:
    try:
        fields = dict(line.split(":", 1) for line in _MEMORY_FILE.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        pass
    # Systems without /proc tell how much is installed.
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _free_of_the_container() -> int | None:
    """What a control group (version 2) leaves; cached files do not count, they make room when it is needed."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((_CGROUP / "memory.current").read_text())
        fields = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        return max(0, int(limit) - used + int(fields.get("file", 0)))
    except (OSError, ValueError):
        return None
