"""Claims of the article's section 6: hyper-connections, Engram, DSpark, kernels, experts, vision, pre-training.

Source: the article, section 6.
"""

from __future__ import annotations

import torch

from ds41 import weights
from ds41.config import ModelConfig
from ds41.engram import hash_constants
from ds41.errata.claim import Claim
from ds41.errata.values import FLASH, tensors
from ds41.mhc_traffic import SEPARATE, SINGLE_PASS, TWO_PASSES, sites
from ds41.model import Model
from ds41.training.recipe import Recipe
from ds41.vision import plan_image


def _convolves() -> bool:
    """Whether any module of the model is a convolution; nano is made of the same classes."""
    with torch.device("meta"):
        model = Model(ModelConfig.nano())
    return any("conv" in type(module).__name__.lower() for module in model.modules())


def _recipe(setting: str) -> float:
    """A setting of the library's training, which keeps the published value."""
    return Recipe.__dataclass_fields__[setting].default


def _engram_rows() -> set[int]:
    return {int(prime) for prime in hash_constants(FLASH).primes.flatten()}


_STREAMS = (
    Claim("6.mhc", "6", "mHC is a multi-head convolution", "wrong",
          "Manifold-constrained hyper-connections: no heads, no convolution, and no token sees another.",
          "07-hyper-connections", "prove-name", None, _convolves),
    Claim("6.shift", "6", "The input's coefficients shift by one block", "imprecise",
          "By one site, and a block has two: attention's are used by the FFN of the same layer.",
          "07-hyper-connections", "shift", None, lambda: sites(FLASH) == FLASH.num_hidden_layers),
    Claim("6.traffic", "6", "One pass moves (2n+2)d values", "right", "Ten vectors of d.",
          "07-hyper-connections", "predict-traffic", None, lambda: SINGLE_PASS.formula == "(2n + 2)d"),
    Claim("6.unshifted", "6", "Without the shift it would be (3n+2)d", "right", "Fused, in two passes.",
          "07-hyper-connections", "predict-traffic", None, lambda: TWO_PASSES.formula == "(3n + 2)d"),
    Claim("6.half", "6", "That halves the traffic of the original kernels", "right",
          "Against (4n+4)d of separate kernels. The (3n+2)d in the same sentence is the other comparison.",
          "07-hyper-connections", "which-half", "0.5", lambda: SINGLE_PASS.values(FLASH) / SEPARATE.values(FLASH),
          "of it"),
    Claim("6.four-kernels", "6", "The original implementation has four kernels", "right",
          "Counted with the norm.", "07-hyper-connections", "predict-kernels", "4", lambda: len(SEPARATE.kernels),
          "kernels"),
    Claim("6.expansion", "6", "The expansion factor is 4", "right", "",
          "07-hyper-connections", "why-four", "4", lambda: FLASH.hc_mult, "streams"),
    Claim("6.sinkhorn", "6", "20 Sinkhorn-Knopp iterations", "right", "",
          "07-hyper-connections", "sinkhorn-source", "20", lambda: FLASH.hc_sinkhorn_iters, "iterations"),
    Claim("6.pretraining-kernels", "6", "Pre-training keeps the separate kernels", "right", "Report 2.4.1.",
          "07-hyper-connections", "shift-reading"),
)  # fmt: skip

_MEMORY = (
    Claim("6.engram-layers", "6", "Engram: two modules, at layers 1 and 14", "right", "",
          "09-engram", "hash-figure", None, lambda: FLASH.engram_layer_ids == (1, 14)),
    Claim("6.engram-parameters", "6", "They hold 196 billion parameters", "imprecise",
          "196.93: cut off, as in the introduction.", "09-engram", "meta-count", "196",
          lambda: weights.engram(FLASH).parameters / 1e9, "B"),
    Claim("6.engram-outside", "6", "Those lie outside the 552 billion", "right", "",
          "09-engram", "not-active", "552", lambda: weights.backbone(FLASH).parameters / 1e9, "B"),
    Claim("6.engram-heads", "6", "8 hash heads", "right", "For each order.",
          "09-engram", "products", "8", lambda: FLASH.engram_n_heads, "heads"),
    Claim("6.engram-orders", "6", "N-grams of 2, 3 and 4 tokens", "right", "",
          "09-engram", "products", "4", lambda: FLASH.engram_max_ngram_size, "tokens"),
    Claim("6.engram-width", "6", "2,048 channels for each order", "right", "8 heads of 256.",
          "09-engram", "predict-sizes", "2048", lambda: FLASH.engram_n_heads * FLASH.engram_head_dim, "channels"),
    Claim("6.engram-rows", "6", "Tables of some 16 million rows", "right", "",
          "09-engram", "library-hash", "16", lambda: max(_engram_rows()) / 1e6, "M rows"),
    Claim("6.engram-primes", "6", "Their sizes are distinct primes", "right", "48 of them, none twice.",
          "09-engram", "library-hash", None, lambda: len(_engram_rows()) == hash_constants(FLASH).primes.size),
    Claim("6.engram-fp8", "6", "Tables and projections are FP8", "right",
          "A row of 256 takes 264 bytes, its scales included.",
          "09-engram", "predict-sizes", None,
          lambda: {tensors()[f"layers.1.engram.{n}.weight"].dtype for n in ("embed", "wkv")} == {"F8_E4M3"}),
    Claim("6.engram-conv", "6", "The original's short convolution is left out", "right", "No tensor of it exists.",
          "09-engram", "gate-source", None, lambda: not any("conv" in name for name in tensors())),
    Claim("6.engram-prefetch", "6", "Addresses depend on tokens alone, so rows can be fetched ahead", "right",
          "While the first block runs.", "09-engram", "ahead"),
)  # fmt: skip

_DRAFTS = (
    Claim("6.draft-blocks", "6", "DSpark drafts with three blocks", "right", "",
          "10-dspark", "predict-parameters", "3", lambda: FLASH.num_nextn_predict_layers, "blocks"),
    Claim("6.draft-window", "6", "Under a window of 128", "right", "",
          "10-dspark", "predict-parameters", "128", lambda: FLASH.sliding_window, "tokens"),
    Claim("6.draft-positions", "6", "Five positions in one pass", "right", "",
          "10-dspark", "block", "5", lambda: FLASH.dspark_block_size, "positions"),
    Claim("6.draft-heads", "6", "A Markov head and a confidence head", "right", "",
          "10-dspark", "choice-code", None, lambda: all(any(part in name for name in tensors("drafter"))
                                                        for part in ("markov_head", "confidence_head"))),
    Claim("6.draft-schedule", "6", "How much is verified follows a profiled throughput curve", "right",
          "Report 2.4.3; the library schedules so.",
          "10-dspark", "schedule"),
    Claim("6.draft-training", "6", "Trained afterwards, beside a frozen backbone", "right",
          "Report 2.4.3. The nano's drafter was trained so.", "10-dspark", "accepted"),
)  # fmt: skip

_MACHINE = (
    Claim("6.launches", "6", "A Reuse layer takes 15 kernels in prefill, 11 in decode", "not decidable",
          "The report says so too. Neither says what counts as one; ours, everything counted, takes more.",
          "12-kernels", "launches-reading"),
    Claim("6.experts", "6", "1 shared and 384 routed experts", "right", "",
          "08-moe", "predict-parameters", "385", lambda: FLASH.n_routed_experts + FLASH.n_shared_experts, "experts"),
    Claim("6.active", "6", "6 are active for a token", "right", "Six routed; with the shared one seven run.",
          "08-moe", "active-reading", "6", lambda: FLASH.num_experts_per_tok, "experts"),
    Claim("6.expert-width", "6", "An expert is 2,304 wide", "right", "",
          "08-moe", "expert", "2304", lambda: FLASH.moe_intermediate_size, "channels"),
    Claim("6.clamp", "6", "SwiGLU is clamped at 10", "right", "Three bounds: the gate is cut from above only.",
          "08-moe", "clamp", "10", lambda: FLASH.swiglu_limit),
    Claim("6.bias-speed", "6", "Router biases move by 0.001, text and image apart", "right", "",
          "08-moe", "balance-source", "0.001", lambda: _recipe("bias_speed")),
    Claim("6.sequence-loss", "6", "A sequence loss of weight 0.0001", "right", "",
          "08-moe", "sequence-loss", "0.0001", lambda: _recipe("balance")),
    Claim("6.epd", "6", "Encoder, prefill and decode pools scale on their own", "right",
          "The E is the image encoder, not the causal one.", "13-serving", "block-reading"),
    Claim("6.tower", "6", "The tower: 32 layers, width 1,024, patches of 14", "right", "",
          "11-vision", "parameters-table", None, lambda: (FLASH.vision.num_hidden_layers, FLASH.vision.hidden_size,
                                                          FLASH.vision.patch_size) == (32, 1024, 14)),
    Claim("6.unshuffle", "6", "Nine patches become one token", "right", "3 by 3.",
          "11-vision", "aligner", "9", lambda: FLASH.vision.downsample_ratio**2, "patches"),
    Claim("6.projector", "6", "A projector of two layers, 5,120 wide", "right", "",
          "11-vision", "aligner-code", "5120", lambda: tensors()["aligner.w2.weight"].shape[0], "channels"),
    Claim("6.same-cache", "6", "Pictures feed the same cache", "right",
          "A full-HD picture is a span of 968 positions.", "11-vision", "spans", None,
          lambda: plan_image(1920, 1080, FLASH.vision).span_tokens * 890 // 1000, "kB"),
    Claim("6.rotation-2d", "6", "The tower has a rotation in two dimensions and takes patches linearly", "right",
          "Sixteen angles for the row, sixteen for the column; no learned positions.", "11-vision", "rotation-code"),
    Claim("6.multimodal", "6", "Pictures were there from the beginning of pre-training", "right",
          "Report 4.2; the tower itself had been trained before.", "11-vision", "tower"),
    Claim("6.tokens", "6", "45T tokens in batches of 100.6M, sparse from the first, a million of context from 34T on",
          "right", "Report 4.2.", "15-training", "prediction"),
    Claim("6.rates", "6", "2.6e-4 to 28T, a cosine to 2.6e-5 at 40T, held to 45T", "right",
          "Report 4.2. The nano's schedule has the same shape.", "15-training", "recipe-figure"),
    Claim("6.not-bolted-on", "6", "The compression was not bolted on afterwards", "imprecise",
          "Sharing and sparse attention were there from the first token; FP4 and the pool came in post-training.",
          "15-training", "prediction"),
)  # fmt: skip

CLAIMS = _STREAMS + _MEMORY + _DRAFTS + _MACHINE
