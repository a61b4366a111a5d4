"""The GPU, where there is one, and what torch and Triton need to use it. A workshop runs without.

Source: ds41's own.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

from ds41.language import say
from ds41.preflight.finding import Finding, Outcome, install, probe, readable

OLDEST = (7, 5)
"""Compute capability of the oldest GPU that kernels are compiled for, the T4 (``ds41.ops.backend``)."""
MEMORY = 15 * 10**9
"""Bytes of the GPU that full scale is sized for: a T4's."""
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
ON_CPU = 'DEVICE = "cpu"'
"""What the parameters of a chapter say where its GPU is not to be used."""


def gpu(torch: Outcome) -> Finding:
    """What the GPU is and what runs on it; ``torch`` is the outcome of the program "gpu"."""

    def finding(state, found, mend=""):
        expected = say("none is needed; from sm_75 on and with {memory}, chapters run on it at full scale",
                       memory=readable(MEMORY))  # fmt: skip
        return Finding("gpu", say("GPU"), state, found, expected, mend)

    told = torch.answer
    if not told:
        return finding("warn", *_unknown())
    if told["available"] and not told["devices"]:
        found = say("torch sees a GPU and cannot name it: {trouble}", trouble=told["computes"] or say("no device"))
        return finding("warn", found, _away())
    if not told["available"]:
        return finding("ok", say('none: the chapters run on the processor; SCALE = "small" is meant for it'))
    first = told["devices"][0]
    capability = tuple(first["capability"])
    found = say("{name}, sm_{major}{minor}, {memory}", name=first["name"], major=capability[0], minor=capability[1],
                memory=readable(first["memory"]))  # fmt: skip
    if told["computes"]:
        return finding("warn", say("{gpu}; a sum on it fails: {trouble}", gpu=found, trouble=told["computes"]), _away())
    if capability < OLDEST:
        return finding("warn", found, say("Set {parameter} in the chapters: no kernel is compiled for it.",
                                          parameter=ON_CPU))  # fmt: skip
    if first["memory"] < MEMORY:
        return finding("warn", found, say('Set SCALE = "small" in the chapters.'))
    return finding("ok", found)


def driver(torch: Outcome) -> Finding:
    """Whether torch and the NVIDIA driver fit together."""

    def finding(state, found, mend=""):
        expected = say(
            "where there is an NVIDIA GPU: its driver, and a torch for CUDA that the driver is new enough for"
        )
        return Finding("driver", say("driver and torch"), state, found, expected, mend)

    told, seen = torch.answer, _nvidia_smi()
    if not told:
        return finding("warn", *_unknown())
    cuda = told["cuda"]
    build = say("torch {version} for CUDA {cuda}", version=told["torch"], cuda=cuda) if cuda else say(
        "torch {version} without CUDA", version=told["torch"])  # fmt: skip
    if told["available"]:
        return finding("ok", say("{torch}; driver: {driver}", torch=build, driver=seen or say("not told")))
    if seen and not cuda:
        return finding("warn", say("{torch}, although there is {driver}", torch=build, driver=seen),
                       install("--force-reinstall", "torch"))  # fmt: skip
    if seen:
        # torch says here whether the driver is too old for it.
        why = "; ".join(told["warnings"]) or say("torch sees no GPU")
        return finding("warn", say("{torch}, {driver}: {why}", torch=build, driver=seen, why=why),
                       say("Update the NVIDIA driver, or go on without the GPU."))  # fmt: skip
    if _nvidia_hardware():
        return finding("warn", say("{torch}; an NVIDIA GPU without a driver that answers", torch=build),
                       say("Install the NVIDIA driver, or go on without the GPU."))  # fmt: skip
    return finding("ok", say("{torch}; no NVIDIA GPU, so no driver is needed", torch=build))


def compiler(torch: Outcome) -> Finding:
    """Whether there is a C compiler with Python's headers: Triton builds its launchers with it, on a GPU only."""
    name, expected = say("C compiler"), say("where there is a GPU: gcc or clang, and Python.h, for Triton")
    if not torch.answer:
        found, mend = _unknown()
        return Finding("compiler", name, "warn", found, expected, mend)
    if not torch.answer["available"]:
        return Finding("compiler", name, "ok", say("not needed without a GPU"), expected)
    if platform.system() != "Linux":
        found = say("not needed: no Triton for {system}", system=platform.system())
        return Finding("compiler", name, "ok", found, expected)
    named = shlex.split(os.environ.get("CC", ""))
    found = next(filter(None, map(shutil.which, named[:1] or ("gcc", "clang", "cc"))), None)
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    if found and headers.exists():
        return Finding("compiler", name, "ok", f"{found}, {headers}", expected)
    missing = [] if found else [say("no C compiler")]
    missing += [] if headers.exists() else [say("no {path}", path=headers)]
    mend = "sudo apt-get install gcc python3-dev"
    return Finding("compiler", name, "fail", ", ".join(missing), expected, mend)


def gpu_kernel(torch: Outcome) -> Finding:
    """Whether a Triton kernel compiles for the GPU and is right on it."""
    name, expected = say("Triton on the GPU"), say("where there is a GPU: a kernel compiles and is right")
    if not torch.answer:
        found, mend = _unknown()
        return Finding("gpu_kernel", name, "warn", found, expected, mend)
    if not torch.answer["available"]:
        return Finding("gpu_kernel", name, "ok", say("not tried without a GPU"), expected)
    outcome = probe("kernel", "cuda", seconds=120, environment={"TRITON_INTERPRET": "0"})
    error = outcome.answer.get("error")
    if error is not None and error < 1e-5:
        return Finding("gpu_kernel", name, "ok", say("a kernel is right to {error:.0e}", error=error), expected)
    found = outcome.trouble or say("a kernel is wrong by {error:.0e}", error=error)
    return Finding("gpu_kernel", name, "warn", found, expected, _away())


def _unknown() -> tuple[str, str]:
    return say("not known: torch does not answer"), say("Mend torch first.")


def _away() -> str:
    return say("Set {parameter} in the chapters, or update the driver and torch.", parameter=ON_CPU)


def _nvidia_smi() -> str:
    """Name and driver of each NVIDIA GPU that its own program reports; "" if there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "; ".join(done.stdout.split("\n")).strip("; ") if done.returncode == 0 else ""


def _nvidia_hardware() -> bool:
    """Whether the bus has a display controller of NVIDIA's, driver or not."""
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        try:
            kind = vendor.with_name("class").read_text(encoding="ascii")
            if vendor.read_text(encoding="ascii").strip() == _NVIDIA and kind.startswith(_DISPLAY):
                return True
        except OSError:
            continue
    return False
