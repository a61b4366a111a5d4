"""The Python packages of the workshop's kit: ds41's wheel, what a machine must have beside it, and that as wheels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from project import Project
from workshop_plan import WorkshopError

SOURCES = ("src", "kernels", "pyproject.toml", "README.md", "LICENSE")
# Pins of requirements.txt that build the book and that no participant's machine needs.
BUILDERS = {
    *("jupyter-book", "sphinx-book-theme", "pydata-sphinx-theme", "sphinx", "myst-nb", "myst-parser", "docutils"),
    *("sphinx-exercise", "sphinx-sitemap", "jupytext"),
}
EPOCH = "315532800"  # 1980-01-01, the first time that a zip file can hold


def run_pip(arguments: Sequence[str], what: str, folder: Path | None = None) -> None:
    """Run pip of this environment.

    Raises:
        WorkshopError: it failed; the message ends with its last lines.
    """
    environment = os.environ | {"SOURCE_DATE_EPOCH": EPOCH, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        last = "\n  ".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise WorkshopError(f"{what} failed: pip {' '.join(arguments)}\n  {last}")


def build(project: Project, target: Path) -> Path:
    """Build ds41's wheel into `target`, without a network; equal sources give equal bytes.

    The sources are copied first: setuptools would leave its own build/ beside them, and take from it what is gone.

    Raises:
        WorkshopError: setuptools is not installed, or cannot build.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ds41-wheel-") as scratch:
        for name in SOURCES:
            source = project.root / name
            if source.is_dir():
                shutil.copytree(source, Path(scratch, name), ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            elif source.exists():
                shutil.copy(source, scratch)
        run_pip(
            ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(target.resolve()), "."],
            "building the wheel (setuptools builds it: pip install setuptools)",
            Path(scratch),
        )
    (wheel,) = target.glob("ds41-*.whl")
    return wheel


def requirements(project: Project) -> str:
    """The kit's requirements.txt: the book's pins without what builds the book, and what opens notebooks."""
    pins = _pins(project.root / "requirements.txt")
    pins = [pin for pin in pins if re.split(r"[=;<>! ]", pin)[0].lower() not in BUILDERS]
    lines = [
        "# What a machine must have for the workshop, with the versions of the book. torch's build for Linux is",
        "# several gigabytes, for GPUs; an index with CPU builds saves most of that.",
        *pins,
        *_pins(project.root / "ci" / "workshop_requirements.txt"),
    ]
    return "\n".join(lines) + "\n"


def _pins(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def collect(kit: Path, pip_flags: Sequence[str]) -> int:
    """Put the wheels of the kit's requirements and of all that they need into its wheels/, for this platform.

    Needs a network or the index that `pip_flags` name. Returns the number of wheels.

    Raises:
        WorkshopError: a package cannot be had.
    """
    wheels = kit / "wheels"
    arguments = ["wheel", "--quiet", "--wheel-dir", str(wheels), *pip_flags, "-r", str(kit / "requirements.txt")]
    # What the package itself asks for is among them, so that installing its wheel finds all there.
    run_pip([*arguments, *map(str, (kit / "wheel").glob("*.whl"))], "collecting the wheels")
    for copy in wheels.glob("ds41-*.whl"):
        copy.unlink()
    return len(list(wheels.glob("*.whl")))
