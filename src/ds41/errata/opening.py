"""Claims of the article's introduction and of its sections 1 and 2: the headline, the economics, the split.

Source: the article, up to its section 2.
"""

from __future__ import annotations

from ds41 import decoder_tail, economics, flops, ledger, roofline, weights
from ds41.errata.claim import Claim
from ds41.errata.values import (
    DEVICE,
    FLASH,
    MILLION,
    NODE,
    bounded_replay_percent,
    full_node_kv_share,
    halved_kv_saves,
    hit_price_share,
    kept,
    layers,
    layers_with,
    node_sessions,
    other_window,
    prefill_ratio,
    share_read,
    v4,
)
from ds41.formats import WINDOW_KV
from ds41.systems import from_config, generations


def _decode_parameters() -> int:
    return (weights.active(FLASH) + weights.head(FLASH)).parameters


def _byte_hours(name: str) -> float:
    """Bytes times hours that one turn keeps of something, at the turn that splits V4's store evenly."""
    stays = economics.residencies(FLASH, round(economics.even_split_turn()))
    return float(next(stay.byte_hours for stay in stays if stay.name == name))


_INTRODUCTION = (
    Claim("0.backbone", "0", "The backbone has 552 billion parameters", "right", "To the unit 551,566,180,464.",
          "08-moe", "predict-parameters", "552", lambda: weights.backbone(FLASH).parameters / 1e9, "B"),
    Claim("0.memory", "0", "The memory module has 196 billion", "imprecise",
          "The report's own figure, cut off and not rounded: tables and projections are 196.93 billion.",
          "09-engram", "meta-count", "196", lambda: weights.engram(FLASH).parameters / 1e9, "B"),
    Claim("0.context", "0", "Context of a million tokens", "right", "2^20 in the configuration.",
          "05-ledger", "sequence", "1", lambda: MILLION / 2**20, "Mi tokens"),
    Claim("0.bytes", "0", "Global KV is 890 bytes a token", "right",
          "Two and a half entries of 356 bytes. The sum can be read off the configuration.",
          "05-ledger", "predict-sum", "890", lambda: ledger.bytes_per_token(FLASH), "B"),
    Claim("0.quarter", "0", "A quarter of V4-Flash in device memory", "right",
          "3,514.25 over 890: a constant of two architectures.",
          "01-why-bytes", "capacity-check", "4", lambda: economics.architecture_ratio(FLASH), "times"),
    Claim("0.eighth", "0", "An eighth in the persistent store", "right",
          "It follows if windows filled half of V4's store. That half is a statement about a workload (section 1).",
          "01-why-bytes", "persistence-share", "8", lambda: economics.persistent_ratio(FLASH, 0.5), "times"),
    Claim("0.four-axes", "0", "The 890 bytes are the product of four axes", "wrong",
          "Sharing, pairing and formats make the 890. The replay has no part in it: windows are outside the figure, "
          "and any other window leaves it as it is. The split alone changes what is computed, not what is kept.",
          "05-ledger", "beyond", None,
          lambda: ledger.bytes_per_token(other_window(64)) != ledger.bytes_per_token(FLASH)),
    Claim("0.independent", "0", "The axes are independent of each other", "wrong",
          "The factor of pairing alone is 1.31; after sharing it is 1.6.",
          "03-csa2", "both-orders", None,
          lambda: kept(shared=True, compressed=False) * kept(shared=False, compressed=True)
          == kept(shared=False, compressed=False) * kept(shared=True, compressed=True)),
    Claim("0.prior-work", "0", "Each axis is known work by itself", "right",
          "So says the report's section on related work, ancestor by ancestor.", "02-ced", "family"),
    Claim("0.from-first-token", "0", "All of it was trained in from the first token", "wrong",
          "Sharing and sparse selection were. FP4, the candidate pool and the replay came in post-training (report "
          "2.3.2, 2.4.4, 3.2.2).", "15-training", "prediction"),
)  # fmt: skip

_ECONOMICS = (
    Claim("1.re-reads", "1", "Each generated token re-reads the KV cache", "imprecise",
          "True of dense attention. This model reads its windows, 512 entries a layer, and index keys: a fifth of "
          "the cache at a million tokens.", "01-why-bytes", "reads-plot", None, lambda: share_read() == 1),
    Claim("1.bandwidth", "1", "Decode is bound by bandwidth", "right",
          "For one sequence arithmetic takes a hundredth of the time of the reading.", "01-why-bytes", "devices-intro",
          None, lambda: roofline.decode_step(FLASH, MILLION, roofline.DEVICES[DEVICE], devices=NODE).bound
          == "bandwidth"),
    Claim("1.linear", "1", "Cutting cache bytes cuts decode latency almost linearly: half the bytes, half the time",
          "wrong", "Weights are nearly all that one sequence reads. The time saved at a million tokens, eight H200:",
          "01-why-bytes", "linear-test", "50", lambda: 100 * halved_kv_saves(MILLION), "%"),
    Claim("1.capacity", "1", "For agents capacity is the bigger constraint", "right",
          "A full node of million-token contexts still spends most of its reading on weights.",
          "01-why-bytes", "capacity", None, lambda: full_node_kv_share() < 0.5),
    Claim("1.prefill", "1", "8 billion parameters are active in prefill", "right", "7.893 billion.",
          "02-ced", "active", "8", lambda: weights.active(FLASH, "encoder").parameters / 1e9, "B"),
    Claim("1.decode", "1", "16 billion are active in decode", "right",
          "With the output head, which every decoded token needs; 15.47 without it, which rounds to 15.",
          "08-moe", "predict-active", "16", lambda: _decode_parameters() / 1e9, "B"),
    Claim("1.concurrency", "1", "The KV cache is what multiplies with concurrency", "right",
          "Of what is kept. What is read of the weights grows too, until every expert is in use: a step for 256 "
          "sequences reads so many times what one reads.", "08-moe", "bytes-reading", None,
          lambda: weights.read_per_step(FLASH, 256) / weights.read_per_step(FLASH), "times"),
    Claim("1.context", "1", "A million-token context costs 933 MB", "right", "",
          "01-why-bytes", "capacity-check", "933", lambda: ledger.global_bytes(FLASH, MILLION) / 1e6, "MB"),
    Claim("1.baseline", "1", "The same on V4-Flash would take 3.7 GB", "right",
          "Reached as four times 890; the true 3,514.25 bytes round to the same.",
          "01-why-bytes", "capacity-check", "3.7", lambda: v4().nbytes(MILLION) / 1e9, "GB"),
    Claim("1.sessions", "1", "That is tens against hundreds of sessions a node", "right",
          "Eight parts of 80 GB, weights and windows counted: 92 of V4-Flash, 365 of this model.",
          "01-why-bytes", "node", None, lambda: 10 <= node_sessions(v4()) < 100 <= node_sessions(from_config(FLASH))),
    Claim("1.cost", "1", "KV bytes dominate what a served session costs", "not decidable",
          "Costs are not published. In the vendor's prices tokens that were found are less than half of a long "
          "session; a price is no cost.", "01-why-bytes", "session-table", None, lambda: 100 * hit_price_share(), "%"),
    Claim("1.v4-store", "1", "V4 persisted global KV and windows alike, for over 72 hours", "right",
          "Report 3.2.1.", "06-replay", "tiers"),
    Claim("1.nearly-half", "1", "Windows alone were nearly half of V4's store", "not decidable",
          "The report says so of its own traffic. It takes turns of this many new tokens, with two checkpoints a "
          "turn; who reads long files has a smaller share.", "01-why-bytes", "persistence-workload", None,
          lambda: float(economics.even_split_turn()), "tokens"),
    Claim("1.mismatch", "1", "72 hours for a state that lives for minutes are a mismatch", "right",
          "Ten minutes are one part in 432.", "01-why-bytes", "byte-hours", None,
          lambda: _byte_hours("V4-Flash windows") > 100 * _byte_hours("V4.1-Flash windows")),
    Claim("1.pool", "1", "Windows now live in a tenth of host memory, for minutes", "right", "Report 3.2.1.",
          "06-replay", "pool"),
    Claim("1.own-baseline", "1", "1/4 and 1/8 compare with a model that was lean already", "right",
          "Against V1 the same cache is 437 times smaller.", "01-why-bytes", "systems-reading", None,
          lambda: all(g.system.bytes_per_token > v4().bytes_per_token for g in generations()[:2])),
    Claim("1.437", "1", "437-fold against V1 is no controlled comparison", "right",
          "The quotient is exact. With both caches in the same formats it is 123.",
          "01-why-bytes", "generations-table", "437", lambda: generations()[-1].overall, "times"),
    Claim("1.windows", "1", "Windows in FP8 come on top, bounded by the window", "right",
          "2,703,360 bytes a sequence, at any length. Below 3,037 tokens they are the larger part.",
          "05-ledger", "window-figure", None,
          lambda: WINDOW_KV.element == "e4m3" and ledger.window_bytes(FLASH) == 40 * 128 * 528),
)  # fmt: skip

_SPLIT = (
    Claim("2.layers", "2", "40 layers: a causal encoder of 20, a decoder of 20", "right", "",
          "03-csa2", "plan", "20", lambda: layers("encoder"), "layers"),
    Claim("2.window-only", "2", "Two layers have windows only", "right", "Layers 0 and 1.",
          "03-csa2", "plan", "2", lambda: layers(mode="window"), "layers"),
    Claim("2.global", "2", "The other 18 and all 20 have the global branch", "right", "",
          "03-csa2", "plan", "38", lambda: sum(plan.ratio > 0 for plan in FLASH.layers), "layers"),
    Claim("2.from-encoder", "2", "The decoder's global entries come from the encoder's last state", "right",
          "They are made of what enters layer 20, and no layer above writes any.", "02-ced", "one-representation",
          None, lambda: FLASH.kv_source_layer_ids[-1] == FLASH.decoder_start == layers("encoder")),
    Claim("2.projections", "2", "Each decoder layer projects them anew: 20 cheap projections", "wrong",
          "One layer projects, nineteen read what it wrote. The sentence describes the general scheme of the report's "
          "equation 1.", "02-ced", "article-projections-proof", "20",
          lambda: layers_with("compressor.wkv", "decoder"), "projections"),
    Claim("2.gates", "2", "Each of them has compression weights Z", "wrong",
          "At ratio 1 there is nothing to compress: the decoder has no gate at all.",
          "02-ced", "article-projections-proof", "20", lambda: layers_with("compressor.wgate", "decoder"), "gates"),
    Claim("2.halving", "2", "Prefill is effectively halved", "right",
          "At 64K tokens 0.504. Within a percentage point from some 14,000 to some 370,000.",
          "02-ced", "flops-table", "0.50", lambda: prefill_ratio(2**16), "of a full prefill"),
    Claim("2.order", "2", "Its cost is O(N L/2 + n_win L/2)", "imprecise",
          "The order of the linear part, as the report has it. Scores grow with the square, and of those the encoder "
          "has 3/5: a million tokens cost 0.524, endless prompts 0.6.", "02-ced", "within-reading", None,
          lambda: prefill_ratio(2**16) == prefill_ratio(MILLION)),
    Claim("2.asymmetry", "2", "Prefill runs the encoder, decode runs everything", "right",
          "Of the prompt's last 128 tokens the decoder runs as well.", "02-ced", "opening", None,
          lambda: flops.attention_begins(FLASH, 4096, "bounded")[-1] == 4096 - FLASH.sliding_window),
    Claim("2.own-windows", "2", "Every layer makes its own windows from its own state", "right", "All 40.",
          "02-ced", "window", "40", lambda: layers_with("wkv"), "layers"),
    Claim("2.not-projected", "2", "The decoder's windows cannot be projected from the encoder", "right",
          "Their rows follow from states that only the decoder makes, so its layers have to run.",
          "02-ced", "logits-reading", None,
          lambda: decoder_tail.exact_tail_rows(FLASH) > FLASH.sliding_window),
    Claim("2.exact-tail", "2", "Exact decoder windows take n_win L/2 tokens more", "wrong",
          "2,560 counts tokens times layers of the bounded prefill, which is not exact. Exact is a tail that tapers "
          "by 127 tokens a layer.", "02-ced", "tail-table", "2,560",
          lambda: decoder_tail.exact_tail_rows(FLASH), "tokens"),
    Claim("2.reach", "2", "In theory the decoder's windows reach n_win L/2 tokens back", "imprecise",
          "A window holds its own token, so each layer adds 127.", "02-ced", "reach", "2,560",
          lambda: 1 + layers("decoder") * (FLASH.sliding_window - 1), "tokens"),
    Claim("2.licence", "2", "The approximation rests on prior measurement, not on this model's training", "wrong",
          "The report simulates the decoder's replay in post-training. The article's section 5 says so too.",
          "06-replay", "divergence-reading"),
    Claim("2.right-side", "2", "For input-heavy work the prompt is the right side to make cheap", "right",
          "A token of a 64K prompt costs half of what full depth would; a replay adds a fifth of a per cent.",
          "02-ced", "turns-table", None, lambda: prefill_ratio(2**16) < 0.51 and bounded_replay_percent(2**16) < 0.25),
)  # fmt: skip

CLAIMS = _INTRODUCTION + _ECONOMICS + _SPLIT
