"""The source article's four candidate ledgers for 890 bytes per token, beside the exact one.

The article (its cell 1) could not derive the figure and tried four accountings of the configuration. Each is
recomputed here from the format, with the corrections that lead from it to the exact sum. The same three readings
go wrong in them: key and value are counted separately although one latent serves as both; index keys are left
out, or counted per query head; the decoder's source is left out, or counted twice over.

Source: the article's cell 1; the published configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ds41 import ledger
from ds41.config import ModelConfig
from ds41.formats import MAIN_KV
from ds41.records import Row


@dataclass(frozen=True)
class Candidate:
    """One accounting of the article.

    row: its sum. assumes, misses: in words. corrections: what to add (negative: to take away) to reach the exact
    bytes per token; ``row.bytes`` and the corrections add up to ``exact``.
    """

    letter: str
    row: Row
    exact: Fraction
    assumes: str
    misses: str
    corrections: tuple[Row, ...]

    @property
    def printed_percent(self) -> float:
        """The figure as the article prints it: how far the true number lies above (+) the candidate."""
        return 100 * float(self.exact / self.row.bytes - 1)

    @property
    def percent_off(self) -> float:
        """How far the candidate lies above (+) or below (-) the true number."""
        return 100 * float(self.row.bytes / self.exact - 1)


def candidates(config: ModelConfig) -> tuple[Candidate, ...]:
    """The article's candidates A to D: 864, 1,440, 1,152 and 1,152 bytes for the published configuration.

    Raises:
        ValueError: the configuration has other sources than the article supposes: some above ratio 1 and
            exactly one at ratio 1.
    """
    encoder = [layer for layer in config.layers if layer.owns_kv and layer.ratio > 1]
    decoder = [layer for layer in config.layers if layer.owns_kv and layer.ratio == 1]
    if not encoder or len(decoder) != 1:
        raise ValueError(
            f"kv_source_layer_ids has {len(encoder)} sources above ratio 1 and {len(decoder)} at ratio 1; "
            "the article's candidates suppose some and exactly one"
        )
    exact = ledger.bytes_per_token(config)
    side = MAIN_KV.bytes_per_row(config.head_dim)
    pair = 2 * side
    groups = sum((Fraction(pair, layer.ratio) for layer in encoder), Fraction(0))
    one_latent = groups / 2
    encoder_sum = f"{len(encoder)} × 2 × {side} / {encoder[0].ratio}"

    twice = Row("key and value are one latent", -one_latent, f"-{encoder_sum} / 2")
    keys = _index_keys(config)
    source = Row("the decoder's source", Fraction(side), f"{side}")
    source_twice = Row("key and value are one latent, in the decoder too", Fraction(-side), f"-{side}")

    counted_apart = "key and value stored separately in the encoder, both halved by the ratio of 2"
    return (
        Candidate(
            "A",
            Row("encoder only", groups, encoder_sum),
            exact,
            f"{counted_apart}; the decoder's global KV costs nothing",
            "one latent serves as key and value, so the encoder is counted twice; the decoder's source and all "
            "index keys are left out: two errors that nearly cancel",
            (twice, source, keys),
        ),
        Candidate(
            "B",
            Row("encoder + one decoder source, key and value", groups + pair, f"{encoder_sum} + 2 × {side}"),
            exact,
            f"{counted_apart}; one decoder source, also with key and value apart",
            "both halves are counted twice; index keys are left out",
            (twice, source_twice, keys),
        ),
        Candidate(
            "C",
            Row("encoder + one decoder latent", groups + side, f"{encoder_sum} + {side}"),
            exact,
            f"{counted_apart}; one decoder source kept as a single latent",
            "the encoder's sources are the same kind of latent, counted twice; index keys are left out",
            (twice, keys),
        ),
        Candidate(
            "D",
            Row("C + index keys, given up", groups + side, f"{encoder_sum} + {side}"),
            exact,
            f"as C; an index key of {config.index_n_heads} heads × {config.index_head_dim} channels would cost "
            f"{article_index_key_bytes(config):,} B, so it is dropped",
            "the heads are the query's: all of them score against one key of "
            f"{config.index_head_dim} channels in MXFP4, {ledger.Storage.published(config).index.nbytes} B",
            (twice, keys),
        ),
    )


def article_index_key_bytes(config: ModelConfig) -> int:
    """The index key as the article sizes it: every query head's channels, in the main KV's format; 2,304."""
    return MAIN_KV.bytes_per_row(config.index_n_heads * config.index_head_dim)


def _index_keys(config: ModelConfig) -> Row:
    row = next(row for row in ledger.by_component(config) if row.name == "index keys")
    return Row("index keys", row.bytes, row.formula)
