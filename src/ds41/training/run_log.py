"""The log of a run: one JSON object a step, and the same for TensorBoard where that is installed.

Source: ds41's own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType

LOG = "log.jsonl"
"""The file of a run's log, a line of JSON a step."""


class RunLog:
    """Appends to ``log.jsonl`` in a folder, after dropping the lines of steps that a resumed run will do again.

    Args:
        start: first step that will be written. writes: False for a worker that leaves the log to another.
    """

    def __init__(self, folder: Path, start: int, writes: bool = True) -> None:
        self._file = self._board = None
        if not writes:
            return
        path = folder / LOG
        kept = [line for line in read_log(path) if line["step"] < start] if path.exists() else []
        partial = path.with_suffix(".partial")
        partial.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        os.replace(partial, path)
        self._file = path.open("a", encoding="utf-8")
        self._board = _board(folder / "tensorboard", start)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()

    def write(self, line: dict) -> None:
        """Append a line: JSON, NaN as null, flushed at once; to the board too where there is one."""
        if self._file is None:
            return
        # JSON has no NaN: a step without answers has no loss of them.
        whole = {name: None if value != value else value for name, value in line.items()}
        self._file.write(json.dumps(whole, allow_nan=False) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in line.items():
                if isinstance(value, float) and value == value:
                    self._board.add_scalar(name, value, line["step"])


def read_log(path: str | Path) -> list[dict]:
    """The lines of a log; one that was cut off by a kill is left out."""
    lines = []
    for text in Path(path).read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def _board(folder: Path, start: int) -> object | None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    # Steps from here on replace those that a killed run left.
    return SummaryWriter(str(folder), purge_step=start or None)
