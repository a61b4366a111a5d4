"""``ds41 serve``: vision, prefill and decode pools behind OpenAI's HTTP interface."""

from __future__ import annotations

import argparse
import socket
import sys
import warnings
from contextlib import ExitStack, suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from ds41.cli_draft import add_draft_option
from ds41.cli_model import add_model_options, add_quantization_option, check_one_model, run_command
from ds41.cli_pools import build_backend
from ds41.cli_sizes import parse_bytes, parse_tokens
from ds41.cli_tiers import add_tier_options, check_tier_options
from ds41.serving.endpoint.limits import Limits

if TYPE_CHECKING:
    from ds41.serving.endpoint.api_keys import ApiKeys
    from ds41.serving.endpoint.server import Stopping

_NUMBERS = {"bytes": parse_bytes, "tokens": parse_tokens, "seconds": float, "count": int}


def add_serve_command(commands: argparse._SubParsersAction) -> None:
    serve = commands.add_parser(
        "serve",
        usage="ds41 serve [options] (FOLDER | --preset NAME)",
        help="answer requests over HTTP, in the shape of OpenAI's API",
        description="Answers /v1/chat/completions, /v1/completions and /v1/models, and tells its state at /health and "
        "/metrics. The vision encoder, prefill and decode are pools of workers; prefixes of conversations are found "
        "again for the tenant whose key a request has. The model is a checkpoint folder in the official format, or a "
        "preset.",
        epilog="Pictures stand in the messages of /v1/chat/completions, as image_url parts with data: URLs; "
        "/v1/completions takes texts and token ids. A request without max_tokens gets up to 16 tokens from "
        "/v1/completions, as from OpenAI's, and up to --max-answer-tokens from /v1/chat/completions. Without "
        "--api-keys it listens only where nobody but this machine comes in. An interrupt, or the signal TERM, lets "
        "running answers end and takes no more; a second one ends them. Exit status: 0 after that; 2 if something "
        "could not be used.",
    )
    serve.add_argument("folder", nargs="?", metavar="FOLDER", help="checkpoint folder (none with --preset)")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", type=int, default=8000, metavar="N", help="0 takes a free one (default: 8000)")
    serve.add_argument(
        "--api-keys", metavar="FILE", help="keys that are let in: lines of TENANT SECRET (16 or more characters), "
        "# before a comment, or JSON. A tenant finds only prefixes of its own"
    )  # fmt: skip
    serve.add_argument("--model-name", metavar="NAME", help="what clients call the model (default: as it is given)")
    serve.add_argument(
        "--drain", type=float, default=30.0, metavar="S", help="seconds that running answers have at the end "
        "(default: 30)"
    )  # fmt: skip
    add_tier_options(serve, "the prefix store")
    serve.add_argument(
        "--rows", type=int, default=8, metavar="N", help="sequences that a prefill or decode worker computes at once "
        "(default: 8)"
    )  # fmt: skip
    for pool, what in (("prefill", "read prompts"), ("decode", "answer")):
        help_text = f"workers that {what} (default: 1)"
        serve.add_argument(f"--{pool}-workers", type=int, default=1, metavar="N", help=help_text)
    serve.add_argument(
        "--vision-workers", type=int, metavar="N", help="workers that see pictures; 0 refuses them (default: 1 where "
        "the checkpoint can see)"
    )  # fmt: skip
    serve.add_argument(
        "--waiting", type=int, default=256, metavar="N", help="requests that may wait for a worker (default: 256)"
    )
    serve.add_argument(
        "--ray", action="store_true", help="workers in processes of their own, on all machines of the Ray cluster that "
        "RAY_ADDRESS names, or on this one; every machine needs FOLDER at the same place"
    )  # fmt: skip
    add_draft_option(serve)
    add_quantization_option(serve)
    add_model_options(serve)
    limits = serve.add_argument_group("limits", "What a request may be; each answer that exceeds one says so.")
    for bound in fields(Limits):
        unit, meaning = bound.metadata["unit"], bound.metadata["meaning"]
        words = meaning if unit == "count" else f"{unit} {meaning}"
        limits.add_argument(
            f"--max-{bound.name.replace('_', '-')}", dest=f"limit_{bound.name}", type=_NUMBERS[unit],
            default=bound.default, metavar="N", help=f"{words} (default: {bound.default:,})"
        )  # fmt: skip
    serve.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # What needs no torch, which takes seconds to import, is refused before run_command imports it.
    try:
        _check(options)
        limits = Limits(**{bound.name: getattr(options, f"limit_{bound.name}") for bound in fields(Limits)})
        keys = read_keys(options.api_keys)
        sock = bind(options.host, options.port, guarded=keys is not None)
        if options.folder is not None and not Path(options.folder).is_dir():
            sock.close()
            raise ValueError(f"{options.folder} is not a folder; expected a checkpoint's")
    except ValueError as error:
        print(f"ds41: {error}", file=sys.stderr)
        return 2
    with sock:
        return run_command(lambda: _serve(options, limits, keys, sock))


def _serve(options: argparse.Namespace, limits: Limits, keys: ApiKeys | None, sock: socket.socket) -> int:
    # Imported here: --help and errors of usage should not wait for torch.
    import asyncio

    try:
        from ds41.serving.endpoint.server import serve
        from ds41.serving.endpoint.service import Service
    except ImportError as error:
        raise ValueError(f"serving needs {error.name}: pip install 'ds41[serve]'") from error
    import signal

    from ds41 import environment

    name = options.model_name or options.preset or Path(options.folder).resolve().name
    with ExitStack() as stack:
        found = environment.prepare(options.device)
        backend, tokenizer = stack.enter_context(build_backend(options, found))

        async def run() -> None:
            def ready(stopping: Stopping) -> None:
                print(f"ds41: {_url(sock)}/v1 answers for model {name}, {_guests(keys)}", flush=True)

            service = Service(backend, tokenizer, name, keys, limits)

            def draining(running: int) -> None:
                # Whoever interrupts may have closed the terminal; the answers end in order all the same.
                with suppress(OSError):
                    print(drain_line(running, options.drain), end="", file=sys.stderr, flush=True)

            await serve(service, sock, options.drain, ready, (signal.SIGINT, signal.SIGTERM), draining)

        asyncio.run(run())
    return 0


def drain_line(running: int, seconds: float) -> str:
    """What to say to whoever stops the server while answers run; nothing where it ends at once."""
    if not running or not seconds:
        return ""
    have, them = (
        ("1 answer is running and has", "it") if running == 1 else (f"{running} answers are running and have", "them")
    )
    return f"ds41: {have} {seconds:g} s; interrupt again to end {them} now\n"


def read_keys(path: str | None) -> ApiKeys | None:
    """The keys of a file, with its warnings as lines on stderr; None without a file.

    Raises:
        ValueError: it holds none.
    """
    from ds41.serving.endpoint.api_keys import ApiKeys

    if path is None:
        return None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        keys = ApiKeys.read(path)
    for warning in caught:
        print(f"ds41: {warning.message}", file=sys.stderr)
    return keys


def bind(host: str, port: int, guarded: bool) -> socket.socket:
    """A socket that is bound and does not listen yet. guarded: requests need a key.

    Raises:
        ValueError: the address is none, is taken, or can be reached from elsewhere while nothing guards it.
    """
    import ipaddress

    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ValueError(f"host {host!r} and port {port} are no address: {error}") from None
    family, kind, protocol, _, address = found[0]
    if not guarded and not ipaddress.ip_address(address[0].partition("%")[0]).is_loopback:
        raise ValueError(
            f"host {host!r} can be reached from other machines; give --api-keys FILE, or a host such as 127.0.0.1"
        )
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise ValueError(f"nothing can listen on {host}, port {port}: {error.strerror or error}") from None
    return sock


def _check(options: argparse.Namespace) -> None:
    """Refuse what no model is needed to refuse."""
    check_one_model(options, "serve")
    for name, least in (("prefill_workers", 1), ("decode_workers", 1), ("rows", 1), ("waiting", 0)):
        if getattr(options, name) < least:
            shown = name.replace("_", "-")
            raise ValueError(f"--{shown} is {getattr(options, name)}; expected {least} or more")
    if (options.vision_workers or 0) < 0:
        raise ValueError(f"--vision-workers is {options.vision_workers}; expected 0 or more")
    if not 0 <= options.port < 2**16:
        raise ValueError(f"--port is {options.port}; expected 0 to 65535")
    if not 0 <= options.drain < float("inf"):
        raise ValueError(f"--drain is {options.drain}; expected 0 or more seconds")
    check_tier_options(options)


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _guests(keys: ApiKeys | None) -> str:
    return "to everyone on this machine" if keys is None else f"to {len(keys)} keys"
