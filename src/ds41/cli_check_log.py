"""``ds41 check-log``: the cache size that an engine printed at its start, against the ledger.

Source: ds41's own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ds41.config import ConfigError, ModelConfig

if TYPE_CHECKING:
    from ds41.engine_check import LogCheck, Prediction
    from ds41.engine_facts import RecordedLog
    from ds41.engine_logs import EngineLog

SCHEMA = "ds41.check-log/1"
_GIB = 2**30


def add_check_log_command(commands: argparse._SubParsersAction) -> None:
    check = commands.add_parser(
        "check-log",
        help="the KV cache size that vLLM or SGLang printed, against the ledger",
        description="Reads the start-up log of vLLM or SGLang and compares the cache size that it prints with what "
        "the ledger says of the printed memory.",
        epilog="Exit status: 0 the prediction holds, 1 it does not, 2 the log or an argument cannot be used. "
        "GiB are powers of 1024. Storages: published, fp4-fp8keys, mxfp8, mxfp8-fp8keys, v4, v4-fp8keys, fp8, "
        "fp8-plain, fp4, bf16; which of them a model has, an error tells.",
    )
    check.add_argument("log", metavar="FILE", nargs="?", help="the log, plain or gzip; - for standard input")
    check.add_argument(
        "--recorded",
        nargs="?",
        const="",
        metavar="KEY",
        help="instead of FILE: a log that somebody published, by its key; without KEY, list them",
    )
    model = check.add_mutually_exclusive_group()
    model.add_argument("--config", metavar="config.json", help="a configuration of DeepSeek-V4.1's family")
    model.add_argument(
        "--model",
        metavar="NAME",
        help="the model, where the log does not name it: qwen3-8b, ...; an unknown name lists all",
    )
    check.add_argument("--storage", metavar="NAME", help="the storage to predict with (default: what the log names)")
    check.add_argument(
        "--tensor-parallel", type=int, metavar="N", help="GPUs that share a copy of the model, where the log is silent"
    )
    check.add_argument(
        "--tolerance", type=float, default=2.0, metavar="PERCENT", help="how far off still holds (default: 2)"
    )
    check.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    check.set_defaults(run=_check_log)


def _check_log(options: argparse.Namespace) -> int:
    # Imported here: --help and errors of usage should not wait for the ledger.
    from ds41.engine_check import check_log, system_of
    from ds41.engine_facts import recorded_logs

    if options.recorded == "" and options.log is None:
        print(recorded_list(recorded_logs().values(), as_json=options.json))
        return 0
    try:
        log, recorded = _read(options)
        _check_numbers(options)
        if options.config is not None:
            model = ModelConfig.from_json(options.config)
        else:
            model = system_of(options.model or (recorded.model if recorded else log.model))
        check = check_log(
            log,
            model,
            storage=options.storage,
            tensor_parallel=options.tensor_parallel,
            tolerance=options.tolerance / 100,
        )
    except ConfigError:
        raise
    except ValueError as error:
        print(f"ds41: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(check_report(check, recorded.source if recorded else options.log), indent=2))
    else:
        print(check_text(check))
        if recorded:
            print(f"recorded    {recorded.wording}: {recorded.source}\n            {recorded.note}")
    return 0 if check.holds else 1


def _read(options: argparse.Namespace) -> tuple[EngineLog, RecordedLog | None]:
    from ds41.engine_facts import recorded_logs
    from ds41.engine_logs import read_log

    if (options.log is None) == (options.recorded is None):
        given = "neither is given" if options.log is None else f"both {options.log} and --recorded are"
        raise ValueError(f"expected either FILE or --recorded [KEY]; {given}")
    if options.recorded is None:
        return read_log(options.log), None
    recorded = recorded_logs().get(options.recorded)
    if recorded is None:
        raise ValueError(f"--recorded is {options.recorded!r}; expected one of {', '.join(recorded_logs())}")
    return recorded.read(), recorded


def _check_numbers(options: argparse.Namespace) -> None:
    if options.tensor_parallel is not None and options.tensor_parallel < 1:
        raise ValueError(f"--tensor-parallel is {options.tensor_parallel}; expected 1 or more")
    if not options.tolerance > 0:
        raise ValueError(f"--tolerance is {options.tolerance:g}; expected more than zero")


def recorded_list(logs: Iterable[RecordedLog], *, as_json: bool = False) -> str:
    """The recorded logs by key and title; with their sources and notes as a JSON object."""
    if as_json:
        names = ("key", "title", "model", "known", "wording", "source", "note")
        return json.dumps({"recorded": [{name: getattr(log, name) for name in names} for log in logs]}, indent=2)
    rows = [(log.key, log.title) for log in logs]
    width = max(len(key) for key, _ in rows)
    return "\n".join(f"{key:{width}}  {title}" for key, title in rows)


def check_report(check: LogCheck, origin: str) -> dict:
    """The check as one plain object, for ``--json``; its keys keep their meaning under :data:`SCHEMA`."""
    log = check.log
    return {
        "schema": SCHEMA,
        "file": origin,
        "engine": log.engine,
        "version": log.version,
        "model": log.model,
        "system": check.system.name,
        "gpus": check.gpus,
        "memory_bytes": check.memory_bytes,
        "printed_tokens": check.printed_tokens,
        "printed_bytes_per_token": check.printed_rate,
        "request_tokens": log.request_tokens or log.max_model_len,
        "request_bytes": check.request_bytes,
        "unexplained_bytes": check.unexplained_bytes,
        "expected": _prediction(check.expected),
        "why": check.why,
        "predictions": [_prediction(prediction) for prediction in check.predictions],
        "excluded": [prediction.stored.name for prediction in check.excluded],
        "tolerance": check.tolerance,
        "holds": check.holds,
        "explained": check.explained,
        "notes": list(check.notes),
    }


def _prediction(prediction: Prediction) -> dict:
    return {
        "storage": prediction.stored.name,
        "says": prediction.stored.says,
        "bytes_per_token": float(prediction.bytes_per_token),
        "window_bytes": prediction.stored.window_bytes,
        "request_bytes": prediction.request_bytes,
        "tokens": prediction.tokens,
        "error": prediction.error,
    }


def check_text(check: LogCheck) -> str:
    """The check in lines of text: what was printed, what was predicted, what explains it, what does not."""
    log, expected = check.log, check.expected
    title = " ".join(filter(None, (log.engine, log.version)))
    stored = expected.stored
    lines = [
        f"{title}: {check.system.name}" + (f" on {check.gpus} GPUs" if check.gpus > 1 else ""),
        f"printed     {check.memory_bytes / _GIB:.2f} GiB a GPU, {check.printed_tokens:,.0f} tokens: "
        f"{check.printed_rate:,.0f} bytes a token",
        f"predicted   {expected.tokens:,.0f} tokens: {float(expected.bytes_per_token):,.0f} bytes a token "
        f"({stored.says}; {check.why})",
        f"difference  {expected.error:+.1%}: " + ("holds" if check.holds else "does not hold")
        + f" within {check.tolerance:.1%}",
    ]  # fmt: skip
    lines += _explanation(check)
    lines += [f"note        {note}" for note in check.notes]
    return "\n".join(lines)


def _explanation(check: LogCheck) -> list[str]:
    best = check.best
    if check.explained:
        rate = float(best.bytes_per_token)
        lines = [f"explained   this engine stores {rate:,.0f} bytes a token on a GPU: {best.stored.says}"]
    else:
        lines = ["explained   no storage of the ledger gives the printed size"]
    if check.excluded:
        names = ", ".join(
            f"{prediction.stored.says} ({float(prediction.bytes_per_token):,.0f})" for prediction in check.excluded
        )
        lines.append(f"excluded    too large for the printed size: {names}")
    if check.request_bytes is not None and not check.holds and check.unexplained_bytes is not None:
        length = check.log.request_tokens or check.log.max_model_len
        ledger, beyond = check.expected.request_bytes / _GIB, check.unexplained_bytes / _GIB
        lines.append(
            f"a request   of {length:,} tokens is charged {check.request_bytes / _GIB:.3f} GiB: the ledger's "
            f"{ledger:.3f} and {beyond:+.3f} that it does not know (page padding, rows in flight, other state)"
        )
    return lines
