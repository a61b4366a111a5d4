"""Exercises of chapter 13, the serving stack."""

from __future__ import annotations

from ds41 import ledger
from ds41.cache import PageLayout
from ds41.config import ModelConfig
from ds41.exercises import close, exercise

_PAGE = 64
_PROMPT, _KNOWN = 50_000, 32_768
_TURNS, _LIFETIME_S = 200, 600
_TRIES = ((2_703_360, 0.004, 0.054, 2.5), (3_214_336, 0.01, 0.148, 4.0), (10**9, 1.0, 3600.0, 1.0))


@exercise("13.1")
def bytes_handed_over(answer: object) -> str | None:
    """Pages that are missing, whole, and one set of windows."""
    config = ModelConfig.flash()
    layout, windows = PageLayout.of(config, _PAGE), ledger.window_bytes(config)
    missing = layout.pages_for(_PROMPT) - _KNOWN // _PAGE
    if close(answer, missing * layout.nbytes + windows, 0):
        return None
    if close(answer, missing * layout.nbytes, 0):
        return "Those are the pages. The private rows travel, too."
    if close(answer, layout.pages_for(_PROMPT) * layout.nbytes + windows, 0):
        return "That sends pages which the decode worker has."
    if close(answer, (_PROMPT - _KNOWN) * 890 + windows, 0):
        return "The last page is sent whole, though it is not full."
    return "Whole pages of 64 tokens and 890 bytes a token, and 528 bytes for each row of 40 windows of 128."


@exercise("13.2")
def gigabytes_of_windows(answer: object) -> str | None:
    """Rate times lifetime times size."""
    size = ledger.window_bytes(ModelConfig.flash())
    right = _TURNS * _LIFETIME_S * size
    if close(answer, right / 1e9, 1e-3):
        return None
    if close(answer, right, 1e-3):
        return "Right in bytes; the question asks for GB."
    if close(answer, right / 2**30, 1e-3):
        return "Those are GiB. A GB is 10^9 bytes."
    if close(answer, _TURNS * _LIFETIME_S * 890 / 1e9, 1e-3):
        return "890 bytes are one token's global KV. Windows have a size of their own."
    if close(answer, right / 60 / 1e9, 1e-3):
        return "Ten minutes are 600 seconds."
    return "What is there at once is what comes each second, times the seconds that it stays."


@exercise("13.3")
def pause_at_which_a_replay_is_cheaper(answer: object) -> str | None:
    """A function (window_bytes, dram_gb_hour, gpu_seconds, gpu_hour) -> seconds."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for window_bytes, dram, seconds, hour in _TRIES:
        right = seconds * hour / (window_bytes / 1e9 * dram)
        try:
            got = answer(window_bytes, dram, seconds, hour)
        except TypeError:
            return "It is called with four numbers: bytes, a price, seconds, a price."
        if close(got, right, 1e-6):
            continue
        where = f"For {window_bytes:,} bytes at {dram} and {seconds} GPU-seconds at {hour} an hour"
        if close(got, right / 3600, 1e-6):
            return f"{where} that is in hours; the pause is asked in seconds."
        if close(got, right * 3600, 1e-6):
            return f"{where} it is 3,600 times too long: both prices are by the hour."
        if close(got, right * 2**30 / 1e9, 1e-6):
            return f"{where} that takes a GB for 2^30 bytes."
        return f"{where} both cost the same after {right:,.4g} s."
    return None


@exercise("13.4")
def tokens_that_were_given(answer: object) -> str | None:
    """The tokens after the first."""
    try:
        given = [int(one) for one in answer]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return "Give a list of tokens."
    if given == [9, 4]:
        return None
    if given == [7, 9, 4]:
        return "The 7 is in the handover already: its last id is the first token of the answer."
    if not given:
        return "Then it would draw them again and send them a second time."
    return "Those that the reader has seen, without the one that prefill drew."
