"""``ds41 chat``: a conversation over the tiers, and for each turn what was hit, loaded, replayed, computed, stored."""

from __future__ import annotations

import argparse
import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ds41.cli_draft import add_draft_option, load_drafting
from ds41.cli_model import add_model_options, add_sampling_options, described, load_model, run_command

if TYPE_CHECKING:
    from ds41.cache import PageLayout
    from ds41.serving import PrefixStore, WindowPool

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def add_chat_command(commands: argparse._SubParsersAction) -> None:
    chat = commands.add_parser(
        "chat",
        usage="ds41 chat [options] (FOLDER | --preset NAME)",
        help="a conversation with a model, and what each turn costs",
        description="A conversation of many turns, one line of input each. Its global KV persists in a prefix store, "
        "its windows live in a pool for minutes, and where they are gone the last window of tokens is replayed. The "
        "model is a checkpoint folder in the official format, or a preset: nano as it was trained, mini with random "
        "weights.",
        epilog="Answers go to stdout, everything else to stderr. In the conversation, /help lists the commands. Exit "
        "status: 0 at the end of the input; 2 if something could not be used, or if a line of piped input was not "
        "answered; 130 after an interrupt.",
    )
    chat.add_argument("folder", nargs="?", metavar="FOLDER", help="checkpoint folder (none with --preset)")
    chat.add_argument("--system", metavar="TEXT", help="instructions that a new conversation begins with")
    chat.add_argument(
        "--session", metavar="NAME", help="go on with the conversation of that name, or begin it (default: a new one)"
    )
    chat.add_argument("--tenant", default="default", metavar="NAME", help="whose pages are found (default: default)")
    chat.add_argument(
        "--store", metavar="FOLDER", help="of the prefix store and the sessions (default: one for each page layout "
        "in $XDG_CACHE_HOME/ds41/prefix or ~/.cache/ds41/prefix)"
    )  # fmt: skip
    chat.add_argument(
        "--store-budget", type=_bytes, default=2**31, metavar="BYTES", help="what the prefix store may take on disk; "
        "K, M, G and T stand for powers of 1024 (default: 2G)"
    )  # fmt: skip
    chat.add_argument("--no-store", action="store_true", help="keep nothing on disk")
    chat.add_argument(
        "--pool", default="host", metavar="host|none|URL", help="windows between turns: in this process, nowhere, or "
        "on a Redis or Valkey server such as redis://localhost:6379/0 (default: host)"
    )  # fmt: skip
    chat.add_argument(
        "--windows", choices=("all", "prefill"), default="all", help="windows of which layers the pool keeps: all, or "
        "those that a prefill runs on every token (default: all)"
    )  # fmt: skip
    chat.add_argument(
        "--short-hits", choices=("recompute", "replay"), default="recompute", help="what to do with a hit of at most "
        "one window whose windows are gone (default: recompute)"
    )  # fmt: skip
    chat.add_argument(
        "--decoder", choices=("bounded", "full", "exact"), default="bounded", help="run the decoder layers on the last "
        "window of a prompt, on all of it, or on what the last token's logits follow from (default: bounded)"
    )  # fmt: skip
    chat.add_argument(
        "--context", type=_tokens, metavar="N", help="tokens that a conversation may have; K and M stand for 2^10 and "
        "2^20 (default: what the model has positions for, 64K at most)"
    )  # fmt: skip
    add_sampling_options(chat, seed="for the same answers again (default: others each time)")
    chat.add_argument(
        "--quantization",
        choices=("cache", "full"),
        default="cache",
        help="what is rounded: the caches, or also the inputs of FP8 and FP4 matrices (default: cache)",
    )
    add_draft_option(chat)
    chat.add_argument("--json", action="store_true", help="print one JSON object for each turn instead of text")
    add_model_options(chat)
    chat.set_defaults(run=lambda options: run_command(lambda: _chat(options)))


def _chat(options: argparse.Namespace) -> int:
    # Imported here: --help and errors of usage should not wait for torch.
    from ds41 import environment
    from ds41.cache import PageLayout
    from ds41.chat import Chat, tell
    from ds41.chat_format import Turns
    from ds41.conversation import Owner, Saving
    from ds41.serving import Engine, model_fingerprint

    _check(options)
    found = environment.prepare(options.device)
    model, tokenizer = load_model(options, options.folder, found)
    context = min(options.context or 2**16, model.config.max_position_embeddings)
    fingerprint = model_fingerprint(model)
    drafting = load_drafting(options, options.folder, model)
    with ExitStack() as stack:
        folder = store = None
        if not options.no_store:
            layout = PageLayout.of(model.config)
            folder = _store_folder(options, layout)
            store = stack.enter_context(_open_store(options, folder, layout, fingerprint))
        pool = _open_pool(options)
        if hasattr(pool, "close"):
            stack.callback(pool.close)
        engine = Engine(
            model,
            store,
            pool,
            max_tokens=context,
            rows=1,
            decoder=options.decoder,
            short_hits=options.short_hits,
            windows=options.windows,
            fingerprint=fingerprint,
            drafting=drafting,
        )
        if options.verbose:
            tell(f"{found.report()}\n{described(model)}; room for {context:,} tokens")
        owner = Owner.of(fingerprint, tokenizer, options.tenant)
        saving = None if folder is None else Saving(folder / "sessions", owner, model.config.vocab_size)
        tiers = {"engine": engine, "store": store, "windows": pool}
        counters = {name: tier.counters for name, tier in tiers.items() if tier is not None}
        chat = Chat(engine, tokenizer, Turns(tokenizer, model.config), saving, options, counters)
        stack.callback(chat.close)
        status = chat.run()
        # Not after an interrupt within a step: what the row holds then is half a step.
        engine.close()
        return status


def _check(options: argparse.Namespace) -> None:
    """Refuse what no model is needed to refuse."""
    from ds41.sampling import check_sampling

    if (options.folder is None) == (options.preset is None):
        given = "both" if options.preset else "neither"
        raise ValueError(f"chat takes FOLDER or --preset NAME; it was given {given}")
    check_sampling(options.temperature, options.top_p, options.seed)
    if options.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {options.max_new_tokens}; expected 1 or more")
    if options.no_store and (options.session is not None or options.store is not None):
        given = "session" if options.session is not None else "store"
        raise ValueError(f"--{given} needs the store that --no-store leaves out")
    if options.pool not in ("host", "none") and "://" not in options.pool:
        raise ValueError(f"pool is {options.pool!r}; expected host, none, or a URL such as redis://localhost:6379/0")


def _store_folder(options: argparse.Namespace, layout: PageLayout) -> Path:
    """The folder given, or in the user's cache one for each layout of pages, since a store holds pages of one."""
    import hashlib

    if options.store is not None:
        return Path(options.store)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "ds41" / "prefix" / hashlib.sha256(repr(layout).encode()).hexdigest()[:12]


def _open_store(options: argparse.Namespace, folder: Path, layout: PageLayout, fingerprint: bytes) -> PrefixStore:
    from ds41.serving import PrefixStore, StoreError

    try:
        # What is said in a conversation is nobody else's business.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be the store's folder: {error.strerror or error}") from error
    return PrefixStore(folder, layout, fingerprint, budget_bytes=options.store_budget)


def _open_pool(options: argparse.Namespace) -> WindowPool | None:
    from ds41.serving import HostWindowPool, RedisWindowPool

    if options.pool == "none":
        return None
    return HostWindowPool() if options.pool == "host" else RedisWindowPool(options.pool)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)(i?B)?", text.strip(), re.ASCII | re.IGNORECASE)
    if match is None or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; expected for example 500M or 2G")
    return int(match[1]) * _UNITS.get(match[2].upper(), 1)


def _tokens(text: str) -> int:
    match = re.fullmatch(r"(\d{1,12})([KM]?)", text.strip(), re.ASCII | re.IGNORECASE)
    if match is None or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens; expected for example 4096 or 64K")
    return int(match[1]) * _UNITS.get(match[2].upper(), 1)
