"""Engines that could keep cache pages on disk, beside a plain file copy: speed, size and what damage does to them.

    python benchmarks/store_engines.py [--pages 2000] [--batches 32 2000] [--rounds 3] [--folder DIR] [--json FILE]

Every engine writes the same pages of the published configuration in durable batches (each ends with an fsync, except
where "normal" says that SQLite leaves it to the next checkpoint) and reads them back, with a SHA-256 of each page
made and checked. "copy" reads files of one batch each and writes others, an fsync to each; ratios are to that. Reads
come from the operating system's cache. Bytes on disk are blocks of all files after the engine has closed. Damage is
done to a closed copy of the largest file and read in a child process. The last engine is the store of this package.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from page_engines import ENGINES, NBYTES, Damaged, PageEngine, page_bytes
from rich.console import Console
from rich.table import Table

from ds41.serving.store import StoreError

GOAL_RATIO, GOAL_OVERHEAD = 0.5, 0.03
_CHUNK = 2**20
_HEADER_BYTE = 20


@dataclass(frozen=True)
class Row:
    """One engine at one size of batch; ratios are medians over the rounds, each to the copy of its own round."""

    engine: str
    batch: int
    write: float
    read: float
    write_ratio: float
    read_ratio: float
    overhead: float
    damage: dict[str, str]


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def copy_seconds(folder: Path, pages: list[bytes], batch: int) -> float:
    """A plain copy of files with the same bytes, one for each batch, fsync included."""
    names = [str(start) for start in range(0, len(pages), batch)]
    for name in names:
        (folder / name).write_bytes(b"".join(pages[int(name) : int(name) + batch]))

    def copy() -> None:
        for name in names:
            with (
                open(folder / name, "rb", buffering=0) as source,
                open(folder / f"{name}.copy", "wb", buffering=0) as to,
            ):
                while chunk := source.read(_CHUNK):
                    to.write(chunk)
                os.fsync(to.fileno())

    try:
        return seconds(copy)
    finally:
        shutil.rmtree(folder)


def write_all(engine: PageEngine, pages: list[bytes], batch: int) -> None:
    for start in range(0, len(pages), batch):
        engine.put(pages[start : start + batch])


def read_all(engine: PageEngine) -> int:
    return sum(len(page) for page in engine.pages())


def bytes_on_disk(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def damage_report(name: str, folder: Path, work: Path) -> dict[str, str]:
    """What reading says after each kind of damage to the largest file."""

    def flip(path: Path, place: int) -> None:
        with open(path, "r+b") as file:
            file.seek(place)
            value = file.read(1)[0]
            file.seek(place)
            file.write(bytes([value ^ 0xFF]))

    kinds: dict[str, Callable[[Path], None]] = {
        "byte flipped": lambda path: flip(path, path.stat().st_size // 2),
        "header flipped": lambda path: flip(path, _HEADER_BYTE),
        "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    }
    report = {}
    for kind, harm in kinds.items():
        target = work / "damaged"
        shutil.copytree(folder, target)
        harm(max((path for path in target.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size))
        report[kind] = in_child(partial(probe, name, target))
        shutil.rmtree(target)
    return report


def in_child(call: Callable[[], str]) -> str:
    """What a call in a forked child answers, or the signal that ended it."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, call().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as answers:
        answer = answers.read()
    _, status = os.waitpid(child, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else answer or "no answer"


def probe(name: str, folder: Path) -> str:
    """Open a damaged folder, read all there is, and say in a word how it went."""
    try:
        with closing(ENGINES[name](folder)) as engine:
            return "all right" if read_all(engine) else "miss"
    except Damaged:
        return "bad page"
    except (sqlite3.Error, StoreError, OSError) as error:
        return type(error).__name__
    except Exception as error:
        if not type(error).__module__.startswith("lmdb"):
            raise
        return type(error).__name__


def measure(
    names: list[str], count: int, batch: int, rounds: int, work: Path, damage: dict[str, dict[str, str]]
) -> tuple[list[Row], float]:
    """All engines in turn, each round beside a copy of its own; also the copy's best MB/s."""
    pages = [page_bytes(number) for number in range(count)]
    total = count * NBYTES
    times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    overhead = {}
    for turn in range(rounds):
        copied = copy_seconds(Path(tempfile.mkdtemp(dir=work)), pages, batch)
        for name in names:
            folder = Path(tempfile.mkdtemp(dir=work))
            with closing(ENGINES[name](folder)) as engine:
                written = seconds(partial(write_all, engine, pages, batch))
            with closing(ENGINES[name](folder)) as engine:
                read = seconds(partial(read_all, engine))
            times[name].append((copied, written, read))
            if turn == rounds - 1:
                overhead[name] = bytes_on_disk(folder) / total - 1
                # Once an engine is enough: the size of the batches changes nothing.
                damage[name] = damage.get(name) or damage_report(name, folder, work)
            shutil.rmtree(folder)
    rows = []
    for name, measured in times.items():
        rows.append(
            Row(
                name,
                batch,
                total / min(written for _, written, _ in measured) / 1e6,
                total / min(read for _, _, read in measured) / 1e6,
                statistics.median(copied / written for copied, written, _ in measured),
                statistics.median(copied / read for copied, _, read in measured),
                overhead[name],
                damage[name],
            )
        )
    return rows, total / min(copied for values in times.values() for copied, _, _ in values) / 1e6


def table(options: argparse.Namespace, rows: list[Row], copies: dict[int, float]) -> Table:
    """All engines at each size of batch, beside the copy; copies: its MB/s."""
    found = Table(title=f"{options.pages} pages of {NBYTES:,} bytes, best of {options.rounds} rounds")
    kinds = list(rows[0].damage)
    headings = ["engine", "pages a batch", "write MB/s", "read MB/s", "write / copy", "read / copy", "overhead", *kinds]
    for place, heading in enumerate(headings):
        found.add_column(heading, justify="right" if 1 <= place <= 6 else "left")
    for batch in options.batches:
        found.add_row(
            "plain file copy with fsync",
            f"{batch:,}",
            f"{copies[batch]:,.0f}",
            "-",
            "1.00",
            "-",
            "-",
            *"-" * len(kinds),
        )
        for row in rows:
            if row.batch == batch:
                found.add_row(
                    row.engine,
                    f"{row.batch:,}",
                    f"{row.write:,.0f}",
                    f"{row.read:,.0f}",
                    f"{row.write_ratio:.2f}",
                    f"{row.read_ratio:.2f}",
                    f"{row.overhead:.2%}",
                    *row.damage.values(),
                )
        found.add_section()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 2000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("build"), help="on the disk to be measured")
    parser.add_argument("--engine", choices=list(ENGINES), action="append", help="only this one; may be repeated")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console = Console(width=180)
    names = options.engine or list(ENGINES)
    if "LMDB" in names and importlib.util.find_spec("lmdb") is None:
        console.print("LMDB is left out: its Python package is not installed (pip install lmdb).")
        names.remove("LMDB")
    options.folder.mkdir(parents=True, exist_ok=True)
    rows, copies, damage = [], {}, {}
    with tempfile.TemporaryDirectory(dir=options.folder) as work:
        for batch in options.batches:
            measured, copies[batch] = measure(names, options.pages, batch, options.rounds, Path(work), damage)
            rows += measured
    console.print(table(options, rows, copies))
    console.print(f"Aims: write and read at least {GOAL_RATIO} of the copy, overhead under {GOAL_OVERHEAD:.0%}.")
    if options.json:
        options.json.write_text(json.dumps({"copies": copies, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
