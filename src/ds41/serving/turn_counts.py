"""What is counted of a turn, by the engine and by the simulation of it alike.

Source: ds41's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Windows = Literal["live", "restored", "replayed", "cold", "handed_over"]


@dataclass
class TurnCounts:
    """Tokens and bytes of one turn; :class:`ds41.serving.TurnReport` says what each of them is."""

    context_tokens: int = 0
    new_tokens: int = 0
    live_tokens: int = 0
    resident_tokens: int = 0
    store_tokens: int = 0
    store_bytes: int = 0
    windows: Windows = "cold"
    window_bytes: int = 0
    replayed_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    verified_tokens: int = 0
    stored_tokens: int = 0
    stored_bytes: int = 0
    kept_window_bytes: int = 0

    @property
    def hit_tokens(self) -> int:
        """Tokens whose entries did not have to be computed, from whichever tier."""
        return self.live_tokens + self.resident_tokens + self.store_tokens
