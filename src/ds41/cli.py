"""``ds41``: the command line. ``ds41 ledger`` is here; each other command has a module ``cli_*``.

Exit status: 0; 1 if the reader of its output went away; 2 for a configuration, an argument or a device that
cannot be used, with one line on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence

from ds41 import __version__
from ds41.cli_chat import add_chat_command
from ds41.cli_check_log import add_check_log_command
from ds41.cli_doctor import add_doctor_command
from ds41.cli_evaluate import add_evaluate_command
from ds41.cli_generate import add_generate_command
from ds41.cli_probe import add_probe_command
from ds41.cli_serve import add_serve_command
from ds41.cli_sizes import parse_length
from ds41.cli_train import add_train_command
from ds41.config import ConfigError, ModelConfig


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    if hasattr(sys.stdout, "reconfigure"):
        # A terminal without the multiplication sign gets a question mark, not a traceback.
        sys.stdout.reconfigure(errors="replace")
    try:
        status = options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except ConfigError as error:
        print(f"ds41: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        # The reader (head, less) has seen enough, or the disk is full. What is still buffered must not fail at exit.
        if not isinstance(error, BrokenPipeError):
            print(f"ds41: cannot write the output: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _CommandParser(argparse.ArgumentParser):
    """Takes the options of a command before, between and after its other arguments."""

    _intermixed = False

    def parse_known_args(self, args=None, namespace=None):
        # argparse cannot intermix once "--" has ended the options.
        if self._intermixed or "--" in (args or ()):
            return super().parse_known_args(args, namespace)
        self._intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ds41",
        description="The components behind 890 bytes of context per token.",
    )
    parser.add_argument("--version", action="version", version=f"ds41 {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command", parser_class=_CommandParser)

    ledger = commands.add_parser(
        "ledger",
        help="bytes of context that a model keeps, from its configuration",
        description="Bytes of context that a model of this family keeps: per token, by layer and component, and "
        "for one sequence. Computed from a published config.json, nested or flat.",
        epilog="All sizes are bytes. KiB, MiB, GiB are powers of 1024; MB, GB are powers of 1000. --json prints "
        "the object that the documentation of ds41.report describes.",
    )
    ledger.add_argument(
        "config", nargs="?", metavar="config.json", help="configuration file (default: DeepSeek-V4.1-Flash as shipped)"
    )
    ledger.add_argument(
        "--tokens",
        type=parse_length,
        default=2**20,
        metavar="N",
        help="context length in tokens; K and M stand for 2^10 and 2^20 (default: 1M)",
    )
    ledger.add_argument("--draft", action="store_true", help="count the windows of the draft layers as well")
    ledger.add_argument(
        "--compare",
        action="store_true",
        help="add other systems, counterfactuals, what engines store, and the article's candidates",
    )
    ledger.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    ledger.set_defaults(run=_ledger)

    add_doctor_command(commands)
    add_generate_command(commands)
    add_chat_command(commands)
    add_train_command(commands)
    add_evaluate_command(commands)
    add_probe_command(commands)
    add_serve_command(commands)
    add_check_log_command(commands)
    return parser


def _ledger(options: argparse.Namespace) -> int:
    # Imported here: --help and errors of usage should not wait for torch.
    from ds41.report import ledger_report

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = ModelConfig.flash() if options.config is None else ModelConfig.from_json(options.config)
    for warning in caught:
        print(f"ds41: {warning.message}", file=sys.stderr)
    origin = options.config or "DeepSeek-V4.1-Flash, as shipped"
    report = ledger_report(config, origin, options.tokens, draft=options.draft, compare=options.compare)
    if options.json:
        print(json.dumps(report, indent=2))
        return 0
    from ds41.cli_tables import print_ledger

    print_ledger(report)
    return 0
