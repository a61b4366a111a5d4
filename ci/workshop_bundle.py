#!/usr/bin/env python3
"""The workshop's kit as one file, build/ds41-workshop-VERSION.zip.

    python ci/workshop_bundle.py              from the executed chapters and the built book
    python ci/workshop_bundle.py --wheels     with the wheels of all packages, for this platform; needs a network

Makes what it can (the package's wheel, notebooks, slides, handout, guide) and takes what is there (executed chapters,
built book, small model). A language takes part once its chapters have been executed. `START.html` in the kit says what
is in it, `workshop_try.py` tries it. Equal parts give an equal archive: names in order, one date for all.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import browser
import tomllib
import workshop_guide
import workshop_notebooks
import workshop_start
import workshop_wheels
from notebook_form import NotebookError
from project import HERE, Project, ProjectError
from workshop_plan import WorkshopError
from workshop_start import Kit

FOLDER = "ds41-workshop"
MANIFEST = "MANIFEST.txt"
DATE = (1980, 1, 1, 0, 0, 0)
# Programs that write a part of the kit below build/workshop/, once for each language; the kit has it where they do.
MAKERS = {"slides": "workshop_slides.py", "handout": "workshop_handout.py"}


def check(project: Project, languages: Iterable[str]) -> None:
    """Refuse to begin where a part is missing that this program does not make.

    Raises:
        WorkshopError: the book is not built, a chapter is not executed, a file is missing.
    """
    faults = []
    if not (project.html / "index.html").exists():
        faults.append(f"{project.html} has no book: run `make book`")
    parts = [model(project) / name for name in ("config.json", "model.safetensors", "tokenizer.json")]
    for path in (*parts, project.root / "LICENSE"):
        if not path.exists():
            faults.append(f"{path} is missing")
    for language in languages:
        page = workshop_guide.built_page(project, language)
        if not page.exists():
            faults.append(f"{page} is missing: run `make book`")
        for chapter in project.chapters:
            try:
                workshop_notebooks.executed(chapter, project, language)
            except WorkshopError as error:
                faults.append(str(error))
    if faults:
        raise WorkshopError("the kit cannot be made yet:\n  " + "\n  ".join(faults))


def model(project: Project) -> Path:
    return project.root / "src" / "ds41" / "data" / "nano"


def version(project: Project) -> str:
    return tomllib.loads((project.root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def run_maker(name: str, language: str, project: Project) -> None:
    """Have one program of :data:`MAKERS` write its part in one language.

    Raises:
        WorkshopError: it failed; it has said why.
    """
    command = [sys.executable, str(HERE.root / "ci" / MAKERS[name]), "--language", language]
    if project.root != HERE.root:
        command += ["--root", str(project.root)]
    if subprocess.run(command).returncode:
        raise WorkshopError(f"{name} of language {language!r} could not be made: {shlex.join(command)}")


def stage(project: Project, languages: list[str], wheels: bool, pip_flags: list[str]) -> Path:
    """Lay the kit out in build/workshop/ds41-workshop and return that folder."""
    made = project.build / "workshop"
    kit = made / FOLDER
    shutil.rmtree(kit, ignore_errors=True)
    kit.mkdir(parents=True)
    wheel = workshop_wheels.build(project, kit / "wheel")
    (kit / "requirements.txt").write_text(workshop_wheels.requirements(project), encoding="utf-8")
    for language in languages:
        count = workshop_notebooks.write(project, language, kit / "notebooks" / language)
        print(f"{language}: {count} notebooks, without and with solutions", flush=True)
        for name in MAKERS:
            run_maker(name, language, project)
        shutil.copytree(made / "slides" / language, kit / "slides" / language)
        (kit / "handout").mkdir(exist_ok=True)
        for sheet in (made / "handout").glob(f"*-{language}.*"):
            shutil.copy(sheet, kit / "handout")
    shutil.copytree(project.html, kit / "book", ignore=shutil.ignore_patterns(".buildinfo"))
    shutil.copytree(model(project), kit / "model" / "nano")
    shutil.copy(project.root / "LICENSE", kit)
    for language in languages:
        guide = kit / f"guide-{language}.html"
        guide.write_text(workshop_guide.page(project, language), encoding="utf-8")
        workshop_guide.print_page(guide)
    if wheels:
        print(f"{workshop_wheels.collect(kit, pip_flags)} wheels", flush=True)
    start = Kit(project.config["title"], version(project), wheel.name, tuple(languages), wheels)
    (kit / "START.html").write_text(workshop_start.page(start), encoding="utf-8")
    (kit / MANIFEST).write_text(manifest(kit), encoding="utf-8")
    return kit


def files(kit: Path) -> list[Path]:
    """Every file of the kit, in the order of the archive."""
    return sorted(
        (path for path in kit.rglob("*") if path.is_file()), key=lambda path: path.relative_to(kit).as_posix()
    )


def manifest(kit: Path) -> str:
    """SHA-256, size in bytes and path of every file, one line each; the manifest itself is not among them."""
    lines = []
    for path in files(kit):
        name = path.relative_to(kit).as_posix()
        if name != MANIFEST:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            lines.append(f"{digest} {path.stat().st_size:>12} {name}\n")
    return "".join(lines)


def pack(kit: Path, target: Path) -> None:
    """Write the archive, whole or not at all."""
    partial = target.with_suffix(".partial")
    try:
        with zipfile.ZipFile(partial, "w") as archive:
            for path in files(kit):
                entry = zipfile.ZipInfo(f"{FOLDER}/{path.relative_to(kit).as_posix()}", DATE)
                entry.external_attr = 0o644 << 16
                # Wheels are archives already, and fonts are compressed.
                stored = path.suffix in (".whl", ".woff2", ".woff", ".png", ".pdf")
                entry.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
                with path.open("rb") as source, archive.open(entry, "w", force_zip64=True) as packed:
                    shutil.copyfileobj(source, packed, 1 << 20)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def listing(kit: Path) -> str:
    """Files and sizes by folder, as a table."""
    sizes: dict[str, list[int]] = {}
    for path in files(kit):
        parts = path.relative_to(kit).parts
        folder = "/".join(parts[: min(len(parts) - 1, 3 if parts[0] == "notebooks" else 1)])
        sizes.setdefault(f"{folder}/" if folder else parts[0], []).append(path.stat().st_size)
    sizes["all"] = [size for of_folder in sizes.values() for size in of_folder]
    lines = [f"{'':<28}{'files':>7}{'MB':>10}"]
    lines += [f"{name:<28}{len(found):>7,}{sum(found) / 1e6:>10,.2f}" for name, found in sizes.items()]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", action="store_true", help="add the wheels of all packages, for this platform")
    parser.add_argument("--pip-flags", default="", metavar="FLAGS", help="for pip, such as an index with CPU builds")
    parser.add_argument("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    project = Project(options.root)
    languages = workshop_notebooks.languages(project)
    try:
        check(project, languages)
        for code in sorted(set(workshop_notebooks.LANGUAGES) - set(languages)):
            folder = workshop_notebooks.edition(project, code).executed
            print(f"{code}: left out, {folder} is missing", flush=True)
        kit = stage(project, languages, options.wheels, shlex.split(options.pip_flags))
        target = project.build / f"{FOLDER}-{version(project)}.zip"
        pack(kit, target)
    except (ProjectError, NotebookError, browser.NoBrowserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(listing(kit))
    print(f"{target.stat().st_size / 1e6:.1f} MB: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
