"""The ledger as one plain object: what ``ds41 ledger --json`` prints and the tables are drawn from.

::

    schema            "ds41.ledger/1"; a key may be added under this name, none changes its meaning
    config            where the configuration came from
    tokens            context length that "sequence" and "capacity" are for
    bytes_per_token   main, index, total: global KV bytes; entry: bytes of one entry; entries: entries per token
    sources           one object for each layer that owns keys: layer, ratio, main, index, total (bytes per token)
    sequence          global, window, total (bytes); rows: name, bytes, formula, note
    capacity          pool_bytes; contexts: by global KV alone; live_contexts: with the windows too
    comparison        null without ``--compare``, else
      systems           key, name, family, precision, status, bytes_per_token, factor, formula, note
      counterfactuals   name, bytes, formula, source, note (bytes per token), as engines
      engines           what engines store today
      candidates        the source article's: letter, name, bytes, formula, percent_off, assumes, misses; empty
                        for a configuration that they do not describe

All bytes are exact: integers, or floats where a fraction of a power of two remains.
"""

from __future__ import annotations

from ds41 import ledger
from ds41.candidates import candidates
from ds41.config import ModelConfig
from ds41.counterfactuals import counterfactuals, engines
from ds41.economics import ARTICLE_POOLS_GIB, GIB, capacity
from ds41.records import Row, exact, total
from ds41.systems import System, from_config, systems

SCHEMA = "ds41.ledger/1"


def ledger_report(config: ModelConfig, origin: str, tokens: int, *, draft: bool = False, compare: bool = False) -> dict:
    """Build the object described above.

    Args:
        origin: the name of the configuration's source, for the reader.
        draft: count the draft layers' windows.
        compare: add the other systems, the counterfactuals, the engines and the article's candidates.
    """
    tokens = ledger.check_tokens(tokens)
    rows = ledger.sequence_rows(config, tokens, draft)
    main, index = ledger.by_component(config)
    return {
        "schema": SCHEMA,
        "config": origin,
        "tokens": tokens,
        "bytes_per_token": {
            "main": exact(main.bytes),
            "index": exact(index.bytes),
            "total": exact(main.bytes + index.bytes),
            "entry": ledger.entry_bytes(config),
            "entries": exact(ledger.entries_per_token(config)),
        },
        "sources": _sources(config),
        "sequence": {
            "global": ledger.global_bytes(config, tokens),
            "window": ledger.window_bytes(config, draft),
            "total": exact(sum(row.bytes for row in rows)),
            "rows": [_row(row, "name", "bytes", "formula", "note") for row in rows],
        },
        "capacity": _capacity(config, tokens),
        "comparison": _comparison(config) if compare else None,
    }


def _sources(config: ModelConfig) -> list[dict]:
    sources = []
    for layer in config.layers:
        if layer.owns_kv:
            kept = [plane for plane in ledger.planes(config) if plane.name == f"layer {layer.index}"]
            parts = {plane.component: exact(plane.bytes_per_token) for plane in kept}
            sources.append({"layer": layer.index, "ratio": layer.ratio, **parts, "total": exact(total(tuple(kept)))})
    return sources


def _capacity(config: ModelConfig, tokens: int) -> list[dict]:
    kept = from_config(config)
    if kept.nbytes(tokens) == 0:
        return []
    found = [capacity(kept, pool * GIB, tokens) for pool in ARTICLE_POOLS_GIB]
    return [
        {
            "pool_bytes": entry.pool_bytes,
            "contexts": float(entry.contexts),
            "live_contexts": float(entry.live_contexts),
        }
        for entry in found
    ]


def _comparison(config: ModelConfig) -> dict:
    size = ledger.bytes_per_token(config)
    try:
        tried = candidates(config)
    except ValueError:
        tried = ()
    return {
        "systems": [_system(system, size) for system in systems().values()],
        "counterfactuals": [_row(row) for row in counterfactuals(config)],
        "engines": [_row(row) for row in engines(config)],
        "candidates": [
            {
                "letter": candidate.letter,
                **_row(candidate.row, "name", "bytes", "formula"),
                "percent_off": candidate.percent_off,
                "assumes": candidate.assumes,
                "misses": candidate.misses,
            }
            for candidate in tried
        ],
    }


def _system(system: System, size) -> dict:
    return {
        "key": system.key,
        "name": system.name,
        "family": system.family,
        "precision": system.precision,
        "status": system.status,
        "bytes_per_token": exact(system.bytes_per_token),
        "factor": float(system.bytes_per_token / size) if size else None,
        "formula": system.formula,
        "note": system.note,
    }


def _row(row: Row, *names: str) -> dict:
    every = {
        "name": row.name,
        "bytes": exact(row.bytes),
        "formula": row.formula,
        "source": row.source,
        "note": row.note,
    }
    return {name: every[name] for name in names} if names else every
