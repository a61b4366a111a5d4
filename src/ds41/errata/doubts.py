"""Claims of the article's sections 7 and 8: what could break, and the verdict.

Source: the article, sections 7 and 8.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch

from ds41 import ledger, reads
from ds41.candidates import candidates
from ds41.engine_facts import flags
from ds41.errata.claim import Claim
from ds41.errata.values import FLASH, MILLION, POOL, kept, layers
from ds41.formats import MAIN_KV
from ds41.measured import read_measured
from ds41.norm import rms_norm
from ds41.probes.needle_rows import readers
from ds41.small_floats import e2m1_values


def clipped_percent() -> float:
    """Blocks of normalised random latents whose largest channel lies beyond six times its rounded scale."""
    latents = torch.randn(256, FLASH.head_dim, generator=torch.Generator().manual_seed(0))
    return 100 * float(MAIN_KV.clipped_blocks(rms_norm(latents)).float().mean())


def _missed_percent(rank: int) -> float:
    """Needles of a true rank that a selection from FP4 scores misses: stored measurement, a million random keys."""
    points = read_measured("probe_selection")["longest"]["misses"]
    (point,) = [
        one for one in points if (one["rank"], one["needle"], one["rounded"]) == (rank, "found", "keys and queries")
    ]
    return 100 * point["missed"]["mean"]


def _error_of_small_values() -> float:
    """Part of the output's squared error that values below 1/24 of their block's maximum carry, per cent; stored."""
    sizes = read_measured("probe_fp4")["synthetic"]["sizes"]
    small = [
        one
        for one in sizes
        if one["format"] == "FP4" and one["query_rms"] == 1.0 and one["relative"] and one["high"] <= 1 / 24
    ]
    return 100 * sum(one["error_share"]["mean"] for one in small)


def _differs_behind_long_hits() -> bool:
    """Whether a replay changes what follows, for hits beyond one window of the stored sweep."""
    run = read_measured("probe_replay")["replay"]
    sweep = run["sweep"][0] if isinstance(run["sweep"], list) else run["sweep"]
    pairs = zip(sweep["hits"], sweep["kl"]["replay"], strict=True)
    return all(kl[0] > 0 for hit, kl in pairs if hit > run["window"])


_BREAKS = (
    Claim("7.points", "7", "The decoder selects at one Full and four Reindex layers", "right", "",
          "16-what-breaks", "count-readers", "5",
          lambda: sum(p.half == "decoder" and p.owns_selection for p in FLASH.layers), "layers"),
    Claim("7.fifteen", "7", "15 of the 20 decoder layers are Reuse layers", "right", "",
          "16-what-breaks", "count-readers", "15", lambda: layers("decoder", "reuse"), "layers"),
    Claim("7.poisons", "7", "An error of the one Full layer poisons the whole stack, 20 layers", "wrong",
          "Its pick is read by itself and three more. The other sixteen read what a Reindex layer picked.",
          "16-what-breaks", "count-reading", "20", lambda: len(readers(FLASH, FLASH.decoder_start)), "layers"),
    Claim("7.compounds", "7", "The pool compounds it", "right",
          "What falls out of the best 2,048 blocks is lost to all. An entry ranked 513 is not: it stays in the pool.",
          "03-csa2", "pool-guarantee", None, lambda: FLASH.index_topk < FLASH.candidate_topk_blocks),
    Claim("7.selection-named", "7", "The report names selection errors as untested", "right", "Report, section 6.",
          "16-what-breaks", "question"),
    Claim("7.boundary", "7", "Misses begin just below the top-k boundary", "wrong",
          "There is no such line: the edge is about as wide as top-k. Already at rank 256 of a million random keys a "
          "selection from FP4 scores misses so many:", "16-what-breaks", "width-reading", None,
          lambda: _missed_percent(256), "%"),
    Claim("7.needles", "7", "Needles at 512K to 1M would show it on the released model", "not decidable",
          "No such run is published, and a model of 384 tokens cannot stand in for it.",
          "16-what-breaks", "tally-reading"),
    Claim("7.probeable", "7", "The same prompt, two resumption points: outputs differ", "right",
          "On nano behind every hit longer than one window.", "16-what-breaks", "sweep-figure", None,
          _differs_behind_long_hits),
    Claim("7.stated", "7", "The report says itself that such states are not identical", "right", "Report 3.2.2.",
          "06-replay", "divergence-reading"),
    Claim("7.no-flag", "7", "No flag restores exactness without paying L n_win again", "wrong",
          "vLLM has one, and pays in bytes. Windows in the pool are exact for nothing; so is a hit of one window.",
          "06-replay", "kept-windows", None, lambda: not any("no-swa-bounded-replay" in one.flag for one in flags())),
    Claim("7.mantissa", "7", "E2M1 has one bit of mantissa", "right", "Two magnitudes between powers of two.",
          "04-fp4", "bits", "1", lambda: math.log2(sum(2 <= value < 4 for value in e2m1_values())), "bit"),
    Claim("7.relative", "7", "Its relative error is largest where values are small", "right",
          "Below a 24th of the block's maximum all is lost.", "04-fp4", "error-figure"),
    Claim("7.small", "7", "Small magnitudes are where retrieval lives", "wrong",
          "Nothing stores logits. Latents are stored, and the smallest values carry this part of the output's error:",
          "16-what-breaks", "sizes-figure", None, _error_of_small_values, "%"),
    Claim("7.clips", "7", "The norm argument certifies that nothing clips", "wrong",
          "Scales do not saturate. Elements clip where the scale was rounded down, by at most 1/17, in about half of "
          "all blocks:", "04-fp4", "clipping", "0", clipped_percent, "%"),
    Claim("7.range-only", "7", "It is an argument about range and sees no error", "right",
          "Measured: the bound holds, and small channels lose everything.",
          "04-fp4", "small-magnitudes-reading"),
    Claim("7.evidence", "7", "The evidence for FP4 is training with it, and the magnitudes seen", "right",
          "Report 2.4.4. It prints no table of FP4 beside FP8.", "16-what-breaks", "qat-intro"),
    Claim("7.two-classes", "7", "The report's stress priorities: sparse retrieval, and windows at resumption", "right",
          "Report, section 6.", "16-what-breaks", "question"),
)  # fmt: skip

_VERDICT = (
    Claim("8.multiplied", "8", "The four axes are composed multiplicatively", "wrong",
          "Undone in two orders they give different factors, and the replay gives none.",
          "03-csa2", "both-orders", None,
          lambda: kept(shared=True, compressed=False) / kept(shared=True, compressed=True)
          == kept(shared=False, compressed=False) / kept(shared=False, compressed=True)),
    Claim("8.closest", "8", "The closest decomposition, 864, is within 3.0 %", "right",
          "2.9 %. That it is close proves little: it is wrong twice.", "05-ledger", "closeness", None,
          lambda: abs(1 - candidates(FLASH)[0].row.bytes / ledger.bytes_per_token(FLASH)) <= Fraction(3, 100)),
    Claim("8.derivable", "8", "The 890 cannot be fully derived from the configuration", "wrong",
          "2.5 entries of 356 bytes.", "05-ledger", "predict-sum", None,
          lambda: ledger.entries_per_token(FLASH) * ledger.entry_bytes(FLASH) != 890),
    Claim("8.format", "8", "What survives: the format that follows from a norm", "right",
          "On both sides: 119 times up, and down to a few hundredths.", "04-fp4", "range-figure"),
    Claim("8.pool", "8", "What survives: the indexer's constant cost", "imprecise",
          "From 16,384 entries on.", "03-csa2", "cost-assertions", None,
          lambda: reads.index_macs(FLASH, POOL // 2)[24] == reads.index_macs(FLASH, MILLION)[24]),
    Claim("8.trade", "8", "What survives: the arithmetic of the replay", "imprecise",
          "As a ratio of tokens. As a share of work most of its lines are off, because a replayed token does not go "
          "through what a prompt's token goes through.", "06-replay", "article-table-reading"),
    Claim("8.benchmarks", "8", "Benchmark parity is the vendor's own report", "right", "No other run is known to us.",
          "16-what-breaks", "tally-reading"),
    Claim("8.gaps", "8", "A science-oriented Terminal-Bench 4.0 is among the admitted gaps", "not decidable",
          "The results that this book knows of are of its versions 2.1 and 3.0.", "16-what-breaks", "tally-reading"),
    Claim("8.95", "8", 'The model serves "over 95 % of real-world tasks"', "not decidable",
          "As the article says itself: nobody outside can sample the vendor's tasks.", "16-what-breaks",
          "tally-reading"),
    Claim("8.all-three", "8", "The report names all three points as untested", "wrong",
          "It names two. Small magnitudes in FP4 are the article's own addition, and a good question.",
          "16-what-breaks", "question"),
)  # fmt: skip

CLAIMS = _BREAKS + _VERDICT
