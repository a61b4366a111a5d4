"""What the commands that run a model share: their options, the model itself, and how they end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ds41.config import ConfigError, ModelConfig

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from ds41.environment import Environment
    from ds41.model import Model

_PRESETS = ("nano", "mini")
_INTERRUPTED = 130


def add_sampling_options(command: argparse.ArgumentParser, seed: str) -> None:
    """How answers are drawn; ``seed`` says what a seed gives."""
    command.add_argument(
        "--max-new-tokens", type=int, default=128, metavar="N", help="tokens to generate at most (default: 128)"
    )
    command.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="divides the logits; 0 takes the likeliest token "
        "(default: 1)"
    )  # fmt: skip
    command.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="draw from the likeliest tokens that make up this "
        "probability (default: 1, all)"
    )  # fmt: skip
    command.add_argument("--seed", type=int, metavar="N", help=seed)


def add_quantization_option(command: argparse.ArgumentParser, *, unrounded: bool = False) -> None:
    """``--quantization``; unrounded: nothing may be rounded, not even the caches."""
    command.add_argument(
        "--quantization",
        choices=("none", "cache", "full") if unrounded else ("cache", "full"),
        default="cache",
        help=f"what is rounded: {'nothing, ' if unrounded else ''}the caches, or also the inputs of FP8 and FP4 "
        "matrices (default: cache)",
    )


def add_model_options(command: argparse.ArgumentParser) -> None:
    """Which model, where and in what types, apart from ``--quantization``."""
    command.add_argument(
        "--preset", choices=_PRESETS, help="a small model over bytes: nano as it was trained, mini with random weights"
    )
    command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto")
    command.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="of the weights; auto is bfloat16 on a GPU that computes in it, else float32",
    )
    command.add_argument(
        "--engram-on-disk", action="store_true", help="leave the checkpoint's Engram tables in their files"
    )
    command.add_argument("--verbose", action="store_true", help="tell on stderr what runs and how fast")


def checkpoint_folder(options: argparse.Namespace, folder: str | None) -> str | None:
    """``folder``, or where the preset that the options name ships trained; None for random weights."""
    from ds41.trained import TRAINED, trained_folder

    if folder is None and options.preset in TRAINED:
        return str(trained_folder(options.preset))
    return folder


def part_folder(options: argparse.Namespace, folder: str | None, part: str) -> str:
    """The checkpoint to read a part beside the model from.

    Raises:
        ValueError: a preset with random weights.
    """
    found = checkpoint_folder(options, folder)
    if found is None:
        raise ValueError(
            f"preset {options.preset} has random weights and no {part}; expected a checkpoint that holds one"
        )
    return found


def check_one_model(options: argparse.Namespace, command: str) -> None:
    """Refuse both a folder and a preset, and neither (ValueError)."""
    if (options.folder is None) == (options.preset is None):
        given = "both" if options.preset else "neither"
        raise ValueError(f"{command} takes FOLDER or --preset NAME; it was given {given}")


def dtype_name(options: argparse.Namespace, found: Environment) -> str:
    """The type of the weights by its name in torch: what ``--dtype`` says, or what the device computes in."""
    import torch

    auto = "bfloat16" if found.compute_dtype is torch.bfloat16 else "float32"
    return auto if options.dtype == "auto" else options.dtype


def load_model(options: argparse.Namespace, folder: str | None, found: Environment) -> tuple[Model, Tokenizer]:
    """The checkpoint in ``folder``, or without one the preset that the options name, trained where that ships."""
    import torch

    from ds41.checkpoint import load_checkpoint
    from ds41.model import Model
    from ds41.tokenizer import byte_tokenizer, load_tokenizer

    dtype = getattr(torch, dtype_name(options, found))
    folder = checkpoint_folder(options, folder)
    if folder is not None:
        engram = "disk" if options.engram_on_disk else "memory"
        model = load_checkpoint(folder, options.quantization, dtype, found.device, engram)
        return model, load_tokenizer(folder)
    print(f"ds41: preset {options.preset} has random weights; its text means nothing", file=sys.stderr)
    config = {"nano": ModelConfig.nano, "mini": ModelConfig.mini}[options.preset]()
    torch.manual_seed(0)
    return Model(config, options.quantization, dtype).to(found.device), byte_tokenizer()


def described(model: Model) -> str:
    """Size, type and quantization of a model in a few words."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    kind = str(model.dtype).removeprefix("torch.")
    return f"{parameters:,} parameters in {kind}, quantization {model.quantization}"


def run_command(work: Callable[[], int]) -> int:
    """Run what a command does; whatever its user can mend becomes one line on stderr and status 2.

    An interrupt is status 130. Errors of configurations and of the output are left to :func:`ds41.cli.main`.
    """
    # Imported here: --help and errors of usage should not wait for torch.
    import torch

    from ds41.environment import EnvironmentUnavailable
    from ds41.serving.redis_windows import WindowPoolError
    from ds41.serving.store_errors import StoreError

    try:
        return work()
    except KeyboardInterrupt:
        print("\nds41: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except ConfigError:
        raise
    except (ValueError, FloatingPointError, MemoryError, FileNotFoundError) as error:
        return _fail(error)
    except (EnvironmentUnavailable, torch.OutOfMemoryError, StoreError, WindowPoolError) as error:
        return _fail(error)


def _fail(error: Exception) -> int:
    sys.stdout.flush()
    print(f"ds41: {error}", file=sys.stderr)
    return 2
