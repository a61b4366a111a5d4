"""Exercises of chapter 13, the serving stack."""

from __future__ import annotations

from ds41 import ledger
from ds41.cache import PageLayout
from ds41.config import ModelConfig
from ds41.exercises import close, exercise, number
from ds41.language import say

_PAGE = 64
_PROMPT, _KNOWN = 50_000, 32_768
_TURNS, _LIFETIME_S = 200, 600
_TRIES = ((2_703_360, 0.004, 0.054, 2.5), (3_214_336, 0.01, 0.148, 4.0), (10**9, 1.0, 3600.0, 1.0))


@exercise(
    "13.1",
    level="medium",
    minutes=8,
    hints=(
        'The section "The pools" says what a handover holds and what is not sent. ledger.window_bytes gives the '
        "windows of one sequence.",
        "Count the pages of the whole prompt, rounded up, and the pages that the decode worker has. What is missing "
        "travels at full size; the windows come once on top of it.",
    ),
)
def bytes_handed_over(answer: object) -> str | None:
    """Pages that are missing, whole, and one set of windows."""
    config = ModelConfig.flash()
    layout, windows = PageLayout.of(config, _PAGE), ledger.window_bytes(config)
    missing = layout.pages_for(_PROMPT) - _KNOWN // _PAGE
    right = missing * layout.nbytes + windows
    if close(answer, right, 0):
        return None
    if close(answer, missing * layout.nbytes, 0):
        return "Those are the pages. The private rows travel, too."
    if close(answer, layout.pages_for(_PROMPT) * layout.nbytes + windows, 0):
        return "That sends pages which the decode worker has."
    if close(answer, (_PROMPT - _KNOWN) * 890 + windows, 0):
        return "The last page is sent whole, though it is not full."
    if close(answer, (missing - 1) * layout.nbytes + windows, 0):
        return "The last page is not full, and it is sent all the same."
    if close(answer, missing * layout.nbytes + windows / config.num_hidden_layers, 0):
        return "That is one layer's window. Every layer has one."
    if close(answer, right / 10**6) or close(answer, right / 2**20):
        return "The question asks for bytes, all of them."
    return "Whole pages of 64 tokens and 890 bytes a token, and 528 bytes for each row of 40 windows of 128."


@exercise(
    "13.2",
    level="easy",
    minutes=4,
    hints=(
        "The windows of one session have the same size whatever its length. ledger.window_bytes gives it; exercise "
        "13.1 needs it, too.",
        "This is Little's law: find how many sets of windows are held at once, then how large they are together.",
    ),
)
def gigabytes_of_windows(answer: object) -> str | None:
    """Rate times lifetime times size."""
    config = ModelConfig.flash()
    size = ledger.window_bytes(config)
    right = _TURNS * _LIFETIME_S * size
    if close(answer, right / 1e9, 1e-3):
        return None
    if close(answer, right, 1e-3):
        return "Right in bytes; the question asks for GB."
    if close(answer, right / 1e6, 1e-3) or close(answer, right / 1e12, 1e-3):
        return "The digits are right. A GB is 10^9 bytes."
    if close(answer, right / 2**30, 1e-3):
        return "Those are GiB. A GB is 10^9 bytes."
    if close(answer, _TURNS * _LIFETIME_S * 890 / 1e9, 1e-3):
        return "890 bytes are one token's global KV. Windows have a size of their own."
    if close(answer, right / config.num_hidden_layers / 1e9, 1e-3):
        return "That is the window of one layer. A turn leaves those of all layers."
    if close(answer, right / 60 / 1e9, 1e-3):
        return "Ten minutes are 600 seconds."
    return "What is there at once is what comes each second, times the seconds that it stays."


@exercise(
    "13.3",
    level="medium",
    minutes=8,
    hints=(
        'The figure of the section "Where bounded replay stops paying" shows both prices over the pause. One of them '
        "rises with it, the other is level.",
        "Write down what keeping costs after some seconds, and what the replay costs, in the same money. Set them "
        "equal and solve for the seconds.",
    ),
)
def pause_at_which_a_replay_is_cheaper(answer: object) -> str | None:
    """A function (window_bytes, dram_gb_hour, gpu_seconds, gpu_hour) -> seconds."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for window_bytes, dram, seconds, hour in _TRIES:
        right = seconds * hour / (window_bytes / 1e9 * dram)
        try:
            got = answer(window_bytes, dram, seconds, hour)
        except Exception as error:
            return say(
                "It stops with {error}. It is called with four numbers: bytes, a price, seconds, a price.",
                error=repr(error),
            )
        if close(got, right, 1e-6):
            continue
        return _about_pause(got, right, bytes=window_bytes, dram=dram, seconds=seconds, hour=hour)
    return None


def _about_pause(got: object, right: float, **given: float) -> str:
    if got is None:
        return "It returns None. Does it end with a return?"
    if close(got, right / 3600, 1e-6):
        return say(
            "For {bytes:,} bytes at {dram} and {seconds} GPU-seconds at {hour} an hour that is in hours; the pause is "
            "asked in seconds.",
            **given,
        )
    if close(got, right * 3600, 1e-6):
        return say(
            "For {bytes:,} bytes at {dram} and {seconds} GPU-seconds at {hour} an hour it is 3,600 times too long: "
            "both prices are by the hour.",
            **given,
        )
    if close(got, right * 2**30 / 1e9, 1e-6):
        return say(
            "For {bytes:,} bytes at {dram} and {seconds} GPU-seconds at {hour} an hour that takes a GB for 2^30 bytes.",
            **given,
        )
    if close(got, right / 1e9, 1e-6):
        return "The price of DRAM is for a gigabyte; the window is given in bytes."
    if close(got, 1 / right, 1e-6):
        return "It divides by the price of the replay. Turn it round."
    return say(
        "For {bytes:,} bytes at {dram} and {seconds} GPU-seconds at {hour} an hour both cost the same after "
        "{right:,.4g} s.",
        right=right,
        **given,
    )


@exercise(
    "13.4",
    level="easy",
    minutes=3,
    hints=(
        'The text behind the course of a request, in the section "The pools", says what a decode worker starts from '
        "when it takes over.",
        "Sort the three tokens: which of them does the handover carry, and which does only the reader have?",
    ),
)
def tokens_that_were_given(answer: object) -> str | None:
    """The tokens after the first."""
    if isinstance(answer, (str, bytes)):
        return "Give a list of tokens, not a text."
    try:
        given = [number(one) for one in answer]  # type: ignore[attr-defined]
    except (TypeError, RuntimeError):
        given = [None]
    if None in given:
        return "Give a list of tokens."
    if given == [9, 4]:
        return None
    if given == [7, 9, 4]:
        return "The 7 is in the handover already: its last id is the first token of the answer."
    if given == [7]:
        return "That is the one token of the three that the handover carries."
    if given == [4, 9]:
        return "In the order in which the reader has seen them."
    if not given:
        return "Then it would draw them again and send them a second time."
    return "Those that the reader has seen, without the one that prefill drew."
