"""The indexer through a cache: planted keys, tiles, lengths around every boundary, poisoned memory."""

import dataclasses

import pytest
import torch
from small_configs import with_plan

from ds41 import Model, ModelConfig
from ds41.attention import Attention, CacheMemory, Indexer, SequenceMemory
from ds41.attention.indexer import IndexQuery, rows_per_tile
from ds41.cache import Cache
from ds41.rope import layer_frequencies, rotate
from ds41.step import Step

NANO = ModelConfig.nano()
LAYER = NANO.decoder_start


def filled_cache(entries, seed=0):
    """A cache of one sequence whose index keys are random."""
    cache = Cache(NANO, entries, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    cache.reserve([entries])
    entry = torch.arange(entries)
    main = torch.randn(entries, NANO.head_dim, generator=generator)
    index = torch.randn(entries, NANO.index_head_dim, generator=generator)
    cache.write_entries(LAYER, torch.zeros_like(entry), entry, main, index)
    cache.advance([entries])
    return cache


def asked(rows, seed=1):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, NANO.index_n_heads, NANO.index_head_dim, generator=generator)
    return IndexQuery(query, torch.rand(rows, NANO.index_n_heads, generator=generator))


def test_the_best_key_of_a_far_chunk_is_selected():
    torch.manual_seed(0)
    model = Model(NANO, "none")
    indexer, x = model.layers[LAYER].attn.indexer, torch.randn(1, NANO.hidden_size)
    step = Step.of([1], [899])
    latent = torch.randn(1, NANO.q_lora_rank)
    turn = step.turn(model.layers[LAYER].attn._frequencies())
    wanted = indexer.query(x, latent, turn)
    # A key that points where a positively weighted head looks, long before the query.
    head = int(wanted.weight[0].argmax())
    cache = Cache(NANO, 900, storage="plain", dtype=torch.float32)
    entry = torch.arange(900)
    index = torch.full((900, NANO.index_head_dim), 1e-3)
    index[17] = wanted.query[0, head] * wanted.weight[0, head].sign() * 100
    for start in range(0, 900, 300):
        cache.reserve([300])
        part = entry[start : start + 300]
        main = torch.zeros(300, NANO.head_dim)
        cache.write_entries(LAYER, torch.zeros_like(part), part, main, index[part])
        cache.advance([300])
    scores = indexer.scores(wanted, 0, 900, CacheMemory(cache))
    assert int(scores.argmax()) == 17
    selection = indexer(x, latent, turn, step, CacheMemory(cache), None)
    assert 17 in selection.entries[0].tolist()
    assert selection.entries.shape == (1, NANO.index_topk)
    assert 17 // NANO.candidate_block_size in selection.candidates[0].tolist()


@pytest.mark.parametrize(("tile", "piece"), [(600, 50), (1, 64), (10_000, 333)])
def test_tiles_select_what_one_piece_selects(monkeypatch, tile, piece):
    cache = filled_cache(600)
    memory, step = CacheMemory(cache), Step.of([9], [591])
    indexer = Indexer(NANO, NANO.layers[LAYER], "cache", torch.float32)
    visible = step.position + 1
    whole = indexer._select_from_all(asked(9), step, visible, memory)
    reindexer = Indexer(NANO, NANO.layers[LAYER + 2], "cache", torch.float32)
    from_pool = reindexer._select_from_pool(asked(9), step, visible, memory, whole.candidates)
    monkeypatch.setattr("ds41.attention.indexer._TILE", tile)
    monkeypatch.setattr("ds41.attention.indexer._KEY_PIECE", piece)
    tiled = indexer._select_from_all(asked(9), step, visible, memory)
    assert torch.equal(tiled.entries, whole.entries)
    assert torch.equal(tiled.candidates, whole.candidates)
    assert torch.equal(reindexer._select_from_pool(asked(9), step, visible, memory, whole.candidates), from_pool)


def test_a_pool_of_everything_restricts_nothing():
    cache = filled_cache(120)
    memory, step = CacheMemory(cache), Step.of([3], [117])
    reindexer = Indexer(NANO, NANO.layers[LAYER + 2], "cache", torch.float32)
    visible = step.position + 1
    blocks = torch.arange(15).expand(3, -1)
    from_pool = reindexer._select_from_pool(asked(3), step, visible, memory, blocks)
    assert torch.equal(from_pool, reindexer._select_from_all(asked(3), step, visible, memory).entries)


def test_the_score_matrix_is_never_whole():
    rows, entries, two_gib = 16384, 2**20, 2**31 // 4
    assert rows * entries * (4 + 1 + 1) == 96 * 2**30
    assert rows_per_tile(entries, two_gib) == 512
    assert rows_per_tile(entries) * entries * 4 <= 2**27
    assert rows_per_tile(2**40) == 1


@pytest.fixture(scope="module")
def narrow():
    """Two sources, ratio 2 and 1, with the published window of 128."""
    torch.manual_seed(0)
    sizes = {field.name: getattr(NANO, field.name) for field in dataclasses.fields(NANO)}
    drop = ("num_hidden_layers", "compress_ratios", "num_nextn_predict_layers", "dspark_target_layer_ids")
    sizes = {k: v for k, v in sizes.items() if k not in drop and "_source_" not in k and not k.startswith("engram_")}
    return Model(with_plan((0, 2, 1), (1, 2), **(sizes | {"sliding_window": 128})), "none")


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 126, 127, 128, 129, 130, 255, 256, 257])
def test_lengths_around_every_boundary_with_poisoned_memory(narrow, length):
    ids = torch.randint(0, 272, (length + 3,), generator=torch.Generator().manual_seed(length))
    whole = narrow(ids[None])[0].detach()
    cache = narrow.new_cache(300)
    for tensor in _tensors(cache):
        tensor.fill_(torch.nan)
    logits = [narrow.prefill(ids[:length], cache)[0]]
    logits += [narrow.decode(int(token), cache)[0, 0] for token in ids[length:]]
    assert torch.allclose(torch.stack(logits), whole[length - 1 :], atol=2e-5)


def _tensors(value, depth=4):
    """Every float tensor that hangs on a cache."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        yield value
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item, depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, torch.Tensor):
        yield from _tensors(vars(value), depth)


def test_a_sequence_memory_takes_unequal_sequences():
    config = dataclasses.replace(NANO, sliding_window=4)
    step = Step.of([5, 1, 0, 3], [0, 0, 0, 0])
    memory = SequenceMemory(config, step, rounds=False)
    sequence, entry = torch.tensor([0, 0, 3]), torch.tensor([0, 1, 0])
    rows = torch.arange(3.0)[:, None].expand(3, config.head_dim)
    memory.append(1, sequence, entry, rows, rows[:, : config.index_head_dim])
    read = memory.main_entries(1, torch.tensor([0, 3, 1]), torch.tensor([[0, 1], [0, -1], [-1, -1]]))
    assert read[0, :, 0].tolist() == [0, 1]
    assert read[1, 0, 0] == 2
    assert bool(read.isfinite().all())


@pytest.mark.parametrize("layer", [1, LAYER])
def test_entries_stand_at_their_first_token_and_in_their_own_sequence(layer):
    torch.manual_seed(0)
    plan = NANO.layers[layer]
    attention = Attention(NANO, plan, "none", torch.float32)
    seen = []
    attention.compressor.register_forward_hook(lambda module, inputs, output: seen.append(output))
    step = Step.of([10, 6], [0, 0])
    memory = SequenceMemory(NANO, step, rounds=False)
    with torch.no_grad():
        attention(torch.randn(16, NANO.hidden_size), step, memory, {})
    entries, table = seen[0], layer_frequencies(NANO, plan.ratio)
    assert entries.entry.tolist() == [*range(10 // plan.ratio), *range(6 // plan.ratio)]
    expected = rotate(entries.latent, entries.entry * plan.ratio, table)
    # The second sequence's entries 1 and 2 are its own, not those at columns 1 and 2 of the whole batch.
    mine = memory.main_entries(layer, torch.tensor([1]), torch.tensor([[1, 2]]))[0]
    offset = 10 // plan.ratio
    assert torch.equal(mine, expected[offset + 1 : offset + 3])
