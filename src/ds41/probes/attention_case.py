"""One attention over random rows of the published sizes, for the probes of what rounding main KV does to it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ds41.config import ModelConfig
from ds41.formats import WINDOW_KV
from ds41.norm import rms_norm


@dataclass(frozen=True)
class Setting:
    """Sizes of one attention: selected entries of main KV and rows of a window, which is FP8 whatever main KV is.

    query_rms: root mean square of query channels. Logits of random rows have this deviation: 1 attends to hundreds of
    rows, 4 to a few.
    """

    channels: int
    heads: int
    selected: int
    window: int
    query_rms: float = 1.0

    def __post_init__(self) -> None:
        if not self.query_rms > 0:
            raise ValueError(f"query_rms is {self.query_rms}; expected a number above zero")
        if self.channels % WINDOW_KV.block:
            raise ValueError(f"channels is {self.channels}; expected a multiple of {WINDOW_KV.block}")

    @classmethod
    def of(cls, config: ModelConfig, query_rms: float = 1.0, heads: int | None = None) -> Setting:
        """The sizes of a model; ``heads`` to look at fewer than it has."""
        heads = config.num_attention_heads if heads is None else heads
        return cls(config.head_dim, heads, config.index_topk, config.sliding_window, query_rms)


@dataclass(frozen=True)
class AttentionCase:
    """One seed: entries [selected, C], window rows [window, C] as read back from FP8, queries [heads, C]."""

    entries: torch.Tensor
    window: torch.Tensor
    queries: torch.Tensor

    @classmethod
    def draw(cls, setting: Setting, seed: int) -> AttentionCase:
        """Gaussian rows, normalised as latents are."""
        generator = torch.Generator().manual_seed(seed)

        def rows(count: int) -> torch.Tensor:
            return rms_norm(torch.randn(count, setting.channels, generator=generator))

        entries, window = rows(setting.selected), WINDOW_KV.fake_quantize(rows(setting.window))
        return cls(entries, window, rows(setting.heads) * setting.query_rms)

    def weights(self, entries: torch.Tensor) -> torch.Tensor:
        """Softmax weights of entries and window, a sink of logit 0 beside them: [heads, selected + window]."""
        return self._with_sink(entries).softmax(1)[:, :-1]

    def log_sum(self, entries: torch.Tensor) -> torch.Tensor:
        """Log of the sum of all exponentials, the sink's among them: [heads]."""
        return self._with_sink(entries).logsumexp(1)

    def _with_sink(self, entries: torch.Tensor) -> torch.Tensor:
        logits = self.queries @ torch.cat((entries, self.window)).T * entries.shape[1] ** -0.5
        return torch.cat((logits, logits.new_zeros(logits.shape[0], 1)), 1)
