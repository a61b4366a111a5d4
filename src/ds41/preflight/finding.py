"""What a check of a machine finds, and how a part of it is tried in a Python of its own.

Source: ds41's own.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ds41.language import current, say
from ds41.language.numbers import german

State = Literal["ok", "warn", "fail"]
"""Fine; works, with a remark; a workshop cannot begin with it."""

PROGRAMS = "ds41.preflight.programs"
"""The module whose programs :func:`probe` runs."""


ANSWER = "ds41 answers: "
"""What a line of a program's output begins with where it is an answer: imported packages print what they like."""


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        check: the name of the check for programs, the same in every language.
        name: its name for readers.
        found: what is there.
        expected: what should be.
        mend: one command or one sentence; "" where nothing has to be mended.

    Raises:
        ValueError: something is not as it should be, and nothing says how to mend it.
    """

    check: str
    name: str
    state: State
    found: str
    expected: str
    mend: str = ""

    def __post_init__(self) -> None:
        if (self.state == "ok") == bool(self.mend):
            raise ValueError(f"{self.check}: state is {self.state!r} and mend is {self.mend!r}; a fault has a remedy")


@dataclass(frozen=True)
class Outcome:
    """How a program ended. answers: the objects that it printed, one a line. trouble: why it failed, or ""."""

    answers: tuple[dict[str, Any], ...] = ()
    trouble: str = ""

    @property
    def answer(self) -> dict[str, Any]:
        """The only answer; empty where the program failed."""
        return self.answers[-1] if self.answers and not self.trouble else {}


def probe(*arguments: str, seconds: float = 60, environment: Mapping[str, str] | None = None) -> Outcome:
    """Run one program of :mod:`ds41.preflight.programs` in a Python of its own: a crash there is a finding here.

    Args:
        arguments: the program's name, and what it takes.
        seconds: how long it may run.
        environment: variables that it gets beside those of this process.
    """
    # As for a notebook, this folder comes first on the path: a file in it called torch.py is worth finding.
    command = [sys.executable, "-m", PROGRAMS, *arguments]
    variables = {**os.environ, **(environment or {})}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, env=variables, check=False
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        output = output.decode(errors="replace") if isinstance(output, bytes) else output
        return Outcome(_answers(output), say("no answer within {seconds:g} s", seconds=seconds))
    except OSError as error:
        return Outcome((), f"{sys.executable}: {error.strerror}")
    answers = _answers(done.stdout)
    if done.returncode:
        return Outcome(answers, _last_words(done.returncode, done.stderr))
    return Outcome(answers, "" if answers else say("it ended without an answer"))


def this_python() -> str:
    """How this Python is called on a command line: shortly where the short name leads to it."""
    found = shutil.which("python")
    return "python" if found and os.path.samefile(found, sys.executable) else shlex.quote(sys.executable)


def install(*requirements: str) -> str:
    """The command that installs packages into this Python."""
    return f"{this_python()} -m pip install {' '.join(map(shlex.quote, requirements))}"


def reinstall() -> str:
    """The command that installs ds41 anew, in the folder of the workshop's files."""
    return f"{this_python()} -m pip install --force-reinstall --no-deps wheel/ds41-*.whl"


def readable(nbytes: float) -> str:
    """Bytes for readers, as the language writes numbers: 2.1 GB, in powers of 1000."""
    units = ["B", "kB", "MB", "GB"]
    while nbytes >= 1000 and len(units) > 1:
        nbytes /= 1000
        units.pop(0)
    text = f"{nbytes:,.1f}" if units[0] == "GB" else f"{nbytes:.3g}"
    return f"{german(text) if current() == 'de' else text} {units[0]}"


def _answers(output: str) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(line.removeprefix(ANSWER)) for line in output.splitlines() if line.startswith(ANSWER))


def _last_words(code: int, errors: str) -> str:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = str(-code)
        return say("Python was ended by {signal}", signal=name)
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return lines[-1] if lines else say("Python ended with status {code}", code=code)
