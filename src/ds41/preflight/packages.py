"""The packages that the chapters import, and the data that ds41 brings so that nothing comes from a network.

Source: ds41's own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import re
from importlib import metadata, resources
from pathlib import Path

from ds41.language import say
from ds41.preflight.finding import Finding, install, probe, reinstall

PACKAGES = {
    "torch": ("torch", "2.11.0"),
    "triton": ("triton", "3.6.0"),
    "numpy": ("numpy", "2.1.3"),
    "matplotlib": ("matplotlib", "3.10.0"),
    "pillow": ("PIL", "11.3.0"),
    "rich": ("rich", "13.9.4"),
    "safetensors": ("safetensors", "0.7.0"),
    "tokenizers": ("tokenizers", "0.22.2"),
    "scikit-learn": ("sklearn", "1.6.1"),
    "simpy": ("simpy", "4.1.2"),
    "fastapi": ("fastapi", "0.136.3"),
    "uvicorn": ("uvicorn", "0.48.0"),
    "ipywidgets": ("ipywidgets", "7.7.1"),
    "ipykernel": ("ipykernel", "6.17.1"),
}
"""Each package with the module that it brings, and the oldest version that every chapter has run with: Colab's
(``ci/colab.txt``, ``make colab-check``) or, where Colab has none, the book's (``requirements.txt``)."""

DATA = (
    "engine_logs.json",
    "engines.json",
    "flash_config.json",
    "mini_config.json",
    "nano_config.json",
    "systems.json",
    "measured/ablations.json",
    "measured/probe_fp4.json",
    "measured/probe_pairs.json",
    "measured/probe_replay.json",
    "measured/probe_selection.json",
    "measured/simulation.json",
    "nano/card.json",
    "nano/config.json",
    "nano/drafting.json",
    "nano/log.json",
    "nano/model.safetensors",
    "nano/seeing.json",
    "nano/tokenizer.json",
)
"""What the code and the chapters read from the package's folder ``data``."""
_RELEASE = re.compile(r"\d+(?:\.\d+)*")


def packages() -> list[Finding]:
    """A finding for each package of the chapters: is it there, new enough, and can it be imported?"""
    troubles = _import_each([module for module, _ in PACKAGES.values()])
    return [package(name, oldest, troubles[module]) for name, (module, oldest) in PACKAGES.items()]


def package(name: str, oldest: str, trouble: str) -> Finding:
    """One package; ``trouble`` is what its import said, or ""."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = ""
    expected = say("{package} {oldest} or newer", package=name, oldest=oldest)
    title = say("package {name}", name=name)
    check = f"package {name}"
    if name == "triton" and platform.system() != "Linux" and not version:
        mend = say("Run chapter 12 on Linux, in WSL or on Colab; the other chapters need no triton.")
        return Finding(check, title, "warn", say("not for {system}", system=platform.system()), expected, mend)
    if not version and trouble:
        return Finding(check, title, "fail", say("not installed"), expected, install(f"{name}>={oldest}"))
    if trouble:
        found = say("{version}, and its import fails: {trouble}", version=version, trouble=trouble)
        return Finding(check, title, "fail", found, expected, install("--force-reinstall", f"{name}>={oldest}"))
    if not version or not _RELEASE.match(version):
        found = say("imported, of unknown version")
        return Finding(check, title, "warn", found, expected, install(f"{name}>={oldest}"))
    if _release(version) < _release(oldest):
        found = say("{version}, with which no chapter was tried", version=version)
        return Finding(check, title, "warn", found, expected, install(f"{name}>={oldest}"))
    return Finding(check, title, "ok", f"{name} {version}", expected)


def data() -> Finding:
    """Whether everything that the chapters read came with the package, whole."""
    troubles = []
    folder = Path(str(resources.files("ds41").joinpath("data")))
    for name in DATA:
        try:
            content = folder.joinpath(name).read_bytes()
            if name.endswith(".json"):
                json.loads(content)
        except OSError:
            troubles.append(say("{file} is missing", file=f"data/{name}"))
        except ValueError:
            troubles.append(say("{file} is not whole", file=f"data/{name}"))
    recorded = _recorded_files()
    troubles += [say("{file} is not what was installed", file=name) for name, whole in recorded if not whole]
    if recorded:
        found = say("{count} files, each as it was installed", count=len(recorded))
    else:
        found = say("{count} data files, in a checkout", count=len(DATA))
    return Finding(
        "data",
        say("no network needed"),
        "fail" if troubles else "ok",
        _few(troubles) or found,
        say("models, tables and figures lie in the package: the chapters fetch nothing"),
        reinstall() if troubles else "",
    )


def _import_each(modules: list[str]) -> dict[str, str]:
    """What the import of each module said, "" if it went well. One that takes Python with it is the only one lost."""
    told: dict[str, str] = {}
    while remaining := [module for module in modules if module not in told]:
        outcome = probe("imports", *remaining, seconds=90)
        told |= {answer["module"]: answer["error"] for answer in outcome.answers}
        if len(told) < len(modules):
            culprit = next(module for module in modules if module not in told)
            told[culprit] = outcome.trouble or say("Python ended in it")
    return told


def _recorded_files() -> list[tuple[str, bool]]:
    """The files of ds41 that its wheel recorded, and whether each is still the same; none for a checkout."""
    try:
        recorded = metadata.files("ds41") or []
    except metadata.PackageNotFoundError:
        return []
    found = []
    for file in recorded:
        if file.parts[0] != "ds41" or file.hash is None:
            continue
        try:
            content = Path(str(file.locate())).read_bytes()
        except OSError:
            found.append((str(file), False))
            continue
        digest = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, content).digest()).rstrip(b"=").decode()
        found.append((str(file), digest == file.hash.value))
    return found


def _few(troubles: list[str]) -> str:
    rest = len(troubles) - 3
    return "; ".join(troubles[:3]) + (say(" and {count} more", count=rest) if rest > 0 else "")


def _release(version: str) -> tuple[int, ...]:
    """2.13.0+cpu -> (2, 13, 0)"""
    return tuple(map(int, _RELEASE.match(version)[0].split(".")))
