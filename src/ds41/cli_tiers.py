"""Options of the commands that keep a conversation between its turns: prefix store, window pool, context."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ds41.cli_sizes import parse_bytes, parse_tokens

if TYPE_CHECKING:
    from ds41.cache import PageLayout
    from ds41.serving import PrefixStore, WindowPool

_LONGEST_CONTEXT = 2**16


def add_tier_options(command: argparse.ArgumentParser, stored: str) -> None:
    """Where global KV and windows are kept, and how prompts run. stored: what lies in the store's folder, in words."""
    command.add_argument(
        "--store", metavar="FOLDER", help=f"of {stored} (default: one for each page layout in "
        "$XDG_CACHE_HOME/ds41/prefix or ~/.cache/ds41/prefix)"
    )  # fmt: skip
    command.add_argument(
        "--store-budget", type=parse_bytes, default=2**31, metavar="BYTES", help="what the prefix store may take on "
        "disk; K, M, G and T stand for powers of 1024 (default: 2G)"
    )  # fmt: skip
    command.add_argument("--no-store", action="store_true", help="keep nothing on disk")
    command.add_argument(
        "--pool", default="host", metavar="host|none|URL", help="windows between turns: in this process, nowhere, or "
        "on a Redis or Valkey server such as redis://localhost:6379/0 (default: host)"
    )  # fmt: skip
    command.add_argument(
        "--windows", choices=("all", "prefill"), default="all", help="windows of which layers the pool keeps: all, or "
        "those that a prefill runs on every token (default: all)"
    )  # fmt: skip
    command.add_argument(
        "--short-hits", choices=("recompute", "replay"), default="recompute", help="what to do with a hit of at most "
        "one window whose windows are gone (default: recompute)"
    )  # fmt: skip
    command.add_argument(
        "--decoder", choices=("bounded", "full", "exact"), default="bounded", help="run the decoder layers on the last "
        "window of a prompt, on all of it, or on what the last token's logits follow from (default: bounded)"
    )  # fmt: skip
    command.add_argument(
        "--context", type=parse_tokens, metavar="N", help="tokens that a conversation may have; K and M stand for 2^10 "
        "and 2^20 (default: what the model has positions for, 64K at most)"
    )  # fmt: skip


def check_tier_options(options: argparse.Namespace) -> None:
    """Refuse what no model is needed to refuse (ValueError)."""
    if options.no_store and options.store is not None:
        raise ValueError("--store needs the store that --no-store leaves out")
    if options.pool not in ("host", "none") and "://" not in options.pool:
        raise ValueError(f"pool is {options.pool!r}; expected host, none, or a URL such as redis://localhost:6379/0")


def store_folder(options: argparse.Namespace, layout: PageLayout) -> Path:
    """The folder given, or in the user's cache one for each layout of pages, since a store holds pages of one.

    It is made where there is none, for nobody else to read.

    Raises:
        StoreError: it cannot be made, or nothing can be written there.
    """
    import hashlib
    import tempfile

    from ds41.serving import StoreError

    if options.store is not None:
        folder = Path(options.store)
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(cache) / "ds41" / "prefix" / hashlib.sha256(repr(layout).encode()).hexdigest()[:12]
    try:
        # What is said in a conversation is nobody else's business.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        other = "" if options.store is not None else "; give --store FOLDER or --no-store"
        raise StoreError(f"{folder} cannot be the store's folder: {error.strerror or error}{other}") from error
    return folder


def open_store(options: argparse.Namespace, folder: Path, layout: PageLayout, fingerprint: bytes) -> PrefixStore:
    """The prefix store in a folder; StoreError if it cannot be opened."""
    from ds41.serving import PrefixStore

    return PrefixStore(folder, layout, fingerprint, budget_bytes=options.store_budget)


@contextmanager
def opened_pool(options: argparse.Namespace) -> Iterator[WindowPool | None]:
    """The window pool that ``--pool`` names, for a block; WindowPoolError if its server cannot be reached."""
    from ds41.serving import HostWindowPool, RedisWindowPool

    if options.pool == "none":
        yield None
    elif options.pool == "host":
        yield HostWindowPool()
    else:
        with RedisWindowPool(options.pool) as pool:
            yield pool


def context_tokens(options: argparse.Namespace, positions: int) -> int:
    """What ``--context`` says, for a model of so many positions."""
    return min(options.context or _LONGEST_CONTEXT, positions)
