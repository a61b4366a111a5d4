"""``ds41 chat``: a conversation over the tiers, and for each turn what was hit, loaded, replayed, computed, stored."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from ds41.cli_draft import add_draft_option, load_drafting
from ds41.cli_model import (
    add_model_options,
    add_quantization_option,
    add_sampling_options,
    check_one_model,
    described,
    load_model,
    run_command,
)
from ds41.cli_tiers import add_tier_options, check_tier_options, context_tokens, open_store, opened_pool, store_folder


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
    add_tier_options(chat, "the prefix store and the sessions")
    add_sampling_options(chat, seed="for the same answers again (default: others each time)")
    add_quantization_option(chat)
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
    context = context_tokens(options, model.config.max_position_embeddings)
    fingerprint = model_fingerprint(model)
    drafting = load_drafting(options, options.folder, model)
    with ExitStack() as stack:
        folder = store = None
        if not options.no_store:
            layout = PageLayout.of(model.config)
            folder = store_folder(options, layout)
            store = stack.enter_context(open_store(options, folder, layout, fingerprint))
        pool = stack.enter_context(opened_pool(options))
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

    check_one_model(options, "chat")
    check_sampling(options.temperature, options.top_p, options.seed)
    if options.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {options.max_new_tokens}; expected 1 or more")
    if options.no_store and options.session is not None:
        raise ValueError("--session needs the store that --no-store leaves out")
    check_tier_options(options)
