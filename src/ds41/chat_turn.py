"""One turn of ``ds41 chat``: an answer's text as it comes, its interruption, and the lines that say what it cost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from ds41.serving import Stream, TurnReport


class Answer:
    """Pieces of text from a stream of tokens. text: what has come so far. error: why it broke off, or None."""

    def __init__(self, stream: Stream, tokenizer: Tokenizer) -> None:
        self._stream, self._tokenizer = stream, tokenizer
        self.text = ""
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[str]:
        from ds41.generation import stream_text

        for piece in stream_text(self._ids(), self._tokenizer):
            self.text += piece
            yield piece

    def _ids(self) -> Iterator[int]:
        # Whatever goes wrong in one answer is told, and the conversation goes on.
        try:
            yield from self._stream
        except Exception as error:
            self.error = error


class Interrupts:
    """While this context lasts, the first interrupt calls ``stop`` and the second is a KeyboardInterrupt.

    Where interrupts are handled in another way already, or outside the main thread, that stays.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop, self._stopped, self._before = stop, False, None

    def __enter__(self) -> Interrupts:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, number: int, frame: object) -> None:
        if self._stopped:
            raise KeyboardInterrupt
        self._stopped = True
        self._stop()


def answer_lines(number: int, report: TurnReport, full: bool = False, drafts: bool = False) -> list[str]:
    """What turn ``number`` cost, in a few lines. full: the answer ended because the context did. drafts: say what
    became of them."""
    drafted = ""
    if drafts:
        drafted = (
            f" (drafted {report.drafted_tokens:,}, verified {report.verified_tokens:,}, accepted "
            f"{report.accepted_tokens:,})"
        )
    lines = [
        f"[turn {number}] {report.context_tokens:,} tokens, {report.new_tokens:,} of them new; {_hit(report)}",
        f"  replayed {report.replayed_tokens:,}, computed {report.computed_tokens:,}, generated "
        f"{report.generated_tokens:,}{drafted}; stored {report.stored_tokens:,} tokens in "
        f"{report.stored_bytes:,} bytes, kept {report.kept_window_bytes:,} bytes of windows",
        f"  {_times(report)}{_ending(report, full)}",
    ]
    if report.refused is not None:
        lines.append(f"  not stored: {report.refused}")
    return lines


def _hit(report: TurnReport) -> str:
    if not report.hit_tokens:
        return "nothing hit"
    tiers = f"live {report.live_tokens:,}, memory {report.resident_tokens:,}, store {report.store_tokens:,}"
    if report.store_bytes:
        tiers += f" ({report.store_bytes:,} bytes read)"
    windows = {"live": "live", "restored": f"from the pool ({report.window_bytes:,} bytes)"}
    return f"hit {report.hit_tokens:,}: {tiers}; windows {windows.get(report.windows, report.windows)}"


def _times(report: TurnReport) -> str:
    if report.first_token_s is None:
        return f"no token in {report.seconds:.2f} s"
    line = f"first token after {report.first_token_s:.2f} s"
    if report.generated_tokens > 1:
        rate = (report.generated_tokens - 1) / (report.seconds - report.first_token_s)
        line += f", then {rate:.1f} tokens/s, {report.seconds:.2f} s in all"
    return line


def _ending(report: TurnReport, full: bool) -> str:
    if full:
        return "; the context is full: /new begins another conversation"
    return {"length": "; as long as --max-new-tokens allows", "cancelled": "; interrupted"}.get(report.finish, "")
