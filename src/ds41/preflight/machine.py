"""The machine itself: Python, processor, memory, disk, files, and connections to itself.

Source: ds41's own.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from ds41.language import say
from ds41.preflight.finding import Finding, readable

OLDEST_PYTHON = (3, 11)
"""The oldest Python that the book's environment runs on."""

# What the chapters took at small scale without a GPU, each number the largest of all chapters.
MEMORY = 2_104_971_264
"""Peak resident bytes of one chapter: 15, by ``python ci/run_notebooks.py --scale small --device cpu``, which writes
them to build/reports/notebooks.json."""
TEMPORARY = 159_810_578
"""Bytes of temporary files at one time: chapter 15, by ``du -sb "$TMPDIR"`` every 0.2 s beside
``papermill -p SCALE small -p DEVICE cpu book/15-training.ipynb out.ipynb``."""
OUTPUTS = 13_852_198
"""Bytes of all executed chapters, by ``du -sb build/executed`` after ``python ci/run_notebooks.py``."""
CORES = 2
"""Cores on which the chapters' times were measured."""
# Room beside what was measured: a second copy of the notebooks, and what an editor and a browser keep.
_SPARE = 5


def python() -> Finding:
    """Whether this Python is new enough and a 64-bit one."""
    found = sys.version_info[:3]
    bits = 64 if sys.maxsize > 2**32 else 32
    good = found[:2] >= OLDEST_PYTHON and bits == 64
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Finding(
        "python",
        say("Python"),
        "ok" if good else "fail",
        say("{version}, {bits}-bit, {path}", version=".".join(map(str, found)), bits=bits, path=sys.executable),
        say("{oldest} or newer, 64-bit", oldest=oldest),
        ""
        if good
        else say("Install a 64-bit Python {oldest} or newer and make the environment with it.", oldest=oldest),
    )


def cores() -> Finding:
    """Whether there are as many cores as the times of the workshop suppose."""
    count = _cores()
    return Finding(
        "cores",
        say("processor"),
        "ok" if count >= CORES else "warn",
        say("1 core") if count == 1 else say("{count} cores", count=count),
        say("{count} cores, on which the times were measured", count=CORES),
        "" if count >= CORES else say("Give the machine more cores, or plan twice the time for the chapters."),
    )


def memory() -> Finding:
    """Whether the hungriest chapter fits into memory, and into what is free of it now."""
    total, free = _memory()
    name = say("memory")
    expected = say("{twice} in all, {need} free: the hungriest chapter takes {need}", twice=readable(2 * MEMORY),
                   need=readable(MEMORY))  # fmt: skip
    if total is None:
        mend = say("Look it up in the system's settings.")
        return Finding("memory", name, "warn", say("not told by this system"), expected, mend)
    if free is None:
        found = say("{total} in all", total=readable(total))
    else:
        found = say("{total} in all, {free} free", total=readable(total), free=readable(free))
    if total < MEMORY:
        mend = say("Use a machine with more memory, or Colab.")
        return Finding("memory", name, "fail", found, expected, mend)
    if total < 2 * MEMORY or (free is not None and free < MEMORY):
        mend = say("Close other programs before chapter 15, and run one notebook at a time.")
        return Finding("memory", name, "warn", found, expected, mend)
    return Finding("memory", name, "ok", found, expected)


def disk() -> Finding:
    """Whether the notebooks' outputs fit into this folder, and the chapters' files into the temporary one."""
    needs = {Path.cwd(): _SPARE * OUTPUTS, Path(tempfile.gettempdir()): _SPARE * TEMPORARY}
    free = {folder: shutil.disk_usage(folder).free for folder in needs}
    short = [folder for folder, need in needs.items() if free[folder] < need]
    found = ", ".join(say("{free} free in {folder}", free=readable(free[folder]), folder=folder) for folder in needs)
    expected = say(
        "{outputs} here for the notebooks with their outputs, {temporary} for temporary files",
        outputs=readable(_SPARE * OUTPUTS),
        temporary=readable(_SPARE * TEMPORARY),
    )
    mend = say("Make room in {folders}.", folders=", ".join(map(str, short))) if short else ""
    return Finding("disk", say("free disk"), "fail" if short else "ok", found, expected, mend)


def files() -> Finding:
    """Whether files can be written in this folder, in the temporary one and where Jupyter keeps its own."""
    troubles, folders = [], [Path.cwd(), Path(tempfile.gettempdir()), _jupyter_folder()]
    for folder in folders:
        try:
            with tempfile.TemporaryDirectory(dir=folder, prefix="ds41-") as inner:
                path = Path(inner, "written")
                path.write_bytes(b"ds41")
                if path.read_bytes() != b"ds41":
                    troubles.append(say("{folder}: reads back something else", folder=folder))
        except OSError as error:
            troubles.append(f"{folder}: {error.strerror}")
    return Finding(
        "files",
        say("write access"),
        "fail" if troubles else "ok",
        "; ".join(troubles) or say("files can be written in {folders}", folders=", ".join(map(str, folders))),
        say("files can be written here, in the temporary folder and in Jupyter's"),
        say("Allow it, or go to a folder of your own; TMPDIR and JUPYTER_RUNTIME_DIR name other ones.")
        if troubles
        else "",
    )


def loopback() -> Finding:
    """Whether a program can reach another one on this machine, as a notebook does its kernel."""
    trouble = ""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(5)
            with socket.create_connection(server.getsockname(), timeout=5) as caller:
                other, _ = server.accept()
                with other:
                    other.settimeout(5)
                    caller.sendall(b"ds41")
                    heard = other.recv(4)
        if heard != b"ds41":
            trouble = say("something else arrived than was sent")
    except OSError as error:
        trouble = error.strerror or str(error)
    return Finding(
        "loopback",
        say("connections to itself"),
        "fail" if trouble else "ok",
        trouble or say("127.0.0.1 answers"),
        say("127.0.0.1 answers: notebooks talk to their kernel over it; no other network is needed"),
        say("Allow connections to 127.0.0.1 in the firewall; in a container, set the interface lo up.")
        if trouble
        else "",
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> tuple[int | None, int | None]:
    """Bytes in all and bytes free, as far as the system tells them; a container's limit counts."""
    total = free = None
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        total = _windows_memory()
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        if limit.isdigit():
            used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
            total, free = min(total, int(limit)), min(free, int(limit) - used)
    except (OSError, StopIteration, TypeError):
        pass
    return total, free


def _windows_memory() -> int | None:
    import ctypes

    if not hasattr(ctypes, "windll"):
        return None
    kilobytes = ctypes.c_ulonglong()
    told = ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
    return 1024 * kilobytes.value if told else None


def _jupyter_folder() -> Path:
    """Where Jupyter puts the files of running kernels: the nearest folder of it that exists already."""
    named = os.environ.get("JUPYTER_RUNTIME_DIR") or os.environ.get("JUPYTER_DATA_DIR")
    if named:
        folder = Path(named)
    elif os.name == "nt":
        folder = Path(os.environ.get("APPDATA", Path.home()))
    elif sys.platform == "darwin":
        folder = Path.home() / "Library"
    else:
        folder = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return next((at for at in (folder, *folder.parents) if at.exists()), Path(folder.anchor))
