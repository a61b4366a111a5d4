"""The trained models that ship with the package.

Source: ds41's own.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import torch

from ds41.checkpoint import load_checkpoint
from ds41.dspark import Calibration, Drafter, load_drafter
from ds41.linear import Quantization
from ds41.model import Model
from ds41.vision import Vision, load_vision

TRAINED = ("nano",)
"""The presets whose trained weights ship with the package."""


def trained_folder(name: str = "nano") -> Path:
    """Where a shipped checkpoint lies, in the official format.

    Raises:
        ValueError: an unknown name.
    """
    if name not in TRAINED:
        raise ValueError(f"name is {name!r}; expected one of {', '.join(map(repr, TRAINED))}")
    return Path(str(resources.files("ds41").joinpath("data", name)))


def trained_card(name: str = "nano") -> dict:
    """What was measured of a shipped model, and the recipe that made it (``benchmarks/model_card.py``)."""
    return json.loads(trained_folder(name).joinpath("card.json").read_text(encoding="utf-8"))


def trained_drafting(name: str = "nano") -> dict:
    """What was measured of a shipped model's drafter (``benchmarks/drafting.py``)."""
    return json.loads(trained_folder(name).joinpath("drafting.json").read_text(encoding="utf-8"))


def trained_seeing(name: str = "nano") -> dict:
    """What was measured of a shipped model's vision tower (``benchmarks/seeing.py``)."""
    return json.loads(trained_folder(name).joinpath("seeing.json").read_text(encoding="utf-8"))


def trained_log(name: str = "nano") -> dict[str, list]:
    """The curve of its run by column: step, stage, text, answers, alignment, rate, seconds, tokens."""
    return json.loads(trained_folder(name).joinpath("log.json").read_text(encoding="utf-8"))


def load_trained(
    name: str = "nano",
    quantization: Quantization = "cache",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Model:
    """A shipped model: "nano" was trained by ``ds41 train --preset nano``; its card lies beside it."""
    return load_checkpoint(trained_folder(name), quantization, dtype, device)


def load_trained_drafter(
    name: str = "nano",
    quantization: Quantization = "cache",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> tuple[Drafter, Calibration]:
    """The drafter of a shipped model, and the temperatures of its confidences."""
    calibration = Calibration.from_dict(trained_drafting(name)["calibration"])
    return load_drafter(trained_folder(name), quantization, dtype, device), calibration


def load_trained_vision(
    name: str = "nano", dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Vision:
    """The vision tower of a shipped model."""
    return load_vision(trained_folder(name), dtype, device)
