"""What must hold of the model whatever its weights: causality, dense twins, borrowed selections, gradients, counts."""

import dataclasses

import golden_io
import golden_model
import pytest
import torch
from small_configs import with_plan

from ds41 import Model, ModelConfig, weights
from ds41.attention import Attention, SequenceMemory
from ds41.ops.selection import entries_of_blocks
from ds41.rope import layer_frequencies, rotate
from ds41.step import Step

NAME = "tinyA"
IDS = golden_io.load(NAME, "fp32")["input_ids"]


@pytest.fixture(scope="module")
def model():
    return golden_model.build(NAME, "fp32")


def relative(ours, theirs):
    return float((ours - theirs).detach().norm() / theirs.detach().norm())


def step_of(tokens, first=0):
    return Step.of([tokens], [first])


def noisy(config, tokens, seed=0):
    return torch.randn(tokens, config.hidden_size, generator=torch.Generator().manual_seed(seed))


def test_later_tokens_change_nothing_before_them(model):
    before = model(IDS[None])[0]
    for at in (1, 8, 30, 31, 79):
        changed = IDS.clone()
        changed[at] = (changed[at] + 1) % 500
        after = model(changed[None])[0]
        # An expert with another number of tokens sums in another order.
        assert relative(after[:at], before[:at]) < 1e-5
        assert relative(after[at], before[at]) > 1e-2


def test_a_sequence_cut_anywhere_ends_in_the_same_logits(model):
    whole = model(IDS[None])[0]
    for length in range(1, 80, 3):
        assert relative(model(IDS[None, :length])[0, -1], whole[length - 1]) < 1e-5


def test_rows_of_a_batch_do_not_see_each_other(model):
    other = (IDS + 11) % 500
    together = model(torch.stack((IDS, other)))
    assert relative(together[0], model(IDS[None])[0]) < 1e-5
    assert relative(together[1], model(other[None])[0]) < 1e-5


def test_an_open_group_is_seen_through_the_window_only(model):
    """A pair's first token reaches nobody through its entry before the pair is closed."""
    config = model.config
    layer = config.kv_source_layer_ids[0]
    attention = model.layers[layer].attn
    written = {}
    for tokens in (30, 31):
        memory = SequenceMemory(config, step_of(tokens), rounds=False)
        attention(noisy(config, 31)[:tokens], step_of(tokens), memory, {})
        written[tokens] = memory._main[layer]
    assert written[30].shape[0] == written[31].shape[0] == 15
    # One token more in the product may round the last bit otherwise, and does no more.
    assert torch.allclose(written[30], written[31], atol=1e-5)


def dense_attention(attention, config, x):
    """Every visible entry and the whole window under one softmax, written without the library's attention."""
    plan, tokens = attention.plan, x.shape[0]
    positions, table = torch.arange(tokens), layer_frequencies(config, plan.ratio)
    q = (attention.query.q_norm(x @ attention.query.wq_a.weight.T) @ attention.query.wq_b.weight.T).view(
        tokens, config.num_attention_heads, config.head_dim
    )
    q = rotate(q, positions[:, None], table)
    window = rotate(attention.window.kv_norm(x @ attention.window.wkv.weight.T), positions, table)
    groups = tokens // plan.ratio
    value = (x @ attention.compressor.wkv.weight.T)[: groups * plan.ratio].view(groups, plan.ratio, -1)
    if plan.ratio > 1:
        gate = (x @ attention.compressor.wgate.weight.T)[: groups * plan.ratio].view(groups, plan.ratio, -1)
        value = torch.softmax(gate, dim=1) * value
    latent = attention.compressor.norm(value.sum(1))
    entries = rotate(latent, torch.arange(groups) * plan.ratio, table)
    distance = positions[:, None] - positions
    in_window = (distance >= 0) & (distance < config.sliding_window)
    closed = torch.arange(groups) < (positions[:, None] + 1) // plan.ratio
    seen = torch.cat((in_window, closed), dim=1)
    keys = torch.cat((window, entries))
    logits = torch.einsum("thc,kc->htk", q, keys) / config.head_dim**0.5
    logits = logits.masked_fill(~seen, -torch.inf)
    sink = attention.attn_sink[:, None, None].expand(-1, tokens, 1)
    shares = torch.softmax(torch.cat((logits, sink), dim=-1), dim=-1)[..., :-1]
    heads = rotate(torch.einsum("htk,kc->thc", shares, keys), positions[:, None], table, inverse=True)
    return attention.output(heads)


@pytest.mark.parametrize("layer", [2, 6])
def test_with_room_for_every_entry_attention_is_dense(model, layer):
    config = dataclasses.replace(model.config, index_topk=80, candidate_topk_blocks=40)
    attention = Attention(config, config.layers[layer], "none", torch.float32)
    attention.load_state_dict(model.layers[layer].attn.state_dict())
    x = noisy(config, 80)
    with torch.no_grad():
        sparse = attention(x, step_of(80), SequenceMemory(config, step_of(80), rounds=False), {}).output
        assert relative(sparse, dense_attention(attention, config, x)) < 1e-5
        # With fewer than all it is not.
        few = model.layers[layer].attn
        selected = few(x, step_of(80), SequenceMemory(model.config, step_of(80), rounds=False), {}).output
    assert relative(selected, sparse) > 1e-3
    short = few(x[:8], step_of(8), SequenceMemory(model.config, step_of(8), rounds=False), {}).output
    assert relative(short, dense_attention(attention, config, x[:8])) < 1e-5


def test_borrowed_selections_and_pools(model):
    config = model.config
    step, selections = step_of(80), {}
    memory = SequenceMemory(config, step, rounds=False)
    read = {}
    original = memory.main_entries
    memory.main_entries = lambda layer, sequence, entry: (
        read.setdefault(current, []).append(entry) or original(layer, sequence, entry)
    )
    for plan in config.layers:
        current = plan.index
        model.layers[plan.index].attn(noisy(config, 80, seed=plan.index), step, memory, selections)
    for plan in config.layers:
        if plan.index_source is not None:
            assert torch.equal(torch.cat(read[plan.index]), selections[plan.index_source].entries)
    source = config.candidate_source_layer_id
    blocks, visible = selections[source].candidates, torch.arange(1, 81)
    pools = [set(row) for row in entries_of_blocks(blocks, config.candidate_block_size, visible).tolist()]
    newest = (visible - 1) // config.candidate_block_size
    assert bool((blocks == newest[:, None]).any(1).all())
    for plan in config.layers:
        if plan.mode == "reindex" and plan.candidate_source == source:
            rows = selections[plan.index].entries.tolist()
            assert all(set(row) - {-1} <= pool for row, pool in zip(rows, pools, strict=True))
    # The source itself is not filtered by its own pool.
    own = selections[source].entries.tolist()
    assert any(set(row) - {-1} - pool for row, pool in zip(own, pools, strict=True))


def test_a_window_layer_knows_distances_only(model):
    config = model.config
    attention, x = model.layers[0].attn, noisy(config, 20)
    outputs = []
    for first in (0, 5, 1000):
        step = step_of(20, first)
        memory = SequenceMemory(config, step, rounds=False)
        outputs.append(attention(x, step, memory, {}).output)
    assert relative(outputs[1], outputs[0]) < 1e-5
    # Angles of large positions lose bits in float32.
    assert relative(outputs[2], outputs[0]) < 1e-4


def test_an_all_zero_latent_is_finite(model):
    config = model.config
    layer = config.kv_source_layer_ids[0]
    attention = Attention(config, config.layers[layer], "cache", torch.float32)
    with torch.no_grad():
        attention.compressor.wkv.weight.zero_()
        attention.indexer.keys.wk.weight.zero_()
    step = step_of(80)
    memory = SequenceMemory(config, step, rounds=True)
    output = attention(noisy(config, 80), step, memory, {}).output
    assert bool(output.isfinite().all())
    assert not bool(memory._main[layer].any())


@pytest.mark.parametrize("quantization", ["none", "cache", "full"])
def test_gradients_reach_every_parameter_but_the_selection(quantization):
    torch.manual_seed(0)
    config = ModelConfig.nano()
    model = Model(config, quantization)
    ids = torch.randint(16, 272, (2, 70))
    logits = model(ids)
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    idle = set()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and (parameter.grad is None or not bool(parameter.grad.any())):
            idle.add(".".join(part for part in name.split(".") if not part.isdigit()))
        assert parameter.grad is None or bool(parameter.grad.isfinite().all()), name
    # A selection has no gradient: the indexer learns from a loss of its own. The last pre weights collapse for the
    # head, the first site's are unused, as are its comb's: all streams are still equal there.
    assert {name for name in idle if "indexer" not in name} == set()
    assert idle == {
        "layers.attn.indexer.wq_b.weight",
        "layers.attn.indexer.weights_proj.weight",
        "layers.attn.indexer.keys.wk.weight",
        "layers.attn.indexer.keys.k_norm.weight",
    }


def test_flash_on_the_meta_device_has_the_published_counts():
    config = ModelConfig.flash()
    with torch.device("meta"):
        model = Model(config, dtype=torch.bfloat16)
    counts = {True: 0, False: 0}
    for name, parameter in model.named_parameters():
        counts[".engram." in name] += parameter.numel()
    assert counts == {False: 551_566_180_464, True: 196_928_504_320}
    assert counts[False] == weights.backbone(config).parameters
    plain = model.layers[3].attn
    assert sum(parameter.numel() for parameter in plain.parameters()) == 126_617_408


@pytest.mark.parametrize("preset", ["nano", "mini"])
def test_presets_build_with_the_ledgers_counts(preset):
    config = getattr(ModelConfig, preset)()
    with torch.device("meta"):
        model = Model(config)
    total = sum(parameter.numel() for parameter in model.parameters())
    assert total == weights.backbone(config).parameters + weights.engram(config).parameters


@pytest.mark.parametrize(
    ("ratios", "kv_sources", "index_sources", "candidate"),
    [((1, 1, 1, 1), (0,), (0, 2), 0), ((0, 1, 1, 2), (1, 3), (1, 3), -1), ((0, 0, 0, 0), (), (), -1)],
)
@pytest.mark.parametrize("decoder", ["full", "bounded"])
def test_other_cadences_run(ratios, kv_sources, index_sources, candidate, decoder):
    torch.manual_seed(0)
    sizes = {field.name: getattr(ModelConfig.nano(), field.name) for field in dataclasses.fields(ModelConfig)}
    plan = ("num_hidden_layers", "compress_ratios", "engram_layer_ids", "engram_num_embeddings")
    drafts = ("dspark_target_layer_ids", "num_nextn_predict_layers")
    sizes = {name: value for name, value in sizes.items() if name not in (*plan, *drafts) and "_source_" not in name}
    model = Model(with_plan(ratios, kv_sources, index_sources, candidate, **sizes), "none")
    ids = torch.randint(0, 272, (75,))
    whole, cache = model(ids[None])[0], model.new_cache(80)
    logits = model.prefill(ids[:31], cache, decoder=decoder)[0]
    if decoder == "full" or not kv_sources:
        rest = torch.stack([model.decode(int(token), cache)[0, 0] for token in ids[31:]])
        assert relative(torch.cat((logits[None], rest)), whole[30:]) < 1e-5


def test_images_change_router_and_engram_only_where_they_are(model):
    mask = torch.zeros(1, 80, dtype=torch.bool)
    with torch.no_grad():
        plain = model(IDS[None])[0]
        none = model(IDS[None], image_mask=mask)[0]
        mask[0, 20:30] = True
        masked = model(IDS[None], image_mask=mask)[0]
    assert torch.equal(plain, none)
    assert relative(masked[:20], plain[:20]) < 1e-5
    assert relative(masked[20:30], plain[20:30]) > 1e-3
    cache = model.new_cache(80)
    chunked = model.prefill(IDS[None], cache, image_mask=mask, chunk_tokens=23)[0]
    assert relative(chunked, masked[-1]) < 1e-5


def test_a_model_without_its_token_map_says_so():
    config = golden_model.config_of(NAME)
    with pytest.raises(RuntimeError, match="token map"):
        Model(config)(IDS[None])
    with pytest.raises(ValueError, match="quantization is 'fp4'; expected one of 'none', 'cache', 'full'"):
        Model(config, "fp4")
