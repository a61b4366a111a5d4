"""Claims of the article's section 3: modes, cadences, the candidate pool. Its cell 4 is in ``cells``.

Source: the article, section 3.
"""

from __future__ import annotations

from ds41 import ledger, reads
from ds41.errata.claim import Claim
from ds41.errata.pool import selection_cost
from ds41.errata.values import FLASH, MILLION, POOL, index_share, layers, layers_with, tensors


def _following(half: str) -> int:
    return sum(plan.mode == "reuse" for plan in FLASH.layers if plan.half == half)


def _choices(half: str) -> int:
    return sum(plan.owns_selection for plan in FLASH.layers if plan.half == half)


def _groups(half: str) -> list[int]:
    """Layers of each selection of one half: the chooser and its followers."""
    plans = [plan for plan in FLASH.layers if plan.half == half and plan.owns_selection]
    return [sum(other.index_source == plan.index for other in FLASH.layers) for plan in plans]


CLAIMS = (
    Claim("3.three-dimensions", "3", "Width, sequence and layers are compressed jointly", "right",
          "Four of 38 layers own keys, an encoder entry stands for two tokens, an entry is one latent.",
          "03-csa2", "dimensions", None,
          lambda: len(FLASH.kv_source_layer_ids) < layers() and 2 in FLASH.compress_ratios),
    Claim("3.ancestors", "3", "IndexCache, YOCO and CLA are the ancestors", "right", "Report, related work.",
          "02-ced", "family"),
    Claim("3.decoupled", "3", "Cache sharing and index reuse are decoupled", "right",
          "Four layers own keys, eight choose.", "03-csa2", "plan-table", None,
          lambda: FLASH.kv_source_layer_ids != FLASH.index_source_layer_ids),
    Claim("3.static", "3", "Roles are assigned statically", "right", "Three lists of the configuration.",
          "03-csa2", "plan", None,
          lambda: layers(mode="full") + layers(mode="reindex") == len(FLASH.index_source_layer_ids)),
    Claim("3.full", "3", "A Full layer makes index keys from its main KV", "imprecise",
          "The report's words. The released code takes the latent before rotation and FP4, not what is stored.",
          "03-csa2", "index-key-check"),
    Claim("3.reindex", "3", "A Reindex layer reuses the preceding layer's keys", "wrong",
          "It reuses its source's. Layer 36 follows on layer 35 and reads what this layer wrote:",
          "03-csa2", "followers", "35", lambda: FLASH.layers[36].kv_source, "(layer)"),
    Claim("3.reuse", "3", "A Reuse layer does no indexer computation", "right", "It holds no indexer tensor.",
          "03-csa2", "parameter-counts", None,
          lambda: layers_with("indexer.wq_b") == layers() - layers(mode="reuse") - layers(mode="window")),
    Claim("3.own", "3", "Every layer keeps its own queries and windows", "right", "",
          "03-csa2", "common-names", "40", lambda: layers_with("wq_b"), "layers"),
    Claim("3.encoder-cadence", "3", "18 encoder layers at m = 2: three groups of one Full and five Reuse", "right", "",
          "03-csa2", "plan-table", None, lambda: _groups("encoder") == [6, 6, 6]),
    Claim("3.decoder-cadence", "3", "20 decoder layers at m = 1: five groups of four, the first Full", "right", "",
          "03-csa2", "plan-table", None, lambda: _groups("decoder") == [4] * 5 and FLASH.layers[20].mode == "full"),
    Claim("3.five", "3", "The decoder selects at exactly five layers", "right", "",
          "16-what-breaks", "count-readers", "5", lambda: _choices("decoder"), "layers"),
    Claim("3.concentrates", "3", "In the decoder the risk of a bad selection concentrates", "wrong",
          "Fifteen layers follow in each half: three choices in the encoder, five in the decoder. By the count the "
          "encoder leans harder on each.", "03-csa2", "followers", None,
          lambda: _following("decoder") / _choices("decoder") > _following("encoder") / _choices("encoder")),
    Claim("3.no-ape", "3", "V4's overlap and absolute positions are gone from the compressor", "right",
          "No tensor of that name is left among 96,085.", "03-csa2", "compressor", None,
          lambda: not any("ape" in name.split(".") for name in tensors())),
    Claim("3.pure", "3", "V4's hybrid of two attentions gave way to CSA2 alone", "right",
          "Ratios are 1 and 2, and 0 for windows only; V4 had 4 and 128.", "05-ledger", "levers-intro", None,
          lambda: set(FLASH.compress_ratios) == {0, 1, 2}),
    Claim("3.decoder-only", "3", "The candidate pool is the decoder's alone", "right", "",
          "03-csa2", "pool", None,
          lambda: all(p.half == "decoder" for p in FLASH.layers if p.candidate_source is not None)),
    Claim("3.identically", "3", "The pool is applied identically in training and inference", "wrong",
          "In post-training, not in pre-training (report 2.3.2).", "03-csa2", "cost-corrections"),
    Claim("3.blocks", "3", "At most 2,048 blocks of 8 are kept", "right", "",
          "03-csa2", "pool-check", "2,048", lambda: FLASH.candidate_topk_blocks, "blocks"),
    Claim("3.pool", "3", "The pool holds up to 16,384 positions", "right", "",
          "03-csa2", "pool-check", "16,384", lambda: POOL, "positions"),
    Claim("3.constant", "3", "A Reindex layer costs the same at 4K as at 1M", "wrong",
          "Up to 16,384 entries the pool holds them all and the cost grows. 4K over 1M:",
          "03-csa2", "cost-assertions", "1",
          lambda: reads.index_macs(FLASH, 4096)[24] / reads.index_macs(FLASH, MILLION)[24], "times"),
    Claim("3.first-full", "3", "What is left concentrates in the first Full layer", "imprecise",
          "In the decoder it does. Of the model's scores layer 20 computes 39 % at a million tokens, the three "
          "encoder sources 59 %.", "03-csa2", "cost-table", None, lambda: index_share(20) > 0.5),
    Claim("3.query-set", "3", "4.29 billion multiply-adds are for a set of queries", "imprecise",
          "The number is right, and it is for one query: every token has its own.",
          "03-csa2", "cost-corrections"),
    Claim("3.one-failure", "3", "The pool is a single point for every Reindex layer", "right",
          "All four look into the pool of layer 20. It holds that layer's own best 2,048 for certain.",
          "03-csa2", "pool-guarantee", "4", lambda: sum(p.mode == "reindex" and p.candidate_source == 20
                                                        for p in FLASH.layers), "layers"),
    Claim("3.cheaper", "3", "The pool makes the average query cheaper", "right",
          "At a million tokens, over the five selecting layers, so many times. Up to 16,384 tokens it saves nothing.",
          "17-errata", "fifth-cost", None, lambda: float(selection_cost(FLASH, MILLION).saving), "times"),
    Claim("3.mandatory", "3", "It makes the selection of the pool mandatory", "right",
          "Every query of a Reindex layer needs a pool of its own token. Without a pool the layer would scan alone.",
          "17-errata", "fifth-cost", None,
          lambda: all(p.candidate_source == 20 for p in FLASH.layers if p.mode == "reindex")),
    Claim("3.unverifiable", "3", "That selection is unverifiable", "wrong",
          "One extra scan tells which of a layer's exact top-k the pool holds. Measured here on the trained nano.",
          "17-errata", "fifth-recall"),
    Claim("3.persistent", "3", "What is shared are the expensive, persistent parts", "right",
          "Without sharing a token would keep 10,324 bytes.", "05-ledger", "counterfactuals", None,
          lambda: ledger.bytes_per_token(FLASH, shared=False) > 10 * ledger.bytes_per_token(FLASH)),
)  # fmt: skip
