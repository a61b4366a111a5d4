"""``ds41 doctor``: what this machine will run, and, with ``--workshop``, whether it is ready for one.

Source: ds41's own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from ds41 import __version__

if TYPE_CHECKING:
    from ds41.preflight import Finding

SCHEMA = "ds41.preflight/1"
_INDENT = 34


def add_doctor_command(commands: argparse._SubParsersAction) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="environment, and which backend would run here; --workshop: is this machine ready for one",
        description="Prints the version, the environment in one line, and which backend would run here and why. "
        "With --workshop it checks instead, in about half a minute and without a network, whether the chapters "
        "will run on this machine.",
        epilog="Exit status: 0; with --workshop 1 if something has to be mended first; 2 for an argument, a backend or "
        "a language that cannot be used.",
    )
    doctor.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="device to look at (default: auto)"
    )
    doctor.add_argument("--workshop", action="store_true", help="check everything that a workshop needs")
    doctor.add_argument("--json", action="store_true", help="with --workshop: print one JSON object instead of a table")
    doctor.add_argument("--language", metavar="CODE", help="with --workshop: the language to speak, en or de")
    doctor.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    if options.workshop:
        return _workshop(options)
    for name in ("json", "language"):
        if getattr(options, name):
            print(f"ds41: --{name} goes with --workshop", file=sys.stderr)
            return 2
    from ds41 import environment

    print(f"ds41 {__version__}")
    try:
        # The interpreter has to be set up before the operations import triton.
        found = environment.prepare(options.device)
        print(found.report())
        from ds41 import ops
        from ds41.ops.operators import OPERATORS

        backend = ops.choose_backend(found.device)
    except (RuntimeError, ValueError) as error:
        sys.stdout.flush()
        print(f"ds41: {error}", file=sys.stderr)
        return 2
    print(f"backend {backend.name}: {backend.reason}")
    print(f"operators with a kernel (torch.ops.ds41): {', '.join(sorted(OPERATORS))}")
    return 0


def _workshop(options: argparse.Namespace) -> int:
    try:
        from ds41 import language

        if options.language:
            language.use(options.language)
    except (ModuleNotFoundError, ValueError) as error:
        print(f"ds41: {error}", file=sys.stderr)
        return 2
    from ds41.preflight import preflight, verdict

    findings: list[Finding] = []

    def noted() -> Iterator[Finding]:
        for finding in preflight():
            findings.append(finding)
            yield finding

    if options.json:
        list(noted())
        ready = not any(finding.state == "fail" for finding in findings)
        report = {"schema": SCHEMA, "ready": ready, "findings": [vars(finding) for finding in findings]}
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return 0 if ready else 1
    for row in _rows(noted()):
        print(row, flush=True)
    print(f"\n{verdict(findings)}")
    return int(any(finding.state == "fail" for finding in findings))


def _rows(findings: Iterator[Finding]) -> Iterator[str]:
    """The report's rows as the findings come; packages in good order share one."""
    from ds41.language import say

    for alike, group in groupby(findings, key=lambda one: one.state == "ok" and one.check.startswith("package ")):
        if alike:
            yield _row("ok", say("packages"), ", ".join(finding.found for finding in group))
            continue
        for finding in group:
            if finding.state == "ok":
                yield _row("ok", finding.name, finding.found)
            else:
                expected = say("expected: {what}", what=finding.expected)
                yield _row(finding.state, finding.name, finding.found, expected, remedy=finding.mend)


def _row(state: str, name: str, *texts: str, remedy: str = "") -> str:
    """State, name and texts in columns; a remedy is not wrapped, so that a command can be copied."""
    from ds41.language import say

    words = {"ok": say("ok"), "warn": say("remark"), "fail": say("mend")}
    label = f"{words[state]:<9}{name}  "
    width = max(40, min(120, shutil.get_terminal_size((120, 24)).columns) - _INDENT)
    lines = [line for text in texts for line in textwrap.wrap(text, width, break_on_hyphens=False)]
    lines += [f"> {remedy}"] if remedy else []
    return "\n".join(f"{label if number == 0 else '':<{_INDENT}}{line}" for number, line in enumerate(lines))
