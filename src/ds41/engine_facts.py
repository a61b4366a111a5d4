"""What engines do with this model: what they store and why, the flags that matter, what was measured on servers.

Data with sources in ``data/engines.json`` and ``data/engine_logs.json``; bytes are computed, never typed in.

Source: each fact names its own, an engine's code, thread or log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources

from ds41.config import ModelConfig
from ds41.counterfactuals import engines
from ds41.engine_check import LogCheck, RequestCost, check_log, fit_requests
from ds41.engine_logs import EngineLog, read_lines
from ds41.records import Row
from ds41.systems import system


@dataclass(frozen=True)
class RecordedLog:
    """Lines of a start-up log that somebody published.

    wording: "as logged" or "quoted". model: a system's key. known: fields of :class:`ds41.engine_logs.EngineLog` that
    the source tells and its lines do not.
    """

    key: str
    title: str
    model: str
    source: str
    wording: str
    note: str
    lines: tuple[str, ...]
    known: Mapping[str, object] = field(default_factory=dict)

    def read(self) -> EngineLog:
        """What the lines say, and what the source says where they are silent."""
        log = read_lines(self.lines)
        return replace(log, **{name: value for name, value in self.known.items() if name not in log.found()})

    def check(self, storage: str | None = None) -> LogCheck:
        """:func:`ds41.engine_check.check_log` with the model that the source names.

        Raises:
            LogError: the log says too little.
            ValueError: a storage that is none.
        """
        return check_log(self.read(), system(self.model), storage=storage)


@cache
def recorded_logs() -> dict[str, RecordedLog]:
    """The recorded logs by key."""
    return {
        one["key"]: RecordedLog(**{**one, "lines": tuple(one["lines"])}) for one in _data("engine_logs.json")["logs"]
    }


@dataclass(frozen=True)
class EngineRow:
    """What an engine stores per token, and why. storage: its name in :mod:`ds41.engine_storages`, if it has one."""

    row: Row
    storage: str | None
    why: str


def stored_by_engines(config: ModelConfig) -> tuple[EngineRow, ...]:
    """The rows of :func:`ds41.counterfactuals.engines` with their reasons."""
    reasons = {one["engine"]: one for one in facts()["stored"]}
    return tuple(EngineRow(row, reasons[row.name]["storage"], reasons[row.name]["why"]) for row in engines(config))


@dataclass(frozen=True)
class Flag:
    """One option of an engine. topic: "parallel", "length", "cache", "replay", "Engram", "drafts", ..."""

    engine: str
    flag: str
    topic: str
    does: str
    source: str


def flags(engine: str | None = None) -> tuple[Flag, ...]:
    """The options that matter for this model, of one engine ("vLLM", "SGLang") or of all."""
    return tuple(Flag(**one) for one in facts()["flags"] if engine in (None, one["engine"]))


@dataclass(frozen=True)
class LiveUse:
    """Cache bytes in use on one GPU while ``sequences`` sequences of ``tokens`` tokens together decode."""

    model: str
    sequences: int
    tokens: int
    nbytes: float


def live_use(model: str) -> tuple[LiveUse, ...]:
    """What a running server had in use, for "deepseek-v4.1-flash" or "deepseek-v4-flash"."""
    return tuple(
        LiveUse(one["model"], one["sequences"], one["tokens"], one["mib"] * 2**20)
        for one in facts()["live"]["rows"]
        if one["model"] == model
    )


def live_cost(model: str) -> RequestCost:
    """A sequence's bytes in use as ``fixed + rate * tokens``: a line through the longer contexts of :func:`live_use`.

    The shortest contexts are left out: there, pages that are not yet full weigh most.
    """
    rows = [(one.tokens / one.sequences, one.nbytes / one.sequences) for one in live_use(model)]
    shortest = min(length for length, _ in rows)
    return fit_requests((length, size) for length, size in rows if length > 2 * shortest)


@cache
def facts() -> dict:
    """``data/engines.json`` as it is."""
    return _data("engines.json")


def _data(name: str) -> dict:
    return json.loads(resources.files("ds41").joinpath(f"data/{name}").read_text(encoding="utf-8"))
