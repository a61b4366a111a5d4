"""The conversation of ``ds41 chat``: lines of input, what is done with each, and what is written.

Answers, or JSON objects, go to stdout; everything else goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ds41.chat_turn import Answer, Interrupts, answer_lines
from ds41.conversation import ConversationError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from ds41.chat_format import Turns
    from ds41.conversation import SavedConversation, Saving
    from ds41.serving import Counters, Engine, Session

_FAILED = 2
_HELP = """\
/stats  what engine, prefix store and window pool have counted
/new    begin a new conversation
/help   this list
/quit   leave; the end of the input does the same
Every other line is a message; one that begins with / is written with // in front. Ctrl-C ends an answer."""


class Chat:
    """The conversation that is going on, and what to do with each line of input.

    Args:
        options: of the command: session, system, tenant, max_new_tokens, temperature, top_p, seed, draft and json.
        counters: by tier, for ``/stats``.

    Raises:
        ConversationError: the saved conversation cannot be used.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        turns: Turns,
        saving: Saving | None,
        options: argparse.Namespace,
        counters: Mapping[str, Counters],
    ) -> None:
        self._engine, self._tokenizer, self._turns = engine, tokenizer, turns
        self._saving, self._options, self._counters = saving, options, counters
        self._saved: SavedConversation | None = None
        self._session: Session | None = None
        self._failed = False
        self._count = 0
        self._begin(options.session)

    def run(self) -> int:
        """Take lines until the input ends; the exit status."""
        for line in _lines(sys.stdin):
            if isinstance(line, ValueError):
                self._refuse(None, str(line))
            elif line.startswith("//"):
                self._say(line[1:])
            elif line.startswith("/"):
                if line == "/quit":
                    break
                self._command(line)
            elif line.strip():
                self._say(line)
        return _FAILED if self._failed and not _is_terminal(sys.stdin) else 0

    def close(self) -> None:
        """Let another process have the saved conversation."""
        if self._saved is not None:
            self._saved.close()

    def _begin(self, name: str | None) -> None:
        """Open a conversation: the saved one of that name, or a new one."""
        self.close()
        if self._session is not None:
            self._session.close()
        ids, self._count = [], 0
        if self._saving is not None:
            named = name is not None
            name = name or f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
            self._saved = self._saving.open(name)
            ids, self._count = self._saved.ids, self._saved.turns
            if ids and self._options.system is not None:
                self.close()
                raise ConversationError(f"session {name} has begun; --system is for a new conversation")
            if ids:
                tell(f"session {name}, {self._count} turns and {len(ids):,} tokens so far")
            else:
                tell(f"new session {name}" + ("" if named else f"; --session {name} goes on with it"))
        self._session = self._engine.open(self._options.tenant, ids)

    def _say(self, message: str) -> None:
        options, session = self._options, self._session
        before = len(session.ids)
        first = not before
        ids = self._turns.prompt(message, options.system if first else None, first)
        room = self._engine.max_tokens - before - len(ids)
        if room < 1:
            self._refuse(
                message,
                f"the message has {len(ids):,} tokens, and of the context of {self._engine.max_tokens:,} the "
                f"conversation has taken {before:,}; say something shorter, begin anew with /new, or come "
                "back with a larger --context",
            )
            return
        # Another for every turn, the same in a process that goes on with the conversation.
        seed = None if options.seed is None else (options.seed + before) % 2**64
        try:
            stream = session.say(ids, min(options.max_new_tokens, room), options.temperature, options.top_p, seed=seed)
        except (ValueError, TypeError, RuntimeError) as error:
            self._refuse(message, str(error))
            return
        answer = Answer(stream, self._tokenizer)
        with Interrupts(stream.cancel_soon):
            for piece in answer:
                if not options.json:
                    print(piece, end="", flush=True)
            answered = answer.error is None and len(session.ids) > before
            if answered:
                self._count += 1
                self._save()
        if not options.json:
            print(flush=True)
        if answer.error is not None:
            why = f"{answer.error}; the conversation is as it was before, so the message can be repeated"
            self._refuse(message, why)
        elif not answered:
            self._refuse(message, "interrupted before the answer began; the message is not part of the conversation")
        elif options.json:
            about = {"session": None if self._saved is None else self._saved.name, "turn": self._count}
            self._print({**about, "message": message, "answer": answer.text, "report": stream.report.as_dict()})
        else:
            full = stream.report.finish == "length" and room <= options.max_new_tokens
            for line in answer_lines(self._count, stream.report, full, options.draft is not None):
                print(line, file=sys.stderr, flush=True)

    def _save(self) -> None:
        if self._saved is not None:
            try:
                self._saved.save(self._session.ids, self._count)
            except ConversationError as error:
                tell(f"{error}; the conversation goes on unsaved")

    def _command(self, line: str) -> None:
        if line == "/stats":
            self._stats()
        elif line == "/new":
            self._begin(None)
        elif line == "/help":
            print(_HELP, file=sys.stderr, flush=True)
        else:
            self._refuse(None, f"{line.split()[0]} is no command; /help lists them")

    def _stats(self) -> None:
        if self._options.json:
            self._print({"stats": {name: one.snapshot() for name, one in self._counters.items()}})
        else:
            print(self._engine.metrics(), file=sys.stderr, flush=True)

    def _refuse(self, message: str | None, why: str) -> None:
        """A line that got no answer; the conversation goes on."""
        self._failed = True
        tell(why)
        if self._options.json:
            self._print({"message": message, "error": why})

    @staticmethod
    def _print(value: dict) -> None:
        print(json.dumps(value), flush=True)


def _lines(source) -> Iterator[str | ValueError]:
    """Lines without their ends; a ValueError in place of one that is no UTF-8."""
    if source is None:
        return
    if _is_terminal(source):
        yield from _typed_lines()
        return
    number = 0
    while line := source.buffer.readline():
        number += 1
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            yield ValueError(f"line {number} of the input is not UTF-8: byte {error.start}")


def _typed_lines() -> Iterator[str]:
    with suppress(ImportError):
        # Gives the prompt a memory and keys to move in a line.
        import readline  # noqa: F401
    prompt_is_output = not sys.stdout.isatty()
    while True:
        if prompt_is_output:
            print("> ", end="", file=sys.stderr, flush=True)
        try:
            yield input("" if prompt_is_output else "> ").strip()
        except EOFError:
            print(file=sys.stderr)
            return


def _is_terminal(source) -> bool:
    return source is not None and source.isatty()


def tell(text: str) -> None:
    """Lines of the command's own, on stderr, after what has been answered so far."""
    sys.stdout.flush()
    for line in text.splitlines():
        print(f"ds41: {line}", file=sys.stderr, flush=True)
