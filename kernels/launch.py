"""One kernel launch as a value: what runs on the device is what gets compiled ahead of time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

_recorders: list[list[str]] = []


@contextmanager
def recorded() -> Iterator[list[str]]:
    """The names of the kernels that run within the block, in order."""
    launches: list[str] = []
    _recorders.append(launches)
    try:
        yield launches
    finally:
        # By identity: two lists of the same names are equal.
        _recorders[:] = [recorder for recorder in _recorders if recorder is not launches]


@dataclass(frozen=True)
class Launch:
    """A kernel with its grid and arguments, ready to run or to be compiled for a GPU that is not there.

    arguments: tensors, integers and None, by parameter name. constants: the kernel's ``tl.constexpr`` parameters.
    options: compiler options beside ``num_warps``. Fusing a product and a sum into one rounding would change bits
    from GPU to GPU and away from the interpreter, so it is off unless a kernel says otherwise.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    constants: dict[str, Any]
    num_warps: int
    options: dict[str, Any] = field(default_factory=lambda: {"enable_fp_fusion": False})

    def run(self) -> None:
        """Launch it.

        Raises:
            ValueError: the tensors are on different devices, or on one where no kernel runs.
        """
        self._check_devices()
        for launches in _recorders:
            launches.append(self.kernel.__name__)
        with self._device():
            self.kernel[self.grid](**self.arguments, **self.constants, num_warps=self.num_warps, **self.options)

    def _check_devices(self) -> None:
        tensors = {name: value for name, value in self.arguments.items() if isinstance(value, torch.Tensor)}
        places = {name: tensor.device for name, tensor in tensors.items()}
        first = next(iter(places.values()), None)
        other = next((name for name, device in places.items() if device != first), None)
        what = self.kernel.__name__.removesuffix("_kernel")
        if other is not None:
            raise ValueError(
                f"{what}: {other.removesuffix('_ptr')} is on {places[other]}; expected {first}, where "
                f"{next(iter(places)).removesuffix('_ptr')} is"
            )
        if first is not None and first.type not in ("cpu", "cuda"):
            raise ValueError(f"{what}: the tensors are on {first}; expected a CUDA device, or a CPU to interpret on")

    def _device(self):
        """Triton launches on the current CUDA device, which need not be the tensors' own."""
        for value in self.arguments.values():
            if isinstance(value, torch.Tensor) and value.device.type == "cuda":
                return torch.cuda.device(value.device)
        return nullcontext()


def targets_of(dtype: torch.dtype) -> tuple[int, ...] | None:
    """Where a case of an element-wise kernel is compiled: bfloat16 for every target, the others for two of them.

    float16 is what a T4 computes in, float32 what tests compare in; both differ from bfloat16 in a conversion only.
    """
    return None if dtype == torch.bfloat16 else (75, 90)


@dataclass(frozen=True)
class CompileCase:
    """A launch to compile for every target, under a name that says kernel, format and type.

    wide: the bulk of what the kernel loads and of what it stores must move in accesses of 16 bytes a thread.
    targets: the compute capabilities, such as 75, that launch it in this form; None for all.
    matrix: it must use the matrix instructions of its targets.
    """

    name: str
    launch: Launch
    wide: bool = True
    targets: tuple[int, ...] | None = None
    matrix: bool = False


def capability(tensor: torch.Tensor) -> int | None:
    """Compute capability of the device of ``tensor``, 75 for a T4; 0 on a CPU, under the interpreter; None on meta."""
    if tensor.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(tensor.device)
        return 10 * major + minor
    return None if tensor.device.type == "meta" else 0
