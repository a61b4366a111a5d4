"""Environments like a running Colab's: one base of the versions in ci/colab.txt, a fresh layer above it a chapter.

The base is large and built once. A layer sees all of it and holds nothing of its own, so what pip puts there is just
what a chapter's first cell installs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from project import Project

VERSIONS = Path(__file__).with_name("colab.txt")
# Runs in the kernel before the first cell. Colab's own kernel has loaded its package and numpy by then.
STARTUP = """\
import sys, types
import numpy
google, colab = types.ModuleType("google"), types.ModuleType("google.colab")
google.colab = colab
sys.modules |= {"google": google, "google.colab": colab}
del sys, types, numpy, google, colab
"""
# What the surroundings of this program may set and Colab does not.
FOREIGN = re.compile(r"(VIRTUAL_ENV|PYTHON(PATH|HOME)|TRITON_\w+|DS41_\w+|IPYTHONDIR|JUPYTER_\w+|MPL\w+|GIT_\w+)")


class ColabError(Exception):
    """The environment cannot be made; the message says what is missing."""


@dataclass(frozen=True)
class Base:
    """The packages that every chapter finds. python: the interpreter in it; fresh: whether this run built it."""

    folder: Path
    fresh: bool

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> dict[str, str]:
        """Name and version of each distribution."""
        return distributions(site_packages(self.folder))


def wanted_python() -> tuple[int, int]:
    """The version that ci/colab.txt names."""
    major, minor = re.search(r"^# python: (\d+)\.(\d+)$", VERSIONS.read_text(encoding="utf-8"), re.MULTILINE).groups()
    return int(major), int(minor)


def nearest_python(wanted: tuple[int, int]) -> tuple[Path, tuple[int, int]]:
    """The interpreter of that version or the nearest there is, of two as near the newer: its path and its version."""
    found: dict[tuple[int, int], Path] = {}
    for path in _interpreters():
        version = _version(path)
        if version and version >= (3, 10):
            found.setdefault(version, path)
    version = min(found, key=lambda v: (abs(v[0] - wanted[0]), abs(v[1] - wanted[1]), -v[1]))
    return found[version], version


def _interpreters() -> list[Path]:
    """On the PATH, then pyenv's, then the one that runs this; a shim of pyenv may lead nowhere."""
    names = [f"python3.{minor}" for minor in range(10, 20)]
    paths = [Path(found) for name in names if (found := shutil.which(name))]
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    paths += sorted(root.glob("versions/3.*/bin/python"), reverse=True)
    return [*paths, Path(getattr(sys, "_base_executable", sys.executable))]


def _version(python: Path) -> tuple[int, int] | None:
    code = "import sys, venv, ensurepip; print(*sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else None


def base(folder: Path, pip_flags: list[str]) -> Base:
    """The base in ``folder``, built anew if ci/colab.txt, the flags for pip or the Python changed since.

    Raises:
        ColabError: pip could not install it.
    """
    python, version = nearest_python(wanted_python())
    if version != wanted_python():
        print("Python {}.{} is not here: {}.{} stands in for it".format(*wanted_python(), *version), flush=True)
    key = {
        "versions": hashlib.sha256(VERSIONS.read_bytes()).hexdigest(),
        "python": version,
        "pip_flags": pip_flags,
    }
    ready = folder / ".ready"
    if ready.exists() and ready.read_text(encoding="utf-8") == json.dumps(key):
        return Base(folder, fresh=False)
    shutil.rmtree(folder, ignore_errors=True)
    print(f"builds {folder} from {VERSIONS.name}: gigabytes, minutes", flush=True)
    _run([python, "-m", "venv", folder], "venv")
    built = Base(folder, fresh=True)
    pip = [built.python, "-m", "pip", "install", "--quiet", *pip_flags]
    # The installer that Colab has installs the rest, so that its resolver has had its say.
    pin = next(line for line in VERSIONS.read_text(encoding="utf-8").splitlines() if line.startswith("pip=="))
    _run([*pip, pin], "pip")
    _run([*pip, "-r", VERSIONS], "pip")
    # The first import of its fonts writes a cache and says so; Colab's image holds that cache.
    _run([built.python, "-c", "import matplotlib.font_manager"], "matplotlib", environment=_with_fonts(folder))
    ready.write_text(json.dumps(key), encoding="utf-8")
    return built


def _run(command: list, what: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise ColabError(f"{what} ended with status {done.returncode}:\n{last}")


def _with_fonts(folder: Path) -> dict[str, str]:
    return dict(os.environ) | {"MPLCONFIGDIR": str(folder / "matplotlib")}


def site_packages(environment: Path) -> Path:
    return next(environment.glob("lib/python3.*/site-packages"))


def distributions(folder: Path) -> dict[str, str]:
    """Name, as pip normalises it, and version of each distribution that lies in a folder of packages."""
    found = metadata.distributions(path=[str(folder)])
    return {re.sub(r"[-_.]+", "-", item.metadata["Name"]).lower(): item.version for item in found}


@dataclass(frozen=True)
class Layer:
    """An environment of one chapter: the base and what was installed above it."""

    folder: Path
    base: Base

    @classmethod
    def new(cls, folder: Path, base: Base) -> Layer:
        """An empty one, whatever lay in ``folder`` before."""
        shutil.rmtree(folder, ignore_errors=True)
        _run([base.python, "-m", "venv", "--without-pip", folder], "venv")
        site = site_packages(folder)
        # A plain path would hide from pip's isolated builds that this is a folder of packages.
        (site / "colab_base.pth").write_text(f"import site; site.addsitedir({str(site_packages(base.folder))!r})\n")
        startup = folder / "ipython" / "profile_default" / "startup"
        startup.mkdir(parents=True)
        (startup / "00-colab.py").write_text(STARTUP)
        kernel = {"argv": [str(folder / "bin" / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]}
        specification = folder / "kernels" / "colab" / "kernel.json"
        specification.parent.mkdir(parents=True)
        specification.write_text(json.dumps(kernel | {"display_name": "Colab", "language": "python"}))
        return cls(folder, base)

    @property
    def added(self) -> dict[str, str]:
        """What was installed above the base, by name."""
        return distributions(site_packages(self.folder))

    @property
    def replaced(self) -> dict[str, str]:
        """What of the base was installed again, in another version or the same: a loaded library is torn then."""
        return {name: version for name, version in self.added.items() if name in self.base.packages}

    def environment(self, sources: dict[str, str]) -> dict[str, str]:
        """The variables of the kernel. ``sources``: address of a repository -> where git takes it from instead."""
        kept = {name: value for name, value in os.environ.items() if not FOREIGN.fullmatch(name)}
        path = [str(self.folder / "bin"), str(self.base.folder / "bin"), kept.get("PATH", os.defpath)]
        kept |= {"PATH": os.pathsep.join(path), "IPYTHONDIR": str(self.folder / "ipython")}
        kept |= {"MPLCONFIGDIR": str(self.base.folder / "matplotlib"), "GIT_CONFIG_COUNT": str(len(sources))}
        # The kernel's debugger has a word about every start; Colab keeps it from its readers too.
        kept["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
        for number, (address, instead) in enumerate(sources.items()):
            kept |= {f"GIT_CONFIG_KEY_{number}": f"url.{instead}.insteadOf", f"GIT_CONFIG_VALUE_{number}": address}
        return kept


def mirror(project: Project, folder: Path) -> str:
    """A bare repository with the working tree as it is now on the branch that chapters install: its address.

    The project's own repository is neither read nor changed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    settings = ("user.name=colab", "user.email=colab@localhost", "commit.gpgsign=false")
    options = [word for setting in settings for word in ("-c", setting)]
    git = ["git", f"--git-dir={folder}", f"--work-tree={project.root}", *options]
    commands = [
        ["git", "init", "--quiet", "--bare", f"--initial-branch={project.repository_branch}", str(folder)],
        # As GitHub does: pip asks for a clone without the old files.
        [*git, "config", "uploadpack.allowFilter", "true"],
        [*git, "add", "--all", "."],
        [*git, "commit", "--quiet", "--message", "the working tree"],
    ]
    for command in commands:
        done = subprocess.run(command, cwd=project.root, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ColabError(f"git could not mirror the working tree: {done.stderr.strip()}")
    return folder.resolve().as_uri()
