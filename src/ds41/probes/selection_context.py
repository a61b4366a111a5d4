"""A long context for a probe of the selection: synthetic latents, the library's own index keys, pages and queries.

Latents go through an :class:`ds41.attention.IndexKeys` and into packed pages; queries come from an
:class:`ds41.attention.Indexer`. Both have the sizes of a configuration and new weights. The unrounded keys are kept
beside the pages: what they give is called true here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ds41.attention import CacheMemory, Indexer
from ds41.attention.indexer import IndexQuery
from ds41.cache import Cache
from ds41.config import ModelConfig
from ds41.formats import INDEX_KEY
from ds41.norm import rms_norm
from ds41.ops.index_scores import index_scores
from ds41.rope import layer_frequencies, rotate_by, turns
from ds41.topic_stream import TopicStream

# Entries that are made, written and scored at a time.
_PIECE = 2**13


@dataclass(frozen=True)
class KeyLaw:
    """How the latents of a context are distributed; all have root mean square 1.

    share: of a latent's variance that it has in common with its run; the rest is its own. run: mean number of
    neighbouring entries in a run (geometric). topics: how many centres there are for runs; centre n comes 1/n times
    as often as the first.
    """

    name: str
    share: float = 0.0
    run: int = 1
    topics: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1 or self.run < 1 or self.topics < 1:
            raise ValueError(
                f"share is {self.share}, run {self.run}, topics {self.topics}; expected a share of 0 to below 1, the "
                "others 1 or more"
            )

    def latents(self, entries: int, channels: int, generator: torch.Generator) -> torch.Tensor:
        """Latents of neighbouring entries, float32 [entries, channels]."""
        own = torch.randn(entries, channels, generator=generator)
        if self.share == 0:
            return rms_norm(own)
        # The centres are the same for every piece of a context, so they have a seed of their own.
        centres = TopicStream.zipf(self.topics, channels, generator=torch.Generator().manual_seed(self.topics))
        starts = torch.rand(entries, generator=generator) < 1 / self.run
        runs = starts.cumsum(0)
        drawn = torch.multinomial(centres.shares, int(runs[-1]) + 1, replacement=True, generator=generator)
        return rms_norm(self.share**0.5 * centres.centres[drawn[runs]] + (1 - self.share) ** 0.5 * own)


ISOTROPIC = KeyLaw("isotropic")
CLUSTERED = KeyLaw("clustered", share=0.5, run=32, topics=1024)


class SyntheticContext:
    """Entries of the last source of a configuration, in packed pages, and what asks for them.

    Args:
        config: its decoder's source must have ratio 1 and publish the pool.
        entries: how many, at most ``max_position_embeddings``; every query sees all of them.

    Attributes:
        keys: float32 [entries, index_head_dim], rotated, not rounded. memory: the same in pages, packed.

    Raises:
        ValueError: another kind of configuration, or too few entries for a selection.
    """

    def __init__(self, config: ModelConfig, entries: int, law: KeyLaw, generator: torch.Generator) -> None:
        self.config, self.law, self.entries = config, law, entries
        self.layer = config.decoder_start
        plan = config.layers[self.layer] if self.layer < config.num_hidden_layers else None
        if plan is None or plan.ratio != 1 or config.candidate_source_layer_id != self.layer:
            raise ValueError(
                f"the last source is layer {self.layer} and the candidate source "
                f"{config.candidate_source_layer_id}; expected one layer, of ratio 1"
            )
        if entries <= config.index_topk:
            raise ValueError(f"entries is {entries}; expected more than index_topk, {config.index_topk}")
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
            self.indexer = Indexer(config, plan, "cache", torch.float32).requires_grad_(False)
        self._frequencies = layer_frequencies(config, 1)
        cache = Cache(config, entries, dtype=torch.float32)
        cache.reserve([entries])
        self.memory = CacheMemory(cache)
        self.keys = torch.empty(entries, config.index_head_dim)
        for start in range(0, entries, _PIECE):
            entry = torch.arange(start, min(start + _PIECE, entries))
            latent = law.latents(len(entry), config.head_dim, generator)
            turn = turns(entry, self._frequencies)
            self.keys[entry] = self.indexer.keys(latent, turn)
            cache.write_entries(self.layer, torch.zeros_like(entry), entry, rotate_by(latent, turn), self.keys[entry])
        cache.advance([entries])
        self.cache = cache

    def queries(self, count: int, generator: torch.Generator) -> IndexQuery:
        """Queries of the token after which all entries are visible, of random states; not rounded."""
        states = torch.randn(count, self.config.hidden_size, generator=generator)
        latent = rms_norm(torch.randn(count, self.config.q_lora_rank, generator=generator))
        turn = turns(torch.full((count,), self.entries - 1), self._frequencies)
        return IndexQuery(self.indexer.query_heads(latent, turn), self.indexer.head_weights(rms_norm(states)))

    def true_scores(self, asked: IndexQuery) -> torch.Tensor:
        """Scores of float32 queries against float32 keys, [N, entries]."""
        return torch.cat([index_scores(*asked, part) for part in self.keys.split(_PIECE)], dim=1)

    def stored_scores(self, asked: IndexQuery) -> torch.Tensor:
        """Scores against the keys in the pages, [N, entries]; the queries are taken as they are."""
        return self.indexer.scores(asked, 0, self.entries, self.memory)

    def write_keys(self, entry: torch.Tensor, keys: torch.Tensor) -> None:
        """Put keys float32 [M, index_head_dim] into the pages, in the place of entries int64 [M]."""
        page, place = self.cache.places(self.layer, torch.zeros_like(entry), entry)
        self.cache.pool.index_rows(self.layer).write(page, place, keys)

    def stored_keys(self, entry: torch.Tensor) -> torch.Tensor:
        """What the pages hold of entries int64 [N, K], float32 [N, K, index_head_dim]."""
        return self.memory.index_entries(self.layer, entry.new_zeros(len(entry)), entry)


def round_query(asked: IndexQuery) -> IndexQuery:
    """The query in the format of index keys, as the indexer rounds it; head weights stay."""
    return IndexQuery(INDEX_KEY.fake_quantize(asked.query), asked.weight)


def mix_queries(first: IndexQuery, second: IndexQuery, correlation: float) -> IndexQuery:
    """Queries whose every number, head weights included, correlates with ``first`` as given.

    Raises:
        ValueError: a correlation outside of 0 to 1.
    """
    if not 0 <= correlation <= 1:
        raise ValueError(f"correlation is {correlation}; expected 0 to 1")
    rest = (1 - correlation**2) ** 0.5
    return IndexQuery(*(correlation * a + rest * b for a, b in zip(first, second, strict=True)))
