#!/usr/bin/env python3
"""Try a workshop's kit as a participant meets it, without a network.

    python ci/workshop_try.py build/ds41-workshop-0.1.0.zip             with the packages of this environment
    python ci/workshop_try.py build/ds41-workshop-0.1.0.zip --wheels    with the wheels of the kit and nothing else
    python ci/workshop_try.py KIT.zip --language de 04-fp4 05-ledger    some chapters, in German

Runs in a network namespace in which no other machine can be reached. It unpacks the kit, checks the manifest, makes an
environment, installs from the kit alone, runs the pre-flight, then every notebook of exercises, in which no exercise
may be solved, and every notebook with its solutions, in which all must be. A browser opens START.html, the book and a
deck from their folder. Seconds go to build/reports/workshop_try_LANGUAGE.json, with --record also to
book/workshop_tryout.json, from which the workshop's page is filled.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import browser
import nbformat
import workshop_offline as offline
import workshop_room as rooms
from project import HERE
from workshop_bundle import FOLDER, MANIFEST
from workshop_offline import OfflineError
from workshop_page import TRYOUT
from workshop_room import Room, TryError

from ds41.language import LANGUAGES

INSIDE = "DS41_WORKSHOP_OFFLINE"
_ORIGIN = """
import json
import sys
sys.path.insert(0, sys.argv[1])
import origin, torch
print(json.dumps(origin.origin("cuda" if torch.cuda.is_available() else "cpu", sys.argv[2:])))
"""


class Report:
    """What the try-out did: steps and chapters with their seconds, faults, and a log of all that."""

    def __init__(self, log: Path) -> None:
        self.steps: list[dict[str, Any]] = []
        self.chapters: list[dict[str, Any]] = []
        self.faults: list[str] = []
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log.open("w", encoding="utf-8")

    def say(self, line: str) -> None:
        print(line, flush=True)
        print(line, file=self._log, flush=True)

    def fault(self, line: str) -> None:
        self.faults.append(line)
        self.say(f"FAULT: {line}")

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        """Time a step; it sets `found`, a few words on the outcome."""
        row: dict[str, Any] = {"step": name, "seconds": 0.0, "found": ""}
        start = time.monotonic()
        yield row
        row["seconds"] = round(time.monotonic() - start, 1)
        self.steps.append(row)
        self.say(f"{name}: {row['found']} ({row['seconds']} s)")

    def table(self) -> str:
        lines = [f"{'step':<24}{'seconds':>10}  found"]
        lines += [f"{row['step']:<24}{row['seconds']:>10.1f}  {row['found']}" for row in self.steps]
        lines += ["", f"{'notebook':<24}{'exercises, s':>14}{'solved, s':>12}{'checks':>8}"]
        for row in self.chapters:
            lines.append(f"{row['chapter']:<24}{row['exercises_s']:>14.1f}{row['solved_s']:>12.1f}{row['checks']:>8}")
        return "\n".join(lines)


def unpack(bundle: Path, folder: Path) -> tuple[Path, int]:
    """Unpack the kit and hold every file against the manifest; returns the kit's folder and its number of files.

    Raises:
        TryError: a file is missing, differs, or is not in the manifest.
    """
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(folder)
    kit = folder / FOLDER
    stated = {}
    for line in (kit / MANIFEST).read_text(encoding="utf-8").splitlines():
        digest, size, name = line.split(maxsplit=2)
        stated[name] = (digest, int(size))
    present = {path.relative_to(kit).as_posix() for path in kit.rglob("*") if path.is_file()} - {MANIFEST}
    if wrong := sorted(present ^ stated.keys()):
        raise TryError(f"manifest and files differ in {', '.join(wrong[:5])}")
    for name, (digest, size) in stated.items():
        content = (kit / name).read_bytes()
        if len(content) != size or hashlib.sha256(content).hexdigest() != digest:
            raise TryError(f"{name} is not what the manifest says")
    return kit, len(present) + 1


def try_notebooks(kit: Path, room: Room, language: str, chosen: list[str], report: Report) -> None:
    """Run every notebook of exercises, then the solved ones again."""
    folder = kit / "notebooks" / language
    paths = [path for path in sorted((folder / "exercises").glob("*.ipynb")) if not chosen or path.stem in chosen]
    if not paths:
        raise TryError(f"{folder} has no notebook of exercises called {', '.join(chosen) or 'anything'}")
    registry = room.exercises([path.stem[:2] for path in paths])
    rows = {path.stem: {"chapter": path.stem, "exercises_s": 0.0, "solved_s": 0.0, "checks": 0} for path in paths}
    for kind, mark, key in (("exercises", "·", "exercises_s"), ("solved", "✓", "solved_s")):
        with report.step(kind) as step:
            good = 0
            for path in paths:
                notebook = nbformat.read(folder / kind / path.name, as_version=4)
                wanted = registry[path.stem[:2]]
                try:
                    done, seconds = room.execute(rooms.without_outputs(notebook), f"{kind}-{path.stem}")
                except TryError as error:
                    report.fault(str(error))
                    continue
                found = rooms.marks(done)
                faults = list(mark_faults(found, kind, wanted))
                if kind == "exercises":
                    solved = nbformat.read(folder / "solved" / path.name, as_version=4)
                    if apart := rooms.differences(notebook, solved):
                        faults.append(f"its cells {', '.join(apart)} are not those of the solved notebook")
                for fault in faults:
                    report.fault(f"{kind}/{path.stem}: {fault}")
                good += not faults
                rows[path.stem] |= {key: round(seconds, 1), "checks": len(wanted)}
                report.say(f"{kind}/{path.stem}: {mark} {len(found[mark])} of {len(wanted)} in {seconds:.1f} s")
            step["found"] = f"{good} of {len(paths)} notebooks as they should be"
    report.chapters += rows.values()


def mark_faults(found: dict[str, list[str]], kind: str, wanted: list[str]) -> Iterator[str]:
    """What is wrong with the checks that a notebook printed."""
    if kind == "exercises":
        if found["✓"]:
            yield f"solved without an answer: {', '.join(found['✓'])}"
        if sorted(found["·"]) != wanted:
            yield f"open are {', '.join(found['·']) or 'none'}; the chapter has {', '.join(wanted)}"
    elif sorted(found["✓"]) != wanted:
        yield f"solved are {', '.join(found['✓']) or 'none'}; the chapter has {', '.join(wanted)}"


def look(kit: Path, language: str, chapters: list[str]) -> tuple[int, list[str]]:
    """Open the kit's pages from their folder; returns the number of pages and what was wrong with them."""
    decks = sorted(path.name for path in (kit / "slides" / language).glob("[0-9]*.html"))
    decks = [name for name in decks if not chapters or Path(name).stem in chapters]
    book = "book/book" if language == "en" else f"book/{language}/book"
    places = ["START.html", f"guide-{language}.html", f"{book}/workshop.html", f"{book}/04-fp4.html"]
    places += [f"slides/{language}/index.html", f"slides/{language}/{decks[0]}"] if decks else []
    places += [path.relative_to(kit).as_posix() for path in (kit / "handout").glob(f"*-{language}.html")]
    faults = [] if decks else [f"slides/{language} has no deck"]
    with browser.chromium() as chromium:
        for place in places:
            faults += [f"{place}: {fault}" for fault in page_faults(chromium, kit / place)]
    return len(places), faults


def page_faults(chromium, path: Path) -> list[str]:
    """What goes wrong while a page is opened from its folder: requests that leave it, errors, nothing to see."""
    if not path.exists():
        return ["is missing"]
    faults: list[str] = []
    page = chromium.new_page()
    leaving = ("http:", "https:", "ws:", "wss:")
    page.on("request", lambda one: one.url.startswith(leaving) and faults.append(f"asks another host: {one.url}"))
    page.on("requestfailed", lambda one: faults.append(f"request failed: {one.url}"))
    page.on("pageerror", lambda error: faults.append(f"page error: {error.message}"))
    page.on("console", lambda message: message.type == "error" and faults.append(f"console: {message.text}"))
    page.goto(path.resolve().as_uri(), wait_until="load")
    page.wait_for_timeout(500)
    if not page.title().strip() or not page.inner_text("body").strip():
        faults.append("shows no title or no text")
    page.close()
    return faults


def try_kit(options: argparse.Namespace, report: Report, scratch: Path) -> dict[str, Any]:
    """All steps; returns what a record says of where they ran.

    Raises:
        TryError: a step failed without which the others make no sense.
    """
    with report.step("no network") as step:
        offline.raise_loopback()
        offline.check()
        step["found"] = "no other machine can be reached"
    with report.step("unpack") as step:
        kit, count = unpack(options.bundle, scratch)
        step["found"] = f"{count:,} files, {options.bundle.stat().st_size / 1e6:,.1f} MB packed"
    if options.wheels and not (kit / "wheels").is_dir():
        raise TryError(f"{options.bundle} has no wheels: `make workshop WHEELS=yes` adds them")
    if not (kit / "notebooks" / options.language).is_dir():
        raise TryError(f"{options.bundle} has no notebooks in {LANGUAGES[options.language]}")
    folder = scratch / "room"
    folder.mkdir()
    room = Room(folder, options.language)
    with report.step("environment") as step:
        room.make(options.python, lend=not options.wheels)
        step["found"] = "bare" if options.wheels else f"on the packages of {Path(options.python).name}"
    with report.step("install") as step:
        room.install(kit, options.wheels)
        what = (
            f"{len(list((kit / 'wheels').glob('*.whl')))} wheels and the package" if options.wheels else "the package"
        )
        step["found"] = f"{what}, from the kit alone"
    facts = json.loads(
        room.run([str(room.python), "-c", _ORIGIN, str(HERE.root / "benchmarks"), *_typed(options)], "looking around")
    )
    with report.step("pre-flight") as step:
        try:
            lines = room.run([str(room.python), "-m", "ds41", "doctor", "--workshop"], "ds41 doctor").splitlines()
            step["found"] = lines[-1].strip() if lines else "it says nothing"
        except TryError as error:
            step["found"] = "not ready"
            report.fault(str(error))
    try_notebooks(kit, room, options.language, options.chapters, report)
    with report.step("browser") as step:
        try:
            pages, faults = look(kit, options.language, options.chapters)
            step["found"] = f"{pages} pages from their folder"
            for fault in faults:
                report.fault(fault)
        except browser.NoBrowserError as error:
            step["found"] = f"left out: {error}"
    return facts


def _typed(options: argparse.Namespace) -> list[str]:
    """The command line as a person types it in the project's folder."""
    flags = ["--wheels"] * options.wheels
    flags += ["--language", options.language] if options.language != "en" else []
    return [str(Path(__file__).resolve()), f"build/{options.bundle.name}", *flags, *options.chapters]


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add: Callable = parser.add_argument
    add("bundle", type=Path, metavar="KIT.zip")
    add("chapters", nargs="*", metavar="CHAPTER", help="such as 04-fp4; all if none is named")
    add("--wheels", action="store_true", help="install the requirements from the kit's wheels, into a bare environment")
    add("--python", default=sys.executable, help="whose packages are lent without --wheels, and who makes environments")
    add("--language", choices=tuple(LANGUAGES), default="en")
    add("--record", action="store_true", help=f"write book/{TRYOUT}, which the workshop's page shows")
    options = parser.parse_intermixed_args(argv)
    if not options.bundle.exists():
        parser.error(f"{options.bundle} does not exist: `make workshop` makes it")
    if options.record and options.chapters:
        parser.error("--record takes a run of all chapters")
    return options


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    if not os.environ.get(INSIDE):
        arguments = sys.argv[1:] if argv is None else argv
        try:
            command = offline.command([str(Path(__file__).resolve()), *arguments])
        except OfflineError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        return subprocess.run(command, env=os.environ | {INSIDE: "1"}).returncode
    options.bundle = options.bundle.resolve()
    target = HERE.reports / f"workshop_try_{options.language}.json"
    report = Report(target.with_suffix(".log"))
    facts: dict[str, Any] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="ds41-try-", ignore_cleanup_errors=True) as scratch:
            facts = try_kit(options, report, Path(scratch))
    except (TryError, OfflineError, OSError, zipfile.BadZipFile) as error:
        report.fault(str(error))
    kept = {"language": options.language, "wheels": options.wheels}
    record = facts | kept | {"steps": report.steps, "chapters": report.chapters, "faults": report.faults}
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    target.write_text(text, encoding="utf-8")
    report.say(f"\n{report.table()}\n")
    report.say(f"{len(report.faults)} faults; {target}")
    if options.record and not report.faults:
        (HERE.book / TRYOUT).write_text(text, encoding="utf-8")
    return int(bool(report.faults))


if __name__ == "__main__":
    sys.exit(main())
