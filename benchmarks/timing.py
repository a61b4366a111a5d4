"""Timing for comparisons: all candidates in turn, so that a busy moment of the machine hits every one of them."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from origin import cpu_name


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the smallest and the median over the rounds."""

    best: float
    median: float


def in_turn(candidates: dict[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, Timing]:
    """Call every candidate once a round, after one round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds + 1):
        for name, call in candidates.items():
            _synchronize(device)
            start = time.perf_counter()
            call()
            _synchronize(device)
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: Timing(min(values), statistics.median(values)) for name, values in seconds.items()}


def machine(device: torch.device) -> str:
    """One line that says where the numbers come from."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    return f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
