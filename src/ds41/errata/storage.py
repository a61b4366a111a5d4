"""Claims of the article's sections 4 and 5: the format, its range, the ledger, the replay. Cells: ``cells``.

Source: the article, sections 4 and 5.
"""

from __future__ import annotations

import math

import torch

from ds41 import flops, ledger, replay, window_cone, window_persistence
from ds41.candidates import candidates
from ds41.errata.claim import Claim
from ds41.errata.values import (
    FLASH,
    MILLION,
    bounded_replay_percent,
    contexts,
    device_rest_gib,
    exact_replay_percent,
    prefill_ratio,
    v4,
)
from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV
from ds41.rope import layer_frequencies, rotate
from ds41.small_floats import E2M1_MAX, E4M3_MAX


def _rotation_keeps_norms() -> bool:
    latents = torch.randn(64, FLASH.head_dim, generator=torch.Generator().manual_seed(0))
    turned = rotate(latents, torch.arange(64) * 16_384, layer_frequencies(FLASH, 2))
    return bool(torch.allclose(turned.norm(dim=-1), latents.norm(dim=-1), rtol=1e-5))


_FORMAT = (
    Claim("4.mxfp4", "4", "The main KV is stored in MXFP4", "wrong",
          "MXFP4 has a power-of-two scale for every 32 channels. Index keys are stored so; main KV is NVFP4 without "
          "its second scale. In MXFP4 a main record would be 272 bytes.", "04-fp4", "swap", None,
          lambda: (MAIN_KV.scale, MAIN_KV.block) == (INDEX_KEY.scale, INDEX_KEY.block)),
    Claim("4.block", "4", "E2M1 with one E4M3 scale for 16 channels", "right", "",
          "04-fp4", "predict-bytes", "16", lambda: MAIN_KV.block, "channels"),
    Claim("4.no-global", "4", "As NVFP4, without the scale of the whole tensor", "right", "",
          "04-fp4", "subnormal-scales", None,
          lambda: (MAIN_KV.element, MAIN_KV.scale) == ("e2m1", "e4m3") and MAIN_KV.bytes_per_row(512) == 256 + 32),
    Claim("4.norm-weight", "4", "The largest norm weight is about 1", "not decidable",
          "The report says so. It can be read off the checkpoint in a second; no weights are needed for this book.",
          "04-fp4", "weights-above-one"),
    Claim("4.norm", "4", "So the latent's norm is at most 22.6", "right", "The square root of 512.",
          "04-fp4", "predict-range", "22.6", lambda: math.sqrt(FLASH.head_dim)),
    Claim("4.rotation", "4", "RoPE keeps the norm, so every channel obeys the bound", "right", "",
          "04-fp4", "range-measured", None, _rotation_keeps_norms),
    Claim("4.e2m1", "4", "E2M1 reaches 448", "wrong", "A 4-bit element ends at 6. Swapped with the next claim.",
          "04-fp4", "prove-swap", "448", lambda: E2M1_MAX),
    Claim("4.e4m3", "4", "The largest E4M3 scale is 6", "wrong", "An 8-bit scale ends at 448.",
          "04-fp4", "prove-swap", "6", lambda: E4M3_MAX),
    Claim("4.reach", "4", "Together they reach 2,688", "right", "A product does not mind the swap.",
          "04-fp4", "predict-headroom", "2,688", lambda: E2M1_MAX * E4M3_MAX),
    Claim("4.headroom", "4", "118.8-fold headroom over the norm bound", "right", "",
          "04-fp4", "predict-headroom", "118.8", lambda: E2M1_MAX * E4M3_MAX / math.sqrt(FLASH.head_dim), "times"),
    Claim("4.observed", "4", "268.8-fold over the largest value seen in training, about 10", "right",
          "As a quotient. The 10 is the report's.", "04-fp4", "predict-headroom", "268.8",
          lambda: E2M1_MAX * E4M3_MAX / 10, "times"),
    Claim("4.storage", "4", "FP4 is storage here, not compute", "right",
          "Every stored value is exact in BF16, and attention runs on those.", "12-kernels", "storage-not-compute",
          None, lambda: MAIN_KV.decode(MAIN_KV.encode(torch.ones(1, 512))).dtype == torch.bfloat16),
    Claim("4.after-rope", "4", "Rounding comes after RoPE, since before it the gain was marginal", "right",
          "Report 2.4.4.", "03-csa2", "visibility-check"),
    Claim("4.windows-fp8", "4", "Windows stay in FP8", "right", "E4M3, a scale for 32 channels: 528 bytes an entry.",
          "04-fp4", "measure-bytes", None, lambda: WINDOW_KV.element == "e4m3"),
    Claim("4.above-one", "4", "Norm weights well above 1 would break the argument", "right",
          "In kind. It holds up to a largest weight of 119; weights of a few hundredths fail first.",
          "04-fp4", "weights-above-one", None,
          lambda: 2 * math.sqrt(FLASH.head_dim) < E2M1_MAX * E4M3_MAX < 120 * math.sqrt(FLASH.head_dim)),
    Claim("4.no-ledger", "4", "The report prints no ledger for the 890", "right", "It prints the total.",
          "05-ledger", "question"),
    Claim("4.k-and-v", "4", "Keys and values are counted apart: a side is 288 bytes, a pair twice that", "wrong",
          "One latent is key and value. There is no second matrix that could make a value.",
          "03-csa2", "one-latent-proof", "576", lambda: ledger.Storage.published(FLASH).main.nbytes, "B"),
    Claim("4.below", "4", "An encoder alone gives 864 bytes, 3.0 % below 890", "imprecise",
          "2.9 % below; 890 is 3.0 % above.", "05-ledger", "candidate-table", "3.0",
          lambda: -candidates(FLASH)[0].percent_off, "%"),
    Claim("4.underdetermined", "4", "The exact ledger cannot be had from what is published", "wrong",
          "Of all accountings that chapter 5 enumerates one gives 890, and it uses every published choice once. "
          "Bytes a token that it leaves unexplained:", "05-ledger", "enumerate-table", "26",
          lambda: 890 - ledger.bytes_per_token(FLASH), "B"),
    Claim("4.overshoot", "4", "Any account with a full decoder tensor overshoots badly", "wrong",
          "The exact one has layer 20 in full, 356 bytes, and meets 890.", "05-ledger", "three-facts", None,
          lambda: ledger.by_source(FLASH)[-1].bytes == 356 and ledger.bytes_per_token(FLASH) > 890),
    Claim("4.consistent", "4", "The 890 are consistent with the architecture", "right", "Exactly so.",
          "05-ledger", "predict-sum", "890", lambda: ledger.bytes_per_token(FLASH), "B"),
    Claim("4.margin", "4", "A budget needs a margin of 5 % on the 890", "wrong",
          "The sum needs none. What an engine stores may need more than that: up to 4,421 bytes a token.",
          "05-ledger", "verdict", "5", lambda: 100 * abs(890 / ledger.bytes_per_token(FLASH) - 1), "%"),
    Claim("4.surcharge", "4", "And a surcharge for windows", "right", "2.7 MB for each live sequence.",
          "05-ledger", "sequence", None, lambda: ledger.window_bytes(FLASH) > 0),
    Claim("4.first", "4", "No other decomposition had been published", "not decidable",
          "The article was not aware of one. Five others give the sum of chapter 5; who came first is not known.",
          "05-ledger", "closeness-reading"),
)  # fmt: skip

_REPLAY = (
    Claim("5.exact", "5", "Exact windows take L n_win tokens, 5,120", "imprecise",
          "5,080, since a window holds its own token. And no layer but the lowest runs on all of them.",
          "06-replay", "cone-reading", "5,120", lambda: window_cone.exact(FLASH, MILLION).tokens, "tokens"),
    Claim("5.full-depth", "5", "All of them at full depth", "wrong",
          "The cone tapers: of 40 times 5,080 tokens and layers less than half has to run.",
          "06-replay", "cone-figure", None,
          lambda: window_cone.exact(FLASH, MILLION).attended > 0.9 * 40 * window_cone.exact(FLASH, MILLION).tokens),
    Claim("5.zero", "5", "V4's exact recovery was too expensive in production", "right", "Report 3.2.2.",
          "06-replay", "question"),
    Claim("5.rule", "5", "A replay from s lets position i see windows from max(s, i - W + 1) to i", "right", "",
          "06-replay", "component", None, lambda: replay.plan_replay(1000, FLASH.sliding_window).start == 1000 - 128),
    Claim("5.constant", "5", "It costs a constant 128 tokens", "right",
          "For hits longer than that; a shorter one is fed again as a whole.", "06-replay", "short-hits", "128",
          lambda: 1000 - replay.plan_replay(1000, FLASH.sliding_window).start, "tokens"),
    Claim("5.512", "5", "Exact recovery costs 512 % of a 1K prompt's prefill", "wrong",
          "A prefix of 1,000 tokens has 1,000 tokens to feed again. In full depth they cost:",
          "06-replay", "article-table", "512", lambda: exact_replay_percent(1000), "%"),
    Claim("5.0.012", "5", "A bounded replay is 0.012 % of a prompt of a million", "wrong",
          "Tokens over tokens are not operations: the last 128 queries scan a million keys.",
          "06-replay", "article-table", "0.012", lambda: bounded_replay_percent(MILLION), "%"),
    Claim("5.92", "5", "92 million-token contexts fit 80 GiB", "imprecise",
          "By global KV alone 92.04. With their windows 91 whole ones.", "01-why-bytes", "capacity-table", "92",
          lambda: int(contexts(80, live=True)), "sessions"),
    Claim("5.23", "5", "Of V4-Flash roughly 23", "right", "23.3; the article divides by four.",
          "01-why-bytes", "capacity-table", "23", lambda: contexts(80, v4()), "contexts"),
    Claim("5.four", "5", "The limiter moves by a factor of four", "right", "3.95.",
          "01-why-bytes", "capacity-table", "4", lambda: contexts(80) / contexts(80, v4()), "times"),
    Claim("5.node", "5", "40 to 80 GiB are left of an 80-GiB device after the weights", "wrong",
          "The backbone alone takes 277.8 GiB. A pool like that is a part of several devices. Left on one:",
          "01-why-bytes", "node", "40", device_rest_gib, "GiB"),
    Claim("5.only-windows", "5", "An encoder replay makes windows alone; global KV is reused as it is", "right",
          "Shown byte for byte.", "06-replay", "written"),
    Claim("5.decoder", "5", "A decoder replay bounds that half to 128 tokens", "right", "",
          "02-ced", "tail-table", "128",
          lambda: 4096 - flops.attention_begins(FLASH, 4096, "bounded")[-1], "tokens"),
    Claim("5.halves", "5", "It nearly halves the whole prefill", "right", "Per cent saved at 64K tokens.",
          "02-ced", "flops-table", "50", lambda: 100 * (1 - prefill_ratio(2**16)), "%"),
    Claim("5.store", "5", "Windows leave the store for a tenth of host memory; global KV stays 72 hours", "right",
          "Report 3.2.1. A tenth of 1 TiB holds the windows of so many sessions.", "06-replay", "pool", None,
          lambda: window_persistence.pool_sessions(FLASH, 2**40), "sessions"),
    Claim("5.depends", "5", "What is computed after a hit depends on where it was", "right",
          "Measured on nano, hit by hit.", "16-what-breaks", "sweep-figure"),
    Claim("5.adapted", "5", "Post-training simulated the replay, so the model adapted", "imprecise",
          "The decoder's. Of the encoder's, the one that depends on the hit, the report does not say so.",
          "06-replay", "divergence-reading"),
    Claim("5.evidence", "5", "The report gives experimental evidence that little is lost", "imprecise",
          'It states so ("negligible" for the decoder, "barely" for the encoder) and prints no number.',
          "06-replay", "divergence-reading"),
    Claim("5.cornerstone", "5", "A phrase of praise for the replay is the report's own", "not decidable",
          "What is quoted there is not among the facts that this book was written from.", "06-replay", "question"),
    Claim("5.inversion", "5", "Exact cost grows with the architecture, bounded cost does not", "right",
          "127 tokens for each layer, against one window.", "06-replay", "cone", None,
          lambda: window_cone.exact(FLASH, MILLION, 21).tokens < window_cone.exact(FLASH, MILLION).tokens
          and window_cone.bounded(FLASH, MILLION, 21).tokens == window_cone.bounded(FLASH, MILLION).tokens),
)  # fmt: skip

CLAIMS = _FORMAT + _REPLAY
