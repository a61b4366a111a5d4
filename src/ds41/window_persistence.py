"""Windows that are stored, and windows that are not: what recorded turns leave behind, and how far a pool reaches.

:mod:`ds41.economics` has the formula for one turn of a given length. Here real turns are added up, with their floors:
open groups have written nothing, and a sequence shorter than its window has fewer rows.

Source: report section 3.2.1; V4 report section 3.5.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Protocol

from ds41 import economics, ledger
from ds41.config import ModelConfig
from ds41.economics import Persistence
from ds41.systems import System, from_config, system


class Counted(Protocol):
    """A turn in tokens: those there before it, those that its prompt adds, those that are generated."""

    history: int
    prompt: int
    answer: int


def stored(config: ModelConfig, turns: Iterable[Counted], baseline: System | None = None) -> Persistence:
    """What the turns of any number of sessions leave in the store if nothing is evicted.

    ``baseline`` (V4-Flash) also stores all windows at the end of each prompt and of each answer; this configuration
    stores none. ``new_tokens`` counts prompts and answers of all turns.

    Raises:
        ValueError: no turn, or a turn without new tokens.
    """
    baseline = baseline or system("deepseek-v4-flash")
    ours = from_config(config)
    new = old_global = old_windows = our_global = 0
    for turn in turns:
        asked = turn.history + turn.prompt
        end = asked + turn.answer
        if end <= turn.history:
            raise ValueError(f"a turn after {turn.history:,} tokens adds {end - turn.history}; expected one or more")
        new += end - turn.history
        old_global += baseline.nbytes(end) - baseline.nbytes(turn.history)
        our_global += ours.nbytes(end) - ours.nbytes(turn.history)
        if baseline.window:
            old_windows += baseline.window.nbytes(asked) + baseline.window.nbytes(end)
    if not new:
        raise ValueError("there is no turn; expected one or more")
    return Persistence(Fraction(new), Fraction(old_global), Fraction(old_windows), Fraction(our_global))


def pool_sessions(config: ModelConfig, host_bytes: int, share: Fraction = Fraction(1, 10)) -> int:
    """Sessions whose windows fit into a share of a machine's memory; the report's share is a tenth.

    Raises:
        ValueError: bytes below 0, or a share outside 0 to 1.
    """
    if host_bytes < 0 or not 0 <= share <= 1:
        raise ValueError(f"host_bytes is {host_bytes} and share {share}; expected no less than 0, and 0 to 1")
    return int(host_bytes * share) // ledger.window_bytes(config)


def pool_turns_per_second(config: ModelConfig, host_bytes: int, lifetime_s: float) -> float:
    """Turns that may end each second if each leaves its windows in the pool for ``lifetime_s`` seconds.

    Those of a session that goes on are recycled at once, so a pool takes more than this.

    Raises:
        ValueError: a lifetime or bytes below 0, or a lifetime of 0.
    """
    if lifetime_s <= 0:
        raise ValueError(f"lifetime_s is {lifetime_s}; expected more than zero")
    return pool_sessions(config, host_bytes) / lifetime_s


def turn_for_share(share: Fraction | float) -> float:
    """New tokens a turn at which windows fill ``share`` of V4-Flash's store, two checkpoints a turn.

    Raises:
        ValueError: ``share`` is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise ValueError(f"share is {share}; expected more than 0 and less than 1")
    return float(economics.even_split_turn()) * (1 - float(share)) / float(share)
