"""Where measured numbers come from: every file of benchmarks/results/ says its device, its versions and its command."""

from __future__ import annotations

import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "triton", "numpy")


def origin(device: torch.device | str, command: Sequence[str] | None = None) -> dict:
    """What a record of numbers that were measured on ``device`` opens with; README.md beside the results explains it.

    command: the program and its arguments, by default those of this process.
    """
    # Here, because the rule for files of results is also kept where there is no torch.
    import torch

    device = torch.device(device)
    on_gpu = device.type == "cuda"
    record = {"device": torch.cuda.get_device_name(device) if on_gpu else cpu_name()}
    if on_gpu:
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
        record |= {"capability": capability, "driver": _driver(), "cuda": torch.version.cuda}
    else:
        record["threads"] = torch.get_num_threads()
    return record | {
        "versions": versions(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "command": command_line(sys.argv if command is None else command),
    }


def versions() -> dict[str, str]:
    """Python's and those of the packages that decide how fast something is; a package that is missing is left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def command_line(arguments: Sequence[str]) -> str:
    """The command as a person types it in the project's folder."""
    program = Path(arguments[0])
    if program.is_absolute() and program.is_relative_to(ROOT):
        program = program.relative_to(ROOT)
    return shlex.join(["python", program.as_posix(), *arguments[1:]])


def faults(record: dict) -> list[str]:
    """What a file of benchmarks/results/ lacks to say where its numbers come from."""
    found = []
    for name in ("device", "command"):
        if not isinstance(record.get(name), str) or not record[name].strip():
            found.append(f"{name} is {record.get(name)!r}; expected a sentence")
    known = record.get("versions")
    if not isinstance(known, dict) or not known.get("torch"):
        found.append(f"versions is {known!r}; expected those of Python, torch and what else matters")
    return found


def cpu_name() -> str:
    """The processor's model where the system tells it, otherwise its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            return next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _driver() -> str | None:
    """The version of the GPU's driver, which torch does not tell."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else None
