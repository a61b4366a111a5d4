"""``ds41 probe``: the three probes of what could break."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields

from ds41.cli_model import run_command

_PROBES = {
    "selection": "a needle at the edge of the selection and of the pool; what wrong picks do to a trained model",
    "replay": "every hit position of a prompt, by kind of text: what bounded replay changes",
    "fp4": "main KV in FP4, FP8 and BF16 at equal selection, by size of the value and weight of the norm",
}


def add_probe_command(commands: argparse._SubParsersAction) -> None:
    probe = commands.add_parser(
        "probe",
        help="measure what could break: selection, replay, fp4",
        description="Probes of the design, with intervals over seeds and what would falsify it. Small by default.",
        epilog="\n".join(f"{name}: {says}" for name, says in _PROBES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    probe.add_argument("probe", choices=tuple(_PROBES), metavar="PROBE", help=", ".join(_PROBES))
    probe.add_argument("--seeds", type=int, metavar="N", help="default: 100; for replay 8 prompts of each kind")
    probe.add_argument("--entries", type=int, metavar="N", help="of the selection's context (default: 65536)")
    probe.add_argument("--rows", type=int, default=16, metavar="N", help="of the trained model (default: 16)")
    probe.add_argument(
        "--full", action="store_true", help="selection at 1,048,576 entries too; four times the prompts, all heads"
    )
    probe.add_argument("--model", metavar="FOLDER", help="checkpoint over bytes (default: the shipped nano)")
    probe.add_argument(
        "--beside",
        metavar="FOLDER",
        help="a second checkpoint, trained without replay or without FP4: what that changes",
    )
    probe.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    probe.set_defaults(run=lambda options: run_command(lambda: _probe(options)))


def _probe(options: argparse.Namespace) -> int:
    # Imported here: --help and errors of usage should not wait for torch.
    import torch

    from ds41 import environment
    from ds41.checkpoint import load_checkpoint
    from ds41.probes.estimates import plain_values
    from ds41.probes.suite import PROBES, Size
    from ds41.trained import trained_folder

    for name in ("seeds", "entries", "rows"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} is {value}; expected 1 or more")
    # Probes count on exact repetition and on the definition of each operation.
    found = environment.prepare("cpu")
    if options.beside is not None and options.probe == "selection":
        raise ValueError(f"--beside is {options.beside!r}; the probe selection compares no models, replay and fp4 do")
    folders = (trained_folder() if options.model is None else options.model, options.beside)
    model, beside = (
        None if one is None else load_checkpoint(one, "cache", torch.float32).requires_grad_(False) for one in folders
    )
    size = Size(options.seeds, options.entries, options.rows, options.full)
    reports = PROBES[options.probe](model, size, beside)
    if options.json:
        print(json.dumps({"environment": found.report(), **{name: plain_values(one) for name, one in reports.items()}}))
        return 0
    print(found.report())
    for name, report in reports.items():
        _print_report(name, report)
    return 0


def _print_report(name: str, report: object) -> None:
    """Every list of records as a table, the rest as lines."""
    for field in fields(report):
        value = getattr(report, field.name)
        if isinstance(value, (list, tuple)) and value and hasattr(value[0], "__dataclass_fields__"):
            _print_records(f"{name}: {field.name}", value)
        elif isinstance(value, (str, int, float)):
            print(f"{name}: {field.name} {value}")


def _print_records(title: str, records: list | tuple) -> None:
    from rich.console import Console

    from ds41.cli_tables import Column, Sheet

    names = [field.name for field in fields(records[0])]
    rows = [tuple(_cell(getattr(record, name)) for name in names) for record in records]
    prose = {name for i, name in enumerate(names) if max(len(row[i]) for row in rows) > 40}
    columns = tuple(Column(name.replace("_", " "), prose=name in prose) for name in names)
    print()
    Sheet(title, columns, rows).render(Console())


def _cell(value: object) -> str:
    if hasattr(value, "samples"):
        return value.text()
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)
