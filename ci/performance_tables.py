"""The tables of each kind of file in benchmarks/results/, as the program that wrote it prints them.

Each function takes a file's content and gives tables of `ds41.viz`, and sentences in plain text. `formats.py` and
`serve_load.py` need packages that the book is built without, and the programs of ci/ print text, so their columns stand
here; the tables of the others come out of their own functions.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from compile_kernels import SHARED_LIMIT

if TYPE_CHECKING:
    from ds41.viz.tables import Table

# Rows above which the page folds a table.
LONG = 60
# What an instruction can name (CUDA programming guide).
_MOST_REGISTERS = 255


def printed(show: Callable[..., None], *arguments: object, title: str | None = None) -> Iterator[Table | str]:
    """What a program prints with rich: its tables, the first under another title if one is given, and its lines."""
    from rich.console import Console

    found: list = []
    with patch.object(Console, "print", lambda _, *things: found.extend(things)):
        show(*arguments)
    for thing in found:
        if isinstance(thing, str):
            yield thing
            continue
        header = [(str(column.header), column.justify == "right") for column in thing.columns]
        yield _table(title or str(thing.title), header, list(zip(*(c.cells for c in thing.columns), strict=True)))
        title = None


def _table(title: str, header: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> Table:
    """header: each column's name, and whether it holds numbers, which are right-aligned.

    The names of columns and rows are what a screen reader says of a cell, so none of them is left empty.
    """
    from ds41.viz.tables import Table

    names = tuple(name or "quantity" for name, _ in header)
    numeric = tuple(i for i, (_, right) in enumerate(header) if right)
    return Table(title, names, tuple((first or "–", *others) for first, *others in rows), numeric)


def _columns(words: Sequence[str], numbers: Sequence[str]) -> list[tuple[str, bool]]:
    return [(name, False) for name in words] + [(name, True) for name in numbers]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def gpu(record: dict[str, Any]) -> Iterator[Table | str]:
    """Of ci/gpu_check.py: kernels beside floors and torch, formats beside a copy, launches, a layer as a graph."""
    import kernels

    shape = record["shape"]
    step = f"a decode step of {shape['sequences']:,} sequences of {shape['tokens']:,} tokens, {shape['dtype']}"
    rows = [kernels.Row(**row) for row in record["kernels"]]
    yield from printed(kernels.print_rows, rows, "", title=f"Kernels beside their floors: {step}")
    yield _table(
        "Formats beside a plain copy",
        _columns(("format", "type"), ("differing bytes", "ms", "GB/s", "of copy")),
        [
            (
                row["kernel"],
                row["dtype"],
                f"{row['differing_bytes']:,}",
                _number(row["milliseconds"], ",.3f"),
                _number(row["gigabytes_per_second"], ",.0f"),
                _number(row["of_copy"], ".2f"),
            )
            for row in record["formats"]
        ],
    )
    yield _table(
        "Launches of a layer",
        _columns(("layer mode", "phase"), ("kernels", "torch", "seen on the device")),
        [
            (row["mode"], row["phase"], str(row["kernels"]), str(row["torch"]), _number(row["device"], ""))
            for row in record["launches"]
        ],
    )
    if graph := record["graph"]:
        times = graph["eager_milliseconds"], graph["graph_milliseconds"]
        yield (
            f"A Reuse layer of the published sizes, one token: {times[0]:.3f} ms, as a CUDA graph {times[1]:.3f} ms, "
            f"{times[1] / times[0]:.2f} of the time; same bits: {'yes' if graph['same'] else 'no'}."
        )
    if tests := record["tests"]:
        passed = sum(test["status"] == 0 for test in tests)
        yield f"Kernel tests on this device: {passed} of {len(tests)} files passed."
    left_out: dict[str, list[str]] = {}
    for line in record["left_out"]:
        what, _, why = line.rpartition(": ")
        left_out.setdefault(why, []).append(what)
    for why, names in left_out.items():
        yield f"Left out ({why}): {'; '.join(names)}."


def chapters(record: dict[str, Any]) -> Iterator[Table]:
    """Of ci/run_notebooks.py on a GPU: seconds and memory of every chapter."""

    def mebibytes(value: int | None) -> str:
        return _number(value and value / 2**20, ",.0f")

    rows = [
        (
            row["chapter"],
            row["outcome"],
            f"{row['seconds']:,.1f}",
            mebibytes(row.get("peak_rss_bytes")),
            mebibytes(row.get("cuda_peak_bytes")),
        )
        for row in record["chapters"]
    ]
    rows.append(("all", "", f"{sum(row['seconds'] for row in record['chapters']):,.1f}", "", ""))
    numbers = ("seconds", "memory, MiB", "GPU memory, MiB")
    yield _table(f"Chapters at scale {record['scale']}", _columns(("chapter", "outcome"), numbers), rows)


def compiled(record: dict[str, Any]) -> Iterator[Table]:
    """Of ci/compile_kernels.py: each generation's dearest kernel beside its limits, then every kernel."""
    kernels = record["kernels"]
    targets = sorted({target for costs in kernels.values() for target in costs}, key=lambda name: int(name[3:]))
    rows = []
    for target in targets:
        costs = [of_kernel[target] for of_kernel in kernels.values() if target in of_kernel]
        registers, shared = (max(row[name] for row in costs) for name in ("registers", "shared_bytes"))
        limit = SHARED_LIMIT[int(target[3:])]
        on_units = sum(row["matrix"] > 0 for row in costs)
        spilled = sum(row["spill_bytes"] for row in costs)
        rows.append(
            (
                target,
                f"{len(costs)}",
                f"{on_units}",
                f"{spilled:,}",
                f"{registers}",
                f"{registers / _MOST_REGISTERS:.2f}",
                f"{shared / 1024:.1f}",
                f"{shared / limit:.2f}",
            )
        )
    numbers = (
        "kernels",
        "on matrix units",
        "bytes spilled",
        "registers",
        f"of {_MOST_REGISTERS}",
        "shared, KiB",
        "of limit",
    )
    yield _table(
        "Compiled kernels by GPU generation, and the most that one of them takes",
        _columns(("generation",), numbers),
        rows,
    )
    for title, name, unit, form in (
        (f"Registers of a thread, all {len(kernels)} kernels", "registers", 1, ".0f"),
        (f"Shared memory of a program in KiB, all {len(kernels)} kernels", "shared_bytes", 1024, ".1f"),
    ):
        cells = [
            (
                kernel.replace("_", " "),
                *(_number(costs[target][name] / unit if target in costs else None, form) for target in targets),
            )
            for kernel, costs in kernels.items()
        ]
        yield _table(title, _columns(("kernel",), targets), cells)


def formats(record: dict[str, Any]) -> Iterator[Table]:
    """Of benchmarks/formats.py."""
    rows = [
        (
            row["format"],
            row["candidate"],
            f"{row['encode_ms']:,.1f}" if "encode_ms" in row else "",
            f"{row['decode_ms']:,.1f}",
            f"{row['x_copy']:.2f}",
            f"{row['same_bytes']:.2%}" if "same_bytes" in row else "",
        )
        for row in record["rows"]
    ]
    numbers = ("encode ms", "decode ms", "x copy", "same bytes")
    yield _table("Encode and decode beside other libraries", _columns(("format", "candidate"), numbers), rows)


def million(record: dict[str, Any]) -> Iterator[Table | str]:
    """Of benchmarks/million.py, with the ratios that it prints below its table."""
    import million as program

    from ds41 import ModelConfig, ledger

    rows = [program.Row(**row) for row in record["rows"]]
    yield from printed(program._print, rows, title="One decode step of one layer")
    by_place = {(row.tokens, row.layer): row for row in rows}
    first, last = min(row.tokens for row in rows), max(row.tokens for row in rows)
    indexer = by_place[last, "Full"].indexer_macs / by_place[last, "Reindex"].indexer_macs
    times = [by_place[last, layer].milliseconds / by_place[first, layer].milliseconds for layer in ("Full", "Reindex")]
    held, predicted = record["page_bytes"], ledger.global_bytes(ModelConfig.flash(), last)
    yield (
        f"At {last:,} tokens the indexer of a Full layer does {indexer:.2f} times the work of a Reindex layer. A Full "
        f"layer takes {times[0]:.2f} times as long as at {first:,}, a Reindex layer {times[1]:.2f} times. The pages "
        f"hold {held:,} bytes, {held / predicted:.4f} of what the ledger predicts."
    )


def peers(record: dict[str, Any]) -> Iterator[Table | str]:
    """Of benchmarks/peers.py, whose own title would name the machine that builds the book."""
    import peers as program

    title = f"ds41 beside transformers' DeepSeek-V4, {record['tokens']:,} tokens of context"
    yield from printed(program._print, record["results"], record["tokens"], title=title)


def sessions(record: dict[str, Any]) -> Iterator[Table | str]:
    """Of benchmarks/sessions.py: the first token, the store's speed, and what persists."""
    import sessions as program
    from rich.console import Console

    console = Console()
    rows = [program.FirstToken(**row) for row in record["first_token"]]
    new = min(row.fed for row in rows)
    yield from printed(program._print_first_tokens, console, rows, new)
    speeds = {row["pages_a_put"]: (SimpleNamespace(**row), row["copy_MB_s"]) for row in record["store"]}
    yield from printed(program._print_speeds, console, speeds, max(speeds))
    # The share is a property there.
    kept = [{name: value for name, value in row.items() if name != "overhead"} for row in record["persisted"]]
    yield from printed(program._print_persisted, console, [program.Persisted(**row) for row in kept])
    v4 = record["v4_checkpoints"]
    yield (
        f"V4-Flash would have stored {v4['v4_global']:,.0f} bytes a new token of global KV for the same {v4['turns']} "
        f"turns, and {v4['v4_windows']:,.0f} more for two checkpoints of its windows a turn: {v4['times']:.1f} times "
        f"the {v4['ours']:,.1f} bytes here."
    )


def serve_load(record: dict[str, Any]) -> Iterator[Table]:
    """Of benchmarks/serve_load.py: what was asked, what came, and what was wrong."""
    told, counted = record["tokens"]["told"], record["tokens"]["counted"]
    resident = record["resident_bytes"]
    wrong = sum(case["status"] not in case["right"] for case in record["hostile"])
    errors = {(one["kind"], one["error"]): one["count"] for one in record["errors"]}
    refused = errors.pop(("wrong key", "401"), 0)
    rows = [
        ("requests", f"{sum(record['kinds'].values()):,}"),
        ("clients", f"{record['options']['clients']:,}"),
        ("seconds", f"{record['seconds']:.1f}"),
        ("wrong keys, of them refused", f"{record['kinds'].get('wrong key', 0)}, {refused}"),
        ("other errors", f"{sum(errors.values())}"),
        ("finished answers, different when asked alone", f"{record['finished']}, {len(record['different'])}"),
        *(
            (f"{kind} tokens, counted by the server over told to clients", f"{counted[kind]:,} / {told[kind]:,}")
            for kind in ("prompt", "cached", "completion")
        ),
        *_percentiles("an answer", record["answer_s"]),
        *_percentiles("the first piece of a stream", record["first_s"]),
        ("resident memory, last over first quarter", f"{resident['quarters'][-1] / resident['quarters'][0]:.3f}"),
        ("hostile requests, with another status than right", f"{len(record['hostile'])}, {wrong}"),
        ("exit status", f"{record['status']}"),
    ]
    yield _table("ds41 serve under load", [("quantity", False), ("value", True)], rows)


def _percentiles(what: str, seconds: Sequence[float]) -> list[tuple[str, str]]:
    cuts = statistics.quantiles(seconds, n=20, method="inclusive")
    return [
        (f"seconds to {what}, median", f"{cuts[9]:.2f}"),
        (f"seconds to {what}, 95th percentile", f"{cuts[18]:.2f}"),
    ]
