"""What this Python, this torch and this device can do, and how the book's code will use them.

Source: ds41's own.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import Literal

import torch

_INTERPRET = "TRITON_INTERPRET"


class EnvironmentUnavailable(RuntimeError):
    """The device asked for is not there."""


@dataclass(frozen=True)
class Environment:
    """One session's software and device.

    interpret: whether Triton kernels run under Triton's interpreter, so on CPU tensors. compute_dtype: the type
    that matrix products of this device should take, for compute_reason. note: something the reader should know,
    or "".
    """

    python: str
    torch: str
    triton: str | None
    device: str
    device_name: str
    capability: tuple[int, int] | None
    interpret: bool
    compute_dtype: torch.dtype
    compute_reason: str
    note: str = ""

    def report(self) -> str:
        """All of it in one line."""
        triton = f"triton {self.triton}" if self.triton else "no triton"
        if self.interpret:
            triton += " interpreted"
        where = f"{self.device_name} ({self.device}"
        where += f", sm_{self.capability[0]}{self.capability[1]})" if self.capability else ")"
        dtype = str(self.compute_dtype).removeprefix("torch.")
        line = f"Python {self.python}, torch {self.torch}, {triton}; {where}; {dtype}: {self.compute_reason}"
        return f"{line}; note: {self.note}" if self.note else line


def prepare(device: Literal["auto", "cpu", "cuda"] = "auto") -> Environment:
    """Choose the device and make Triton kernels runnable on it; call it before anything imports triton.

    On a CPU, kernels run under Triton's interpreter, which has to be switched on (``TRITON_INTERPRET=1``) before
    triton is imported. A value that the variable already has is left as it is. Prints nothing.

    Raises:
        ValueError: an unknown device. EnvironmentUnavailable: "cuda" where torch sees no CUDA device.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {device!r}; expected 'auto', 'cpu' or 'cuda'")
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        raise EnvironmentUnavailable(
            f"device 'cuda' was asked for, and torch {torch.__version__} ({build}) sees no CUDA device; "
            "use 'auto' or 'cpu', or switch the runtime to one with a GPU"
        )
    chosen = "cuda" if device != "cpu" and has_cuda else "cpu"
    return describe(chosen, note=_set_interpreter(chosen))


def describe(device: Literal["cpu", "cuda"], note: str = "") -> Environment:
    """The session as it stands, changing nothing."""
    capability = torch.cuda.get_device_capability() if device == "cuda" else None
    dtype, reason = compute_dtype(capability)
    return Environment(
        python=platform.python_version(),
        torch=torch.__version__,
        triton=triton_version(),
        device=device,
        device_name=torch.cuda.get_device_name() if device == "cuda" else _cpu_name(),
        capability=capability,
        interpret=interpreting(),
        compute_dtype=dtype,
        compute_reason=reason,
        note=note,
    )


@lru_cache
def device_names() -> tuple[str, ...]:
    """What the devices of this machine are called, the GPU first if there is one."""
    gpu = (torch.cuda.get_device_name(),) if torch.cuda.is_available() else ()
    return (*gpu, _cpu_name())


def compute_dtype(capability: tuple[int, int] | None) -> tuple[torch.dtype, str]:
    """Operand type for matrix products, and why; capability None means a CPU.

    ``torch.cuda.is_bf16_supported()`` does not answer this: it says yes where bf16 is only emulated.
    """
    if capability is None:
        return torch.float32, "every CPU computes in it natively"
    sm = f"sm_{capability[0]}{capability[1]}"
    if capability >= (8, 0):
        return torch.bfloat16, f"{sm} has bf16 tensor cores"
    if capability >= (7, 0):
        return torch.float16, f"the tensor cores of {sm} take fp16 and no bf16"
    return torch.float32, f"{sm} has no tensor cores"


def triton_version() -> str | None:
    """Version of the installed triton, without importing it; None if there is none."""
    if importlib.util.find_spec("triton") is None:
        return None
    for name in ("triton", "pytorch-triton", "triton-windows"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "of unknown version"


def interpreting() -> bool:
    """Whether Triton kernels run, or would run once triton is imported, under its interpreter."""
    language = sys.modules.get("triton.language")
    if language is None:
        return triton_version() is not None and _asks_for_interpreter()
    # Triton reads the variable when a kernel is defined, so for its own library functions at its import. A
    # function that was compiled then cannot be called from an interpreted kernel.
    return not isinstance(language.zeros, sys.modules["triton"].JITFunction)


def _set_interpreter(device: str) -> str:
    """Switch the interpreter on for a CPU; return what stands in the way, or ""."""
    if triton_version() is None:
        return "triton is not installed, so kernels cannot run" if device == "cpu" else "triton is not installed"
    wanted = device == "cpu"
    if wanted and "triton" not in sys.modules:
        os.environ.setdefault(_INTERPRET, "1")
    active = interpreting()
    if wanted and not active:
        if "triton" in sys.modules:
            return (
                f"triton was imported before {_INTERPRET}=1 was set, so kernels cannot run on this CPU; restart Python"
            )
        return f"{_INTERPRET}={os.environ[_INTERPRET]} is set, so kernels cannot run on this CPU"
    if active and not wanted:
        return f"{_INTERPRET} is set, so kernels run on the CPU, interpreted, although there is a GPU"
    return ""


def _asks_for_interpreter() -> bool:
    return os.environ.get(_INTERPRET, "0").lower() in ("1", "true", "yes", "on", "y")


def _cpu_name() -> str:
    """The processor's model where the system tells it, otherwise its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"
