"""Uneven input for a router: random token states that come by topic, a few topics far more often than the rest.

Words, and what surrounds them, repeat in the same way. It is a stand-in, not a model of language: what it shares
with text is that tokens alike take the same experts, and that some kinds of token are common.

Source: ds41's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ds41.norm import rms_norm


@dataclass(frozen=True)
class TopicStream:
    """Token states around the centres of topics.

    centres: [topics, hidden], root mean square 1. shares: [topics], how often each is drawn; the first most often.
    spread: deviation of a token from its centre; at 1 both have the same size.
    """

    centres: torch.Tensor
    shares: torch.Tensor
    spread: float

    @classmethod
    def zipf(
        cls, topics: int, hidden: int, spread: float = 1.0, generator: torch.Generator | None = None
    ) -> TopicStream:
        """Random centres; topic n comes 1/n times as often as the first.

        generator: torch's own by default. One seeded like the router's weights would repeat their numbers.

        Raises:
            ValueError: ``topics`` below 1 or ``spread`` below 0.
        """
        if topics < 1:
            raise ValueError(f"topics is {topics}; expected 1 or more")
        if spread < 0:
            raise ValueError(f"spread is {spread}; expected 0 or more")
        centres = torch.randn(topics, hidden, generator=generator)
        shares = 1 / torch.arange(1, topics + 1)
        return cls(rms_norm(centres), shares / shares.sum(), spread)

    def draw(self, tokens: int, generator: torch.Generator | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """States [tokens, hidden] of root mean square 1, and their topics, int64 [tokens]."""
        topics = torch.multinomial(self.shares, tokens, replacement=True, generator=generator)
        noise = torch.randn(tokens, self.centres.shape[1], generator=generator)
        return rms_norm(self.centres[topics] + self.spread * noise), topics
