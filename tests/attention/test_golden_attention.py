"""Attention of every layer, part by part, against reference tensors; tests/golden/README.md has their origin.

Each layer is given the reference's own input, so a difference is this layer's. In fp32 the two implementations sum in
different orders: a few units of 2^-24 each over sums of 64 to 320 terms, so 2e-6 relative is left. Where the reference
rounds activations to bfloat16, one operation differs by half a unit of 2^-8, and a re-quantisation inside by one
FP4 or FP8 step of single values; there it also scores in bfloat16, where neighbours tie, so that a token may select
another member. Such tokens are counted and left out of the comparison.
"""

from functools import cache

import golden_io
import pytest
import torch

from ds41 import ModelConfig
from ds41.attention import Attention, SequenceMemory
from ds41.step import Step

QUANTIZATION = {"fp32": "none", "fp32_cacheq": "cache", "fp32_fullq": "full", "bf16_native": "full"}
TOLERANCE = {"fp32": 2e-6, "fp32_cacheq": 1e-5, "fp32_fullq": 1e-5, "bf16_native": 2e-2}


@cache
def config_of(model):
    return ModelConfig.from_json(golden_io.FOLDER / model / "config.json")


def relative(ours, theirs):
    theirs = theirs.float()
    return float((ours.float() - theirs).norm() / theirs.norm())


def load_attention(model, plan, mode):
    dtype = torch.bfloat16 if mode == "bf16_native" else torch.float32
    attention = Attention(config_of(model), plan, QUANTIZATION[mode], dtype)
    prefix = f"layers.{plan.index}.attn."
    weights = golden_io.weights(model)
    with torch.no_grad():
        for name, parameter in attention.named_parameters():
            official = ".".join(part for part in name.split(".") if part not in ("query", "window", "output", "keys"))
            parameter.copy_(weights[prefix + official])
    return attention


def run_layers(model, mode):
    """Every layer on the reference's input; what each produced, and the selections."""
    config, io = config_of(model), golden_io.load(model, mode)
    dtype = torch.bfloat16 if mode == "bf16_native" else torch.float32
    step = Step.of([io["input_ids"].shape[0]], [0])
    memory = SequenceMemory(config, step, rounds=mode != "fp32")
    selections, outputs, seen = {}, {}, {}
    for plan in config.layers:
        attention = load_attention(model, plan, mode)
        for name, module in attention.named_modules():
            module.register_forward_hook(
                lambda module, inputs, output, key=(plan.index, name): seen.__setitem__(key, output)
            )
        x = io[f"layers.{plan.index}.attn.in"].to(dtype)
        with torch.no_grad():
            outputs[plan.index] = attention(x, step, memory, selections).output
    return config, io, outputs, selections, seen, memory


@pytest.fixture(scope="module", params=[(m, mode) for m in golden_io.MODELS for mode in golden_io.MODES])
def run(request):
    return (request.param[1], *run_layers(*request.param))


def same_selection(selections, io, layer):
    """Which tokens select the same entries as the reference, bool [T]."""
    ours, theirs = selections[layer].entries, io[f"layers.{layer}.indexer.topk"].long()
    assert ours.shape == theirs.shape
    return (ours == theirs).all(1)


def test_output_of_every_layer(run):
    mode, config, io, outputs, selections, *_ = run
    for plan in config.layers:
        ours, theirs = outputs[plan.index], io[f"layers.{plan.index}.attn.out"]
        if plan.index_source is not None:
            same = same_selection(selections, io, plan.index_source)
            ours, theirs = ours[same], theirs[same]
        assert relative(ours, theirs) < TOLERANCE[mode], f"layer {plan.index}"


def test_selected_entries(run):
    mode, config, io, _, selections, *_ = run
    for layer in config.index_source_layer_ids:
        differing = int((~same_selection(selections, io, layer)).sum())
        assert differing <= (3 if mode == "bf16_native" else 0), f"layer {layer}"


def test_candidate_sets(run):
    mode, config, io, _, selections, *_ = run
    source = config.candidate_source_layer_id
    theirs = io[f"layers.{source}.indexer.candidates"]
    tokens, entries = theirs.shape
    pool = torch.zeros(tokens, -(-entries // config.candidate_block_size) + 1, dtype=torch.bool)
    blocks = selections[source].candidates
    pool.scatter_(1, torch.where(blocks < 0, pool.shape[1] - 1, blocks), True)
    ours = pool[:, :-1].repeat_interleave(config.candidate_block_size, dim=1)[:, :entries]
    # Only what a query can see counts: the reference marks the newest block whole.
    visible = torch.arange(entries) < torch.arange(1, tokens + 1)[:, None]
    differing = ((ours ^ theirs) & visible).any(1).float().mean()
    assert differing <= (0.2 if mode == "bf16_native" else 0)


def test_parts_of_the_sources(run):
    mode, config, io, _, _, seen, memory = run
    limit = TOLERANCE[mode]
    for layer in config.kv_source_layer_ids:
        latent = seen[layer, "compressor"].latent
        assert relative(latent, io[f"layers.{layer}.attn.compressor.latent"]) < limit
        everything = torch.arange(latent.shape[0])[None]
        first = torch.zeros(1, dtype=torch.int64)
        main = memory.main_entries(layer, first, everything)[0]
        assert relative(main, io[f"layers.{layer}.attn.compressed_kv"]) < limit
        assert relative(memory.index_keys(layer, 0, 0, latent.shape[0]), io[f"layers.{layer}.indexer.k"]) < limit


def test_parts_of_the_query_path(run):
    mode, _, io, _, _, seen, _ = run
    for layer, name in [key for key in seen if key[1] == "query"]:
        latent, queries = seen[layer, name]
        if f"layers.{layer}.attn.qr" in io:
            assert relative(latent, io[f"layers.{layer}.attn.qr"]) < TOLERANCE[mode]
        if f"layers.{layer}.attn.q" in io:
            assert relative(queries, io[f"layers.{layer}.attn.q"]) < TOLERANCE[mode]
