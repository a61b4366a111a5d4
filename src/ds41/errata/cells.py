"""Every figure that the article's four code cells print, line by line.

Each is done twice: as the article reckons (``redone``, where it reckons at all), and as the quantity that its line
names really is (``computed``). An input that a line repeats is looked up in the configuration; one that the article
chose, such as the length of a prompt, stands in the words of the claim.

Source: the article's code cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from ds41 import candidates, ledger, reads, window_cone
from ds41.decoder_tail import exact_tail_rows
from ds41.economics import architecture_ratio
from ds41.errata.claim import Claim, Verdict
from ds41.errata.values import (
    FLASH,
    MILLION,
    POOL,
    bounded_replay_percent,
    contexts,
    device_rest_gib,
    exact_replay_percent,
    layers,
    v4,
)
from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV
from ds41.small_floats import E2M1_MAX, E4M3_MAX

Number = Callable[[], object]
# Where the book treats what a cell is about, unless a figure names another place.
_PLACES = {
    1: ("4", "05-ledger", "candidates"),
    2: ("5", "06-replay", "article-table"),
    3: ("4", "04-fp4", "predict-headroom"),
    4: ("3", "03-csa2", "cost-assertions"),
}
_LATENT = FLASH.head_dim
_SIDE = MAIN_KV.bytes_per_row(_LATENT)
_FP8_SIDE = WINDOW_KV.bytes_per_row(_LATENT)
_LAYERS, _WINDOW = FLASH.num_hidden_layers, FLASH.sliding_window


class _Lines:
    """Collects the figures of one cell."""

    def __init__(self, cell: int) -> None:
        self.cell, self.claims = cell, []

    def add(
        self,
        line: int,
        says: str,
        printed: str,
        computed: Number,
        unit: str = "",
        *,
        redone: Number | None = None,
        verdict: Verdict = "right",
        because: str = "",
        at: tuple[str, str] | None = None,
    ) -> None:
        """One printed figure. at: chapter and cell that show it, if not the usual ones."""
        section, *usual = _PLACES[self.cell]
        chapter, anchor = at or usual
        number = 1 + sum(claim.line == line for claim in self.claims)
        words = (f"{section}.cell-{self.cell}.{line}.{number}", section, says, verdict, because, chapter, anchor)
        self.claims.append(Claim(*words, printed, computed, unit, redone, self.cell, line))


def _candidate(letter: str) -> candidates.Candidate:
    return next(one for one in candidates.candidates(FLASH) if one.letter == letter)


def _headline() -> Fraction:
    return ledger.bytes_per_token(FLASH)


def _ledger_cell() -> list[Claim]:
    cell = _Lines(1)
    one_latent, sources, tried = (
        ("03-csa2", "one-latent-proof"),
        ("05-ledger", "predict-sources"),
        ("05-ledger", "candidate-table"),
    )
    groups = sum(layer.owns_kv for layer in FLASH.layers if layer.half == "encoder")
    encoder = sum(row.bytes for row in ledger.by_source(FLASH)[:groups])
    decoder_sources = len(FLASH.kv_source_layer_ids) - groups
    twice = "One latent is key and value: the record is all there is."
    no_keys = "Half of it is counted twice, and index keys are left out."

    cell.add(1, "channels of a side", "512", lambda: _LATENT, "channels")
    cell.add(1, "a side in FP4, scales included", "288", lambda: _SIDE, "B", redone=lambda: _SIDE)
    cell.add(2, "keys and values of one layer", "576", lambda: _SIDE, "B", redone=lambda: 2 * _SIDE, verdict="wrong",
             because=twice, at=one_latent)  # fmt: skip
    cell.add(3, "encoder groups", "3", lambda: groups, "groups", at=("03-csa2", "plan-table"))
    cell.add(3, "global KV of one group, a token", "288", lambda: encoder / groups, "B", redone=lambda: 2 * _SIDE / 2,
             verdict="wrong", because="144 for the latent and 34 for its index key.", at=sources)  # fmt: skip
    cell.add(3, "global KV of the encoder, a token", "864", lambda: encoder, "B",
             redone=lambda: _candidate("A").row.bytes, verdict="wrong", because=no_keys, at=sources)  # fmt: skip
    for line, letter, printed, percent in (
        (4, "A", "864", "+3.0"),
        (5, "B", "1440", "-38.2"),
        (6, "C", "1152", "-22.7"),
    ):
        if letter != "A":
            cell.add(line, "decoder sources", "1", lambda: decoder_sources, "source", at=("03-csa2", "plan-table"))
        if letter == "C":
            cell.add(line, "channels of its latent", "512", lambda: _LATENT, "channels")
        cell.add(line, f"candidate {letter} as the sum", printed, _headline, "B",
                 redone=lambda letter=letter: _candidate(letter).row.bytes, verdict="wrong",
                 because=f"{_candidate(letter).misses[0].upper()}{_candidate(letter).misses[1:]}.",
                 at=tried)  # fmt: skip
        if letter == "A":
            cell.add(line, "the report's figure", "890", _headline, "B", at=("05-ledger", "predict-sum"))
        cell.add(line, f"how far off candidate {letter} is", percent,
                 lambda letter=letter: _candidate(letter).percent_off, "%",
                 redone=lambda letter=letter: _candidate(letter).printed_percent, verdict="wrong",
                 because="Printed is how far 890 lies from the candidate. The candidate lies on the other side of 890.",
                 at=tried)  # fmt: skip
    cell.add(7, "indexer heads", "32", lambda: FLASH.index_n_heads, "heads")
    cell.add(7, "channels of a head", "128", lambda: FLASH.index_head_dim, "channels")
    cell.add(7, "an index key", "2304", lambda: INDEX_KEY.bytes_per_row(FLASH.index_head_dim), "B",
             redone=lambda: candidates.article_index_key_bytes(FLASH), verdict="wrong",
             because="The heads are the query's. All of them score against one key of 128 channels, in MXFP4.",
             at=("05-ledger", "three-facts"))  # fmt: skip
    cell.add(8, "candidate D as the sum", "1152", _headline, "B", redone=lambda: _candidate("D").row.bytes,
             verdict="wrong", because="As C.", at=tried)  # fmt: skip
    cell.add(9, "the closest consistent read", "864", _headline, "B", redone=lambda: _candidate("A").row.bytes,
             verdict="wrong", because="Closest, and wrong twice; the exact read is 890.", at=tried)  # fmt: skip
    cell.add(9, "encoder groups", "3", lambda: groups, "groups", at=("03-csa2", "plan-table"))
    cell.add(9, "bytes of one", "288", lambda: encoder / groups, "B", verdict="wrong", because="As in line 3.",
             redone=lambda: _SIDE, at=sources)  # fmt: skip
    cell.add(9, "how far 864 lies below 890", "3.0", lambda: -_candidate("A").percent_off, "%", verdict="imprecise",
             because="2.9 % below; 890 is 3.0 % above. The one slip of the pen in the four cells.",
             at=tried)  # fmt: skip
    cell.add(9, "the report's figure", "890", _headline, "B", at=("05-ledger", "predict-sum"))
    cell.add(10, "left unexplained, a token", "26", lambda: 890 - _headline(), "B",
             redone=lambda: 890 - _candidate("A").row.bytes, verdict="wrong", because="Nothing is left.",
             at=("05-ledger", "corrections"))  # fmt: skip
    cell.add(11, "the report's figure", "890", _headline, "B", at=("05-ledger", "predict-sum"))
    return cell.claims


def _replay_cell() -> list[Claim]:
    cell = _Lines(2)
    capacity, cone, tail = ("01-why-bytes", "capacity-table"), ("06-replay", "cone-reading"), ("02-ced", "tail-table")
    fed = window_cone.exact(FLASH, MILLION).tokens
    half, rows = layers("decoder"), exact_tail_rows(FLASH)
    quarter = ("01-why-bytes", "capacity-check")

    cell.add(1, "layers", "40", lambda: _LAYERS, "layers", at=("03-csa2", "plan"))
    cell.add(1, "the window", "128", lambda: _WINDOW, "tokens", at=("06-replay", "window-bytes"))
    cell.add(1, "tokens that exact windows take", "5,120", lambda: fed, "tokens", redone=lambda: _LAYERS * _WINDOW,
             verdict="imprecise", because="127 for each layer: a window holds its own token.", at=cone)  # fmt: skip
    cell.add(2, "tokens of a bounded replay", "128", lambda: _WINDOW, "tokens", at=("06-replay", "component"))
    cell.add(2, "how many times fewer", "40", lambda: fed / _WINDOW, "times", redone=lambda: _LAYERS, at=cone)
    cell.add(3, "decoder layers", "20", lambda: half, "layers", at=("03-csa2", "plan"))
    cell.add(3, "the window", "128", lambda: _WINDOW, "tokens", at=("06-replay", "window-bytes"))
    cell.add(3, "tokens of an exact decoder tail", "2,560", lambda: rows, "tokens", redone=lambda: half * _WINDOW,
             verdict="wrong", because="128 for the last layer, 127 more for each of 18 below it.", at=tail)  # fmt: skip
    cell.add(3, "tokens of the bounded one", "128", lambda: _WINDOW, "tokens", at=tail)
    cell.add(3, "how many times fewer", "20", lambda: rows / _WINDOW, "times", redone=lambda: half, verdict="wrong",
             because="2,414 over 128.", at=tail)  # fmt: skip
    shares = (
        ("1,000", "12.800", "512.00"),
        ("8,000", "1.600", "64.00"),
        ("65,536", "0.195", "7.81"),
        ("524,288", "0.024", "0.98"),
        ("1,048,576", "0.012", "0.49"),
    )
    encoder = "In operations: the encoder alone, and each query scans all that it sees."
    all_layers = "In operations: all 40 layers, where a prompt's token runs 20; and no more is fed again than there is."
    for line, (prompt, bounded, exact) in enumerate(shares, start=5):
        count = int(prompt.replace(",", ""))
        work = bounded_replay_percent(count)
        near = abs(float(bounded) - work) <= 0.05 * work
        cell.add(line, f"bounded replay, share of a prefill of {prompt}", bounded,
                 lambda count=count: bounded_replay_percent(count), "%",
                 redone=lambda count=count: 100 * _WINDOW / count,
                 verdict="imprecise" if near else "wrong",
                 because=encoder if line == 5 else "As above.")  # fmt: skip
        cell.add(line, f"exact replay, share of a prefill of {prompt}", exact,
                 lambda count=count: exact_replay_percent(count), "%",
                 redone=lambda count=count: 100 * _LAYERS * _WINDOW / count, verdict="wrong",
                 because=all_layers if line == 5 else "As above.")  # fmt: skip
    cell.add(10, "context", "1", lambda: MILLION / 2**20, "Mi tokens", at=capacity)
    cell.add(10, "global KV, a token", "890", _headline, "B", at=("05-ledger", "predict-sum"))
    cell.add(10, "tokens", "1,048,576", lambda: MILLION, "tokens", at=capacity)
    cell.add(10, "global KV of a context", "933,232,640", lambda: ledger.global_bytes(FLASH, MILLION), "B",
             redone=lambda: 890 * MILLION, at=quarter)  # fmt: skip
    cell.add(10, "the same", "933", lambda: ledger.global_bytes(FLASH, MILLION) / 1e6, "MB", at=quarter)
    cell.add(10, "the same", "890.0", lambda: ledger.global_bytes(FLASH, MILLION) / 2**20, "MiB", at=quarter)
    cell.add(11, "V4-Flash keeps more, by", "4", lambda: architecture_ratio(FLASH), "times", at=quarter)
    four = "3,514.25 bytes a token, not four times 890."
    cell.add(11, "V4-Flash's context", "3733", lambda: v4().nbytes(MILLION) / 1e6, "MB",
             redone=lambda: 4 * 890 * MILLION / 1e6, verdict="imprecise", because=four, at=quarter)  # fmt: skip
    cell.add(11, "the same", "3560.0", lambda: v4().nbytes(MILLION) / 2**20, "MiB", redone=lambda: 4 * 890,
             verdict="imprecise", because=four, at=quarter)  # fmt: skip
    rest = "The backbone alone takes 277.8 GiB: no such device holds it. Several together leave pools of this size."
    for line, (pool, count) in enumerate((("80", "92.0"), ("60", "69.0"), ("40", "46.0")), start=12):
        cell.add(line, "left of 80 GiB, weights resident", pool, device_rest_gib, "GiB", verdict="wrong",
                 because=rest if line == 12 else "As above.", at=("01-why-bytes", "node"))  # fmt: skip
        cell.add(line, "contexts in such a pool", count, lambda pool=pool: contexts(int(pool)), "contexts",
                 redone=lambda pool=pool: int(pool) * 2**30 / (890 * MILLION), at=capacity)  # fmt: skip
    return cell.claims


def _range_cell() -> list[Claim]:
    cell = _Lines(3)
    bound, reach = math.sqrt(_LATENT), E2M1_MAX * E4M3_MAX
    swap = ("04-fp4", "prove-swap")
    scales = "The scales are left out: the window's FP8 keeps one byte for 32 channels."

    cell.add(1, "largest E2M1 element", "448", lambda: E2M1_MAX, verdict="wrong", because="Swapped with the scale.",
             at=swap)  # fmt: skip
    cell.add(1, "largest E4M3 scale", "6", lambda: E4M3_MAX, verdict="wrong", because="Swapped with the element.",
             at=swap)  # fmt: skip
    cell.add(1, "their product", "2688", lambda: reach, redone=lambda: 448 * 6)
    cell.add(2, "channels of the latent", "512", lambda: _LATENT, "channels")
    cell.add(2, "bound of its norm, largest norm weight 1", "22.627", lambda: bound, redone=lambda: bound,
             at=("04-fp4", "predict-range"))  # fmt: skip
    cell.add(3, "bound of a channel after rotation", "22.627", lambda: bound, at=("04-fp4", "range-measured"))
    cell.add(4, "headroom over the bound", "118.8", lambda: reach / bound, "times", redone=lambda: 448 * 6 / bound)
    cell.add(
        5, "headroom over the largest value seen, 10", "268.8", lambda: reach / 10, "times", redone=lambda: 448 * 6 / 10
    )
    cell.add(6, "bits of an FP4 element, scale included", "4.5", lambda: MAIN_KV.bits_per_element, "bits",
             redone=lambda: 4 + 8 / 16, at=("04-fp4", "predict-bytes"))  # fmt: skip
    cell.add(6, "bits of an FP8 element", "8", lambda: WINDOW_KV.bits_per_element, "bits",
             because="8.25 with its scale.", at=("04-fp4", "predict-bytes"))  # fmt: skip
    cell.add(6, "FP8 over FP4", "1.78", lambda: Fraction(_FP8_SIDE, _SIDE), "times", redone=lambda: 8 / 4.5,
             verdict="imprecise", because=scales, at=("04-fp4", "predict-bytes"))  # fmt: skip
    cell.add(7, "channels of a side", "512", lambda: _LATENT, "channels")
    cell.add(7, "a side in FP4", "288.0", lambda: _SIDE, "B", redone=lambda: _LATENT * 4.5 / 8,
             at=("04-fp4", "measure-bytes"))  # fmt: skip
    cell.add(7, "a side in FP8", "512", lambda: _FP8_SIDE, "B", redone=lambda: _LATENT, verdict="imprecise",
             because=scales, at=("04-fp4", "measure-bytes"))  # fmt: skip
    twice = "One latent is key and value."
    cell.add(8, "keys and values in FP4", "576.0", lambda: _SIDE, "B", redone=lambda: 2 * _SIDE, verdict="wrong",
             because=twice, at=("03-csa2", "one-latent-proof"))  # fmt: skip
    cell.add(8, "keys and values in FP8", "1024", lambda: _FP8_SIDE, "B", redone=lambda: 2 * _LATENT, verdict="wrong",
             because=twice, at=("03-csa2", "one-latent-proof"))  # fmt: skip
    cell.add(8, "FP8 over FP4", "1.78", lambda: Fraction(_FP8_SIDE, _SIDE), "times", redone=lambda: 1024 / 576,
             verdict="imprecise", because=scales, at=("04-fp4", "measure-bytes"))  # fmt: skip
    return cell.claims


def _indexer_cell() -> list[Claim]:
    cell = _Lines(4)
    full, pooled = (reads.index_macs(FLASH, MILLION)[layer] for layer in (20, 24))
    per_entry = FLASH.index_n_heads * FLASH.index_head_dim

    def scored(layer: int) -> int:
        return reads.scored_entries(FLASH, FLASH.layers[layer], MILLION)

    for line, layer, positions, macs in ((1, 20, "1,048,576", "4,294,967,296"), (2, 24, "16,384", "67,108,864")):
        cell.add(line, "indexer heads", "32", lambda: FLASH.index_n_heads, "heads")
        cell.add(line, "channels of a head", "128", lambda: FLASH.index_head_dim, "channels")
        cell.add(line, "positions that are scored", positions, lambda layer=layer: scored(layer), "positions")
        cell.add(line, "multiply-adds of one query", macs, lambda layer=layer: reads.index_macs(FLASH, MILLION)[layer],
                 redone=lambda layer=layer: per_entry * (MILLION if layer == 20 else POOL))  # fmt: skip
    cell.add(3, "the pool's share of the range", "1.56", lambda: 100 * POOL / MILLION, "%",
             redone=lambda: 100 * 2048 * 8 / MILLION)  # fmt: skip
    cell.add(4, "cheaper than a full scan, at a million tokens", "64.0", lambda: full / pooled, "times",
             redone=lambda: MILLION / POOL)  # fmt: skip
    cell.add(5, "positions that the first Full layer scans", "1,048,576", lambda: scored(20), "positions")
    cell.add(5, "multiply-adds of that", "4,294,967,296", lambda: full, redone=lambda: per_entry * MILLION)
    return cell.claims


CLAIMS = (*_indexer_cell(), *_range_cell(), *_ledger_cell(), *_replay_cell())
