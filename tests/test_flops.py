"""Predicted operations against torch's counter, part by part and to the unit, and against the published sizes."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from functools import cache

import golden_model
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_configs import plans

from ds41 import ModelConfig, flops, reads, weights
from ds41.model import Model

FLASH = ModelConfig.flash()
NANO = ModelConfig.nano()
# A pool that overflows early, and a window and a selection of other lengths than a block.
NARROW = dataclasses.replace(NANO, candidate_topk_blocks=4, sliding_window=11, index_topk=9)


@cache
def model(name: str) -> Model:
    if name.startswith("tiny"):
        return golden_model.build(name, "fp32_cacheq")
    torch.manual_seed(0)
    return Model({"nano": NANO, "narrow": NARROW}[name]).requires_grad_(False)


def ids_for(chosen: Model, *shape: int) -> torch.Tensor:
    return torch.randint(16, chosen.config.vocab_size, shape, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize(
    ("name", "tokens", "chunk"),
    [
        ("nano", 32, 1024),
        ("nano", 131, 1024),
        ("nano", 200, 120),
        ("narrow", 90, 50),
        ("tinyA", 61, 1024),
        ("tinyA", 60, 25),
        ("tinyC", 61, 40),
    ],
)
@pytest.mark.parametrize("decoder", ["full", "bounded"])
def test_prefill_is_predicted_to_the_unit(name, tokens, chunk, decoder):
    chosen = model(name)
    ids, kv = ids_for(chosen, tokens), chosen.new_cache(tokens)
    counted = flops.measure(lambda: chosen.prefill(ids, kv, decoder=decoder, chunk_tokens=chunk))
    predicted = flops.prefill(chosen.config, tokens, decoder, chunk_tokens=chunk)
    assert counted.by_part == predicted.by_part
    assert counted.total == predicted.total > 0


@pytest.mark.parametrize("decoder", ["full", "bounded"])
@pytest.mark.parametrize("more", [1, 50])
def test_a_second_prompt_is_predicted_to_the_unit(decoder, more):
    chosen = model("nano")
    ids, kv = ids_for(chosen, 120 + more), chosen.new_cache(120 + more)
    chosen.prefill(ids[:120], kv, decoder=decoder)
    counted = flops.measure(lambda: chosen.prefill(ids[120:], kv, decoder=decoder))
    assert counted.by_part == flops.prefill(NANO, more, decoder, cached=120, chunk_tokens=1024).by_part


def test_decode_is_predicted_to_the_unit():
    chosen = model("narrow")
    ids, kv = ids_for(chosen, 104), chosen.new_cache(104)
    chosen.prefill(ids[:100], kv)
    counted = flops.measure(lambda: chosen.decode(ids[None, 100:], kv))
    assert counted.by_part == flops.prefill(NARROW, 4, cached=100, chunk_tokens=4, logits=4).by_part


def test_a_whole_sequence_is_predicted_to_the_unit():
    chosen = model("tinyC")
    ids = ids_for(chosen, 1, 50)
    counted = flops.measure(lambda: chosen(ids))
    assert counted.by_part == flops.prefill(chosen.config, 50, chunk_tokens=50, logits=50).by_part


def test_rounding_costs_no_products():
    counts = []
    for quantization in ("none", "full"):
        chosen = Model(NANO, quantization).requires_grad_(False)
        ids, kv = ids_for(chosen, 70), chosen.new_cache(70)
        counts.append(flops.measure(lambda c=chosen, i=ids, k=kv: c.prefill(i, k)).by_part)
    assert counts[0] == counts[1]


# What tokens see


def visible(config, plan, position, oldest=0):
    """Keys that one token attends to and index keys that it scores, from the definitions."""
    window = min(position + 1 - oldest, config.sliding_window)
    entries = (position + 1) // plan.ratio if plan.ratio else 0
    return window + min(entries, config.index_topk), reads.scored_entries(config, plan, position + 1)


@given(plans(), st.integers(0, 2500), st.integers(0, 700), st.sampled_from(("full", "bounded", "exact")))
def test_only_visible_keys_are_counted(config, cached, tokens, decoder):
    end = cached + tokens
    begins = flops.attention_begins(config, end, decoder)
    layers = flops.by_layer(config, tokens, decoder, cached=cached)
    per_score = 2 * config.index_n_heads * (config.index_head_dim + 1)
    for plan, counted in zip(config.layers, layers, strict=True):
        below = begins[plan.index - 1] if plan.index else 0
        seen = [visible(config, plan, t, max(0, below) if below > cached else 0)
                for t in range(max(cached, begins[plan.index]), end)]  # fmt: skip
        keys, scored = (sum(column) for column in zip(*seen, strict=True)) if seen else (0, 0)
        assert counted["attention over keys"] == 4 * config.num_attention_heads * config.head_dim * keys
        assert counted["index scores"] == per_score * scored


@given(plans(), st.integers(1, 3000), st.sampled_from((64, 1000)), st.sampled_from(("full", "bounded")))
def test_no_run_multiplies_less_than_is_seen(config, tokens, chunk, decoder):
    seen, run = (flops.prefill(config, tokens, decoder, chunk_tokens=size) for size in (None, chunk))
    assert all(seen[part] <= run[part] for part in flops.PARTS)
    masked = {"attention over keys", "index scores", "indexer projections"}
    assert all(seen[part] == run[part] for part in set(flops.PARTS) - masked)


@pytest.mark.parametrize("tokens", [1, 600, 4096, 2**20])
def test_a_decoded_token_does_what_the_reads_say(tokens):
    counted = flops.prefill(FLASH, 1, cached=tokens - 1)
    assert counted["attention over keys"] == reads.attention_flops(FLASH, tokens)
    heads, channels = FLASH.index_n_heads, FLASH.index_head_dim
    assert counted["index scores"] * channels == 2 * sum(reads.index_macs(FLASH, tokens).values()) * (channels + 1)
    assert counted["index scores"] % (2 * heads) == 0


# What it adds up to


@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_a_token_costs_two_operations_for_each_active_parameter(half):
    """Matrices, against the ledger of weights, which counts vectors too."""
    tokens, chosen = 2, [plan for plan in FLASH.layers if plan.half == half]
    layers = flops.by_layer(FLASH, tokens, cached=2**16)
    counted = sum((layers[plan.index] for plan in chosen), flops.Flops({}))
    products = counted.total - sum(counted[part] for part in ("attention over keys", "index scores", "stream mixing"))
    c, n = FLASH, FLASH.hc_mult
    vectors = len(chosen) * (
        c.q_lora_rank + c.head_dim + c.num_attention_heads + 2 * c.n_routed_experts
        + 2 * (n * (n + 2) + 3) + 2 * c.hidden_size
    )  # fmt: skip
    owners = [plan for plan in chosen if plan.owns_kv]
    vectors += len(owners) * (c.head_dim + c.index_head_dim)
    vectors += 2 * n * c.hidden_size * sum(plan.index in c.engram_layer_ids for plan in chosen)
    # An index key is projected once for each entry, not for each token.
    missed = sum((1 - Fraction(1, plan.ratio)) * c.head_dim * c.index_head_dim for plan in owners)
    assert Fraction(products, 2 * tokens) == weights.active(c, half).parameters - vectors - missed


def test_published_curve_of_decode_operations():
    """Report figure 2: about 20 G for a token at 4K, a quarter more at a million, FP8 weighed 1/2 and FP4 1/4."""
    weight = dict.fromkeys(flops.PARTS, 1.0)
    fp8 = ("attention projections", "indexer projections", "routed experts", "shared expert", "Engram projection")
    weight |= dict.fromkeys(fp8, 0.5) | {"index scores": 0.25}
    short, long = (
        sum(weight[part] * count for part, count in flops.prefill(FLASH, 1, cached=n - 1).by_part.items())
        for n in (4096, 2**20)
    )
    assert short == pytest.approx(20e9, rel=0.02)
    assert long / short == pytest.approx(1.25, abs=0.04)


def test_bounded_prefill_tends_to_half_and_turns_back():
    ratio = {
        tokens: flops.prefill(FLASH, tokens, "bounded").total / flops.prefill(FLASH, tokens).total
        for tokens in (2**k for k in range(7, 34))
    }
    assert ratio[128] == 1
    assert min(ratio, key=ratio.get) == 2**16
    assert ratio[2**16] == pytest.approx(0.5035, abs=5e-5)
    assert ratio[2**20] == pytest.approx(0.5237, abs=5e-5)
    # Scores are all that is left in the end: three sources see a token in two of its entries, one in each.
    assert ratio[2**33] == pytest.approx(3 / 4 / (3 / 4 + 1 / 2), abs=0.001)


def test_an_exact_tail_tapers():
    begins = flops.attention_begins(FLASH, 10_000, "exact")
    kept = [10_000 - begin for begin in begins]
    assert kept[:20] == [10_000] * 20
    assert kept[20:] == [1 + 127 * above for above in range(19, -1, -1)]
    assert kept[20] == 128 + 18 * 127 == 2414
    short = flops.attention_begins(FLASH, 1000, "exact")
    assert [1000 - begin for begin in short[20:]] == [min(1000, count) for count in kept[20:]]
    assert flops.prefill(FLASH, 1, "exact", cached=999) == flops.prefill(FLASH, 1, cached=999)


def test_bad_calls_are_named():
    with pytest.raises(ValueError, match="decoder is 'half'; expected 'full', 'bounded' or 'exact'"):
        flops.prefill(FLASH, 8, "half")
    with pytest.raises(ValueError, match="chunk_tokens is 0; expected 1 or more, or None"):
        flops.prefill(FLASH, 8, chunk_tokens=0)
    with pytest.raises(ValueError, match="tokens is -1; expected zero or more"):
        flops.prefill(FLASH, -1)
    with pytest.raises(TypeError, match=r"tokens is 1\.5; expected a whole number"):
        flops.prefill(FLASH, 1, cached=1.5)
    assert flops.prefill(FLASH, 0).total == flops.prefill(FLASH, 0, chunk_tokens=64).total > 0
