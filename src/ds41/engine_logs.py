"""Start-up logs of serving engines: what vLLM and SGLang print about their KV cache, read line by line.

A log is read as a stream of bounded pieces, so its size does not matter; colour codes, time stamps, rank prefixes,
progress bars, JSON wrappers, gzip, UTF-16 and bytes that are no text are all taken as they come. Of a log that holds
several starts, the last one that printed a size counts. Ranks are told apart by the engines' own prefixes.

Units: vLLM prints GiB, SGLang prints GB and means 2^30 bytes (its recorded sizes fit no other unit).
Recorded examples with their sources: ``data/engine_logs.json``.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path

from ds41.engine_log_lines import ARGUMENT_LINE, ARGUMENTS, INTERESTING, LINES, RANK, START, clean

_PIECE = 1 << 16
_OVERLAP = 512
_LARGEST_JSON = 1 << 16


class LogError(ValueError):
    """A log that cannot be read, or that lacks what a question needs."""


@dataclass(frozen=True)
class Sizes:
    """The same quantity as it was printed ``count`` times, by several ranks. unit: the step of its last digit."""

    smallest: float
    largest: float
    count: int
    unit: float = 1.0


@dataclass(frozen=True)
class EngineLog:
    """What one start of an engine printed; None where it did not.

    available: bytes for the KV cache on one GPU, by rank. tokens: the cache's size in tokens, by engine.
    allocated: bytes that the tokens took on one GPU, by rank (SGLang). request_tokens, concurrency: "maximum
    concurrency for N tokens per request".
    cache_format, index_format: how the engine says that it stores entries and index keys.
    speculative: the method of the drafts. starts: how many starts the log holds. lines: lines read.
    """

    engine: str | None = None
    version: str | None = None
    model: str | None = None
    max_model_len: int | None = None
    kv_cache_dtype: str | None = None
    cache_format: str | None = None
    index_format: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    context_parallel: int | None = None
    dp_attention: bool | None = None
    block_size: int | None = None
    chunk_tokens: int | None = None
    speculative: str | None = None
    available: Sizes | None = None
    tokens: Sizes | None = None
    allocated: Sizes | None = None
    request_tokens: int | None = None
    concurrency: float | None = None
    starts: int = 0
    lines: int = 0

    def found(self) -> dict[str, object]:
        """The fields that the log filled, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass
class _Start:
    """One start while it is read."""

    values: dict[str, object] = field(default_factory=dict)
    available: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, list[float]] = field(default_factory=dict)
    allocated: dict[str, float] = field(default_factory=dict)
    units: dict[str, float] = field(default_factory=dict)


def read_log(path: str | Path) -> EngineLog:
    """Read a log file, plain or gzip; ``-`` is standard input.

    Raises:
        LogError: it cannot be read, is empty, or nothing in it is a line that an engine prints about its cache.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        with _opened(path) as raw:
            # Peeked at and not opened twice: a pipe gives its bytes once.
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            log = read_lines(_texts(gzip.GzipFile(fileobj=raw) if packed else raw))
    except (OSError, EOFError, zlib.error) as error:
        raise LogError(f"cannot read log {name}: {getattr(error, 'strerror', None) or error}") from error
    if not log.lines:
        raise LogError(f"{name} is empty; expected the start-up log of vLLM or SGLang")
    if log.tokens is None and log.available is None:
        raise LogError(
            f"{name}: none of {log.lines:,} lines tells of a KV cache; expected for example "
            f"'Available KV cache memory: 52.35 GiB' and 'GPU KV cache size: 1,234,567 tokens' (vLLM), or "
            f"'KV Cache is allocated. #tokens: 442750, K size: 27.02 GB, V size: 27.02 GB' (SGLang)"
        )
    return log


def _opened(path: str | Path) -> AbstractContextManager[BufferedReader]:
    return nullcontext(sys.stdin.buffer) if str(path) == "-" else Path(path).open("rb")


def read_lines(lines: Iterable[str]) -> EngineLog:
    """The same from lines of text; fields stay None where no line fills them."""
    current, last, starts, count = _Start(), None, 0, 0
    for text in lines:
        count += 1
        for line in _unwrapped(text):
            if _begins_again(line, current):
                last, starts, current = current, starts + 1, _Start()
            _take(line, current)
    if current.tokens or last is None:
        last, starts = current, starts + bool(current.tokens or current.available)
    return replace(_finish(last), starts=starts, lines=count)


def _begins_again(line: str, current: _Start) -> bool:
    """A banner after a whole start, or memory for a rank that has had its own before the size was printed."""
    if not current.tokens or not (current.available or current.allocated):
        return False
    again = LINES["available"].search(line) is not None and _rank(line) in current.available
    return again or START.search(line) is not None


def _take(line: str, current: _Start) -> None:
    values = current.values
    if ARGUMENT_LINE.search(line):
        for name, pattern in ARGUMENTS.items():
            match = pattern.search(line)
            value = None if match is None else next((group for group in match.groups() if group), None)
            if value not in (None, "None"):
                values.setdefault(name, value)
    for name, pattern in LINES.items():
        match = pattern.search(line)
        if match is None:
            continue
        rank = _rank(line)
        if name in ("available", "available_v0"):
            current.available[rank] = float(match[1]) * 2**30
            current.units["available"] = _digit(match[1]) * 2**30
            values["engine"] = "vllm"
        elif name == "tokens":
            current.tokens.setdefault(rank, []).append(_number(match[1]))
            values["engine"] = "vllm"
        elif name == "blocks_v0":
            values["blocks"] = match[1]
        elif name == "concurrency":
            values["request_tokens"], values["concurrency"] = match[1], match[2]
            values["engine"] = "vllm"
        elif name == "allocated":
            _take_allocation(match, rank, current)
        elif name == "max_total":
            current.tokens.setdefault(rank, [_number(match[1])])
            values["engine"] = "sglang"
        else:
            values.setdefault(name, match[1])


def _take_allocation(match: re.Match, rank: str, current: _Start) -> None:
    """The first allocation of a rank is the model's, a second one the drafter's."""
    current.values["engine"] = "sglang"
    if rank in current.allocated:
        return
    parts = [part for part in match.groups()[1:] if part is not None]
    current.tokens[rank] = [_number(match[1])]
    current.allocated[rank] = sum(float(part) for part in parts) * 2**30
    current.units["allocated"] = sum(_digit(part) for part in parts) * 2**30


def _finish(start: _Start) -> EngineLog:
    values = dict(start.values)
    blocks = values.pop("blocks", None)
    sizes = {
        "available": _sizes(start.available.values(), start.units.get("available", 0.0)),
        "allocated": _sizes(start.allocated.values(), start.units.get("allocated", 0.0)),
        "tokens": _sizes([value for row in start.tokens.values() for value in row], 1.0),
    }
    for name in ("max_model_len", "tensor_parallel", "pipeline_parallel", "data_parallel", "context_parallel",
                 "block_size", "chunk_tokens", "request_tokens"):  # fmt: skip
        if name in values:
            values[name] = int(_number(values[name]))
    if "dp_attention" in values:
        values["dp_attention"] = values["dp_attention"] == "True"
    if "concurrency" in values:
        values["concurrency"] = float(values["concurrency"])
    if sizes["tokens"] is None and blocks is not None:
        # vLLM before engine V1 printed blocks, of 16 tokens unless told otherwise.
        sizes["tokens"] = _sizes([_number(blocks) * values.get("block_size", 16)], 1.0)
    return EngineLog(**values, **sizes)


def _sizes(found: Iterable[float], unit: float) -> Sizes | None:
    values = list(found)
    return Sizes(min(values), max(values), len(values), unit) if values else None


def _rank(line: str) -> str:
    match = RANK.search(line)
    return "" if match is None else match[1] or match[2]


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _digit(text: str) -> float:
    """The step of the last digit: 0.01 for 29.14."""
    return 10.0 ** -len(text.partition(".")[2])


def _unwrapped(text: str) -> Iterator[str]:
    """The lines in one line: what a JSON object wraps, and what carriage returns separate."""
    if not INTERESTING.search(text):
        return
    stripped = text.strip()
    if stripped.startswith("{") and stripped.endswith("}") and len(stripped) <= _LARGEST_JSON:
        try:
            inner = json.loads(stripped)
        except (ValueError, RecursionError):
            inner = None
        if isinstance(inner, dict):
            stripped = "\n".join(value for value in inner.values() if isinstance(value, str))
    for part in re.split(r"[\r\n]+", stripped):
        yield clean(part)


def _texts(file) -> Iterator[str]:
    """Lines of bounded length, decoded; a longer one comes in pieces that overlap."""
    start = file.read(_PIECE)
    encoding = "utf-8"
    for mark, name in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if start.startswith(mark):
            encoding = name
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    rest, piece = "", start
    while piece:
        rest += decoder.decode(piece)
        *whole, rest = rest.split("\n")
        yield from whole
        if len(rest) > _PIECE:
            yield rest
            rest = rest[-_OVERLAP:]
        piece = file.read(_PIECE)
    rest += decoder.decode(b"", True)
    if rest:
        yield rest
