"""Post-training's conditions: they are what serving does, and they leave nothing behind."""

import pytest
import torch
from tiny_run import tiny_ids, tiny_model

from ds41 import load_checkpoint, save_checkpoint
from ds41.attention import SequenceMemory
from ds41.training.serving_conditions import ReplayMemory, set_conditions, stored_weights

# Three layers above the last source, so that what a window lost reaches further up.
DEEP = {
    "num_hidden_layers": 7,
    "compress_ratios": (0, 2, 2, 1, 1, 1, 1),
    "index_source_layer_ids": (1, 3, 5),
}
LENGTH = 34


@pytest.fixture(scope="module")
def deep():
    return tiny_model("none", **DEEP).requires_grad_(False)


def replayed(model, ids, begins, rounds):
    begins = torch.tensor(begins)
    return model(ids, memory=lambda step: ReplayMemory(model.config, step, rounds, begins))


def served(model, ids, split):
    """Logits from the last token of a bounded prefill of ``split`` tokens on, the others decoded in two steps."""
    cache = model.new_cache(max_tokens=len(ids))
    logits = model.prefill(ids[:split], cache, decoder="bounded")
    parts = [part for part in (ids[split : split + 3], ids[split + 3 :]) if len(part)]
    return torch.cat((logits, *(model.decode(part, cache)[0] for part in parts)))


@pytest.mark.parametrize("splits", [(9, 17, 33), (8, 12, 30), (1, 5, 24)])
def test_rows_are_what_a_bounded_prefill_and_decoding_give(deep, splits):
    ids, window = tiny_ids(len(splits), LENGTH, seed=1), deep.config.sliding_window
    logits = replayed(deep, ids, [max(0, split - window) for split in splits], rounds=False)
    for row, split in enumerate(splits):
        assert torch.allclose(logits[row, split - 1 :], served(deep, ids[row], split), atol=1e-4)


def test_rounded_rows_are_what_a_packed_cache_gives():
    model = tiny_model("cache", **DEEP).requires_grad_(False)
    ids, window, split = tiny_ids(1, LENGTH, seed=2), model.config.sliding_window, 20
    logits = replayed(model, ids, [split - window], rounds=True)[0, split - 1 :]
    assert torch.allclose(logits, served(model, ids[0], split), atol=1e-3)


def test_windows_that_begin_anew_change_what_follows_and_nothing_before(deep):
    ids = tiny_ids(2, LENGTH, seed=3)
    plain, begun = deep(ids), replayed(deep, ids, [20, 11], rounds=False)
    for row, begin in enumerate((20, 11)):
        assert torch.allclose(plain[row, :begin], begun[row, :begin], atol=1e-5)
        assert not torch.allclose(plain[row, begin:], begun[row, begin:], atol=1e-3)


@pytest.mark.parametrize("rounds", [False, True])
def test_beyond_the_row_nothing_changes(deep, rounds):
    ids = tiny_ids(2, LENGTH, seed=4)
    plain = deep(ids, memory=lambda step: SequenceMemory(deep.config, step, rounds))
    assert torch.equal(replayed(deep, ids, [LENGTH, LENGTH + 100], rounds), plain)
    assert torch.equal(replayed(deep, ids, [0, 0], rounds), plain)


@pytest.fixture
def model():
    return tiny_model("cache")


def values_of(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(first, second):
    return [name for name in first if not torch.equal(first[name], second[name])]


def test_stored_weights_are_those_of_a_checkpoint(model, tmp_path):
    save_checkpoint(model, tmp_path / "model")
    loaded = values_of(load_checkpoint(tmp_path / "model", dtype=torch.float32))
    full = values_of(model)
    with stored_weights(model):
        inside = values_of(model)
    assert inside.keys() == loaded.keys()
    assert same(inside, loaded) == []
    changed = same(inside, full)
    assert any(".experts." in name for name in changed)
    assert "embed.weight" in changed
    assert "layers.1.engram.embed.weight" in changed
    assert same(full, values_of(model)) == []


def test_weights_come_back_after_an_exception(model):
    full = values_of(model)
    with pytest.raises(KeyError), stored_weights(model):
        raise KeyError("a step failed")
    assert same(full, values_of(model)) == []


def test_weights_come_back_where_one_cannot_be_stored(model):
    # The last matrix: all others have been rounded when it is refused.
    name = [name for name, parameter in model.named_parameters() if parameter.dim() == 2 and "output" in name][-1]
    model.get_parameter(name).data[0, 0] = torch.nan
    full = values_of(model)
    with pytest.raises(ValueError, match=r"finite|NaN|nan"), stored_weights(model):
        pass
    assert [other for other in same(full, values_of(model)) if other != name] == []


def test_gradients_arrive_at_the_full_weights(model, tmp_path):
    save_checkpoint(model, tmp_path / "model")
    loaded = load_checkpoint(tmp_path / "model", dtype=torch.float32).requires_grad_()
    ids = tiny_ids(2, 20)
    loaded(ids).logsumexp(-1).sum().backward()
    full = values_of(model)
    with stored_weights(model):
        model(ids).logsumexp(-1).sum().backward()
    assert same(full, values_of(model)) == []
    reached = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert len(reached) > 50
    for name, gradient in reached.items():
        assert torch.equal(gradient, loaded.get_parameter(name).grad), name


def test_nothing_is_rounded_where_it_is_not_asked_for(model):
    full = values_of(model)
    with stored_weights(model, apply=False):
        assert same(full, values_of(model)) == []


@pytest.mark.parametrize("graded", [False, True])
def test_inside_gradients_are_on_where_they_were_on(model, graded):
    with torch.set_grad_enabled(graded), stored_weights(model):
        assert torch.is_grad_enabled() == graded


@pytest.mark.parametrize(
    ("serving", "rounds", "expected"),
    [(True, True, (True, True)), (True, False, (True, False)), (False, True, (False, False))],
)
def test_conditions_switch_pool_and_rounding(model, serving, rounds, expected):
    set_conditions(model, serving, rounds)
    publishes, rounded = expected
    for layer in (1, 3, 4):
        indexer = model.layers[layer].attn.indexer
        assert indexer.rounds_query == rounded
        assert indexer.publishes == (publishes and layer == 3)


def test_a_published_pool_restricts_the_reindex_layer(model):
    ids, seen = tiny_ids(2, LENGTH), []
    model.layers[4].attn.indexer.register_forward_hook(lambda _, given, out: seen.append(given[5]))
    for serving in (True, False):
        set_conditions(model, serving)
        model(ids)
    assert seen[0].shape == (2 * LENGTH, model.config.candidate_topk_blocks)
    assert seen[1] is None
