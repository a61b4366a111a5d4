"""The ledger against an engine: the cache size that a start-up log prints, and what the ledger says it should be.

The engine says how many bytes it has and how many tokens it makes of them; the ledger says what a token weighs in
each format that an engine may have stored. A latent cache lies whole on every GPU of a tensor-parallel group, keys
and values per head are split; every request also keeps its windows. vLLM's "cache size" of a model with windows is
no capacity: it is the number of full-length requests that it would admit, times their length.

Source: start-up messages of vLLM and SGLang (:mod:`ds41.engine_logs`); the check is ds41's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from ds41.config import ModelConfig
from ds41.engine_logs import EngineLog, LogError
from ds41.engine_storages import OWN, Stored, named_in, stored_ways
from ds41.systems import System, systems

TOLERANCE = 0.02
"""The relative difference up to which a log agrees with the ledger."""
GIB = 2**30
"""Bytes of a GiB."""


@dataclass(frozen=True)
class Prediction:
    """Tokens that one way of storing would give.

    bytes_per_token: on one GPU. request_bytes: what the log's full-length request weighs, windows included; None
    where the log names no length. tokens, low, high: predicted from the printed memory and from half a digit either
    side. error: printed over predicted, minus one.
    """

    stored: Stored
    bytes_per_token: Fraction
    request_bytes: int | None
    tokens: float
    low: float
    high: float
    error: float


@dataclass(frozen=True)
class LogCheck:
    """What :func:`check_log` found.

    expected: by the storage that was asked for, that the log names, or that gives the printed size; else by the
    model's own. why: which of the four. predictions: all, best first. request_bytes: what the engine charges one
    request of ``log.request_tokens`` tokens. printed_rate: printed bytes over printed tokens, no cost of a token
    where requests cost something of their own.
    """

    log: EngineLog
    system: System
    memory_bytes: float
    printed_tokens: float
    printed_rate: float
    request_bytes: float | None
    expected: Prediction
    why: str
    predictions: tuple[Prediction, ...]
    tolerance: float
    gpus: int
    notes: tuple[str, ...]

    @property
    def best(self) -> Prediction:
        """The prediction nearest to the log."""
        return self.predictions[0]

    @property
    def holds(self) -> bool:
        """Whether the expected storage is within the tolerance."""
        return abs(self.expected.error) <= self.tolerance

    @property
    def explained(self) -> bool:
        """Whether any storage gives the printed size."""
        return abs(self.best.error) <= self.tolerance

    @property
    def excluded(self) -> tuple[Prediction, ...]:
        """Storages that cannot be: the engine prints more tokens than they leave room for."""
        return tuple(prediction for prediction in self.predictions if prediction.error > self.tolerance)

    @property
    def unexplained_bytes(self) -> float | None:
        """What the engine charges a request beyond the expected storage; None without a request length."""
        if self.request_bytes is None or self.expected.request_bytes is None:
            return None
        return self.request_bytes - self.expected.request_bytes


def check_log(
    log: EngineLog,
    system: System | ModelConfig | None = None,
    *,
    storage: str | None = None,
    tensor_parallel: int | None = None,
    tolerance: float = TOLERANCE,
) -> LogCheck:
    """Compare the printed cache size with the ledger's.

    Args:
        system: the model; found by the log's model name if None.
        storage: a name of :data:`ds41.engine_storages.NAMES`; what the log names, else the best fit, if None.
        tensor_parallel: GPUs that share one copy of the model, where the log does not say.

    Raises:
        LogError: the log lacks a line that is needed, or names a model that ``systems.json`` does not have.
        ValueError: ``storage`` is none of this model's, or the tolerance is not positive.
    """
    if not tolerance > 0:
        raise ValueError(f"tolerance is {tolerance}; expected more than zero")
    memory, unit = _memory(log)
    if system is None:
        system = system_of(log.model)
    split = tensor_parallel or log.tensor_parallel or 1
    ways = stored_ways(system, split, log.pipeline_parallel or 1, drafts=log.speculative is not None)
    predictions = sorted(
        (_predict(way, log, memory, unit) for way in ways), key=lambda prediction: abs(prediction.error)
    )
    expected, why = _expected(predictions, log, storage, tolerance)
    printed = log.tokens.smallest
    length = log.request_tokens or log.max_model_len
    return LogCheck(
        log,
        ways[0].system,
        memory,
        printed,
        memory / printed,
        memory * length / printed if length and _by_request(log) else None,
        expected,
        why,
        tuple(predictions),
        tolerance,
        split * (log.pipeline_parallel or 1) * (log.data_parallel or 1),
        tuple(_notes(log, expected, memory, split)),
    )


def system_of(model: str | None) -> System:
    """The comparison system that a model's name or path stands for.

    Raises:
        LogError: no name, or none that is known.
    """
    if model is None:
        raise LogError(
            "no line names the model; expected 'non-default args: {... 'model': ...}' or \"with config: model=...\". "
            "Say which it is: --model NAME, or --config config.json"
        )
    name = _plain(model.rstrip("/").rsplit("/", 1)[-1])
    fitting = [key for key in systems() if f"{name}-".startswith(f"{_plain(key)}-")]
    if not fitting:
        raise LogError(
            f"the model {model!r} is none of {', '.join(systems())}; "
            "of DeepSeek-V4.1's family, --config config.json says what it is"
        )
    return systems()[max(fitting, key=len)]


def _plain(name: str) -> str:
    return name.lower().removeprefix("meta-").replace("_", "-")


def _memory(log: EngineLog) -> tuple[float, float]:
    """Bytes that the tokens take on one GPU, and the step of their last digit."""
    found = log.allocated or log.available
    missing = []
    if found is None:
        missing.append(
            "'Available KV cache memory: ... GiB' (vLLM) or "
            "'KV Cache is allocated. #tokens: ..., KV size: ... GB' (SGLang)"
        )
    if log.tokens is None:
        missing.append("'GPU KV cache size: ... tokens' (vLLM) or 'max_total_num_tokens=...' (SGLang)")
    if missing:
        have = ", ".join(f"{name} {_value(value)}" for name, value in log.found().items() if name != "lines")
        raise LogError(f"no line like {' and none like '.join(missing)}; found: {have or 'nothing'}")
    if found.smallest <= 0 or log.tokens.smallest <= 0:
        raise LogError(f"the log prints {found.smallest / GIB:.2f} GiB and {log.tokens.smallest:,.0f} tokens: no cache")
    return found.smallest, found.unit


def _value(value: object) -> str:
    if hasattr(value, "smallest"):
        return f"{value.smallest:,.0f}"
    return str(value)


def _by_request(log: EngineLog) -> bool:
    """vLLM's size of a model with windows is made of full-length requests; SGLang's is a pool of tokens."""
    return log.engine == "vllm"


def _predict(way: Stored, log: EngineLog, memory: float, unit: float) -> Prediction:
    length = log.request_tokens or log.max_model_len
    split = log.context_parallel or 1
    rate = way.bytes_per_token / split
    request = None
    if length and _by_request(log):
        request = -(-way.nbytes(length) // split) + way.window_bytes
        tokens = [length * (memory + step) / request for step in (0, -unit / 2, unit / 2)]
    else:
        tokens = [(memory + step) / float(rate) for step in (0, -unit / 2, unit / 2)]
    return Prediction(way, rate, request, *tokens, error=log.tokens.smallest / tokens[0] - 1)


def _expected(
    predictions: list[Prediction], log: EngineLog, storage: str | None, tolerance: float
) -> tuple[Prediction, str]:
    by_name = {prediction.stored.name: prediction for prediction in predictions}
    family = predictions[0].stored.system.family
    if storage is not None:
        if storage not in by_name:
            raise ValueError(f"storage is {storage!r}; this model's are {', '.join(sorted(by_name))}")
        return by_name[storage], "asked for"
    named = named_in(log, family)
    if named in by_name:
        return by_name[named], "named by the log"
    if abs(predictions[0].error) <= tolerance:
        return predictions[0], "it gives the printed size"
    return by_name[OWN[family]], "the model's own; the log names none and none gives the printed size"


def _notes(log: EngineLog, expected: Prediction, memory: float, split: int) -> Iterable[str]:
    printed, way = log.tokens.smallest, expected.stored
    if log.block_size:
        yield f"whole pages of {log.block_size:,} tokens: at most {log.block_size / printed:.2%} of the size"
    yield f"the printed memory is good to half a digit: {(expected.high - expected.low) / 2:,.0f} tokens either way"
    if log.tokens.largest > printed:
        yield f"ranks printed {printed:,.0f} to {log.tokens.largest:,.0f} tokens: the smallest counts"
    memories = log.allocated or log.available
    if memories.largest > memories.smallest:
        yield f"ranks printed {memory / GIB:.2f} to {memories.largest / GIB:.2f} GiB: the smallest counts"
    if way.replicated and split > 1:
        together = float(split * expected.bytes_per_token)
        yield f"a latent cache is whole on each of {split} GPUs: a token takes {together:,.0f} bytes of their memory"
    if way.window_bytes:
        yield f"windows: {way.window_bytes / 2**20:.2f} MiB a request, whatever its length"
    if log.chunk_tokens and way.window_row_bytes and _by_request(log):
        yield (
            f"a prefill chunk of {log.chunk_tokens:,} tokens in every window would hold "
            f"{log.chunk_tokens * way.window_row_bytes / GIB:.2f} GiB a request while it runs"
        )
    if log.speculative:
        yield f"{log.speculative} drafts: their layers' windows are counted, other state of theirs is not"


@dataclass(frozen=True)
class RequestCost:
    """bytes a request of N tokens costs: ``fixed + rate * N``."""

    rate: float
    fixed: float


def fit_requests(points: Iterable[tuple[int, float]]) -> RequestCost:
    """Least squares through (tokens of a request, bytes that it costs), from several starts of one engine.

    Raises:
        ValueError: fewer than two different lengths.
    """
    rows = [(float(length), float(size)) for length, size in points]
    if len({length for length, _ in rows}) < 2:
        raise ValueError(f"{len(rows)} points with one length; expected at least two different lengths")
    middle = sum(length for length, _ in rows) / len(rows)
    level = sum(size for _, size in rows) / len(rows)
    spread = sum((length - middle) ** 2 for length, _ in rows)
    rate = sum((length - middle) * (size - level) for length, size in rows) / spread
    return RequestCost(rate, level - rate * middle)
