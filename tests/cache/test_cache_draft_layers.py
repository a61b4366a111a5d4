"""Windows of draft layers: they go where the model's own windows go - copies, snapshots, back and forth again."""

import dataclasses

import pytest
import torch
from cache_steps import TINY, WINDOW, poison, rows, step
from drafting_model import CONFIG, pair, prompt

from ds41.cache import Cache, CacheError, WindowSnapshot
from ds41.formats import WINDOW_KV
from ds41.replay import feed_again

FIRST, DRAFTS, ROLLBACK = TINY.num_hidden_layers, 2, 3
EVERY_STORAGE = pytest.mark.parametrize("storage", ["packed", "fake", "plain"])
LENGTH = 40


def cache_of(draft_layers=DRAFTS, batch=1, storage="fake", **options) -> Cache:
    options = {"rollback": ROLLBACK, "page_tokens": 4, "dtype": torch.float32} | options
    return Cache(TINY, 64, batch, storage=storage, draft_layers=draft_layers, **options)


def feed(cache: Cache, tokens: list[int], row: int = 0) -> None:
    """A step of the model, and what a drafter leaves of it."""
    first = cache.lengths[row]
    step(cache, {row: tokens})
    position = torch.arange(first, first + len(tokens))
    for layer in range(FIRST, FIRST + cache.draft_layers):
        cache.write_window(layer, torch.full_like(position, row), position, rows(torch.tensor(tokens), 900 + layer))


def held(cache: Cache, layer: int, row: int = 0) -> torch.Tensor:
    """The window of a layer, oldest first, where it is valid."""
    length = cache.lengths[row]
    first = max(0, length - WINDOW, int(cache.window_start[layer, row]))
    position = torch.arange(first, length)
    return cache.read_window(layer, torch.full_like(position, row), position)


def expected(tokens: list[int], layer: int, storage: str = "fake") -> torch.Tensor:
    made = rows(torch.tensor(tokens), 900 + layer)
    return made if storage == "plain" else WINDOW_KV.fake_quantize(made)


@EVERY_STORAGE
def test_rows_come_back_and_layers_do_not_mix(storage):
    cache = cache_of(storage=storage, batch=2)
    poison(cache)
    feed(cache, list(range(10, 22)), 1)
    feed(cache, list(range(3)), 0)
    for layer in (FIRST, FIRST + 1):
        assert torch.equal(held(cache, layer, 1), expected(list(range(17, 22)), layer, storage))
        assert torch.equal(held(cache, layer, 0), expected(list(range(3)), layer, storage))


def test_their_rows_are_counted_and_others_refused():
    plain, cache = cache_of(0), cache_of()
    assert (plain.draft_layers, cache.draft_layers) == (0, DRAFTS)
    assert cache.window_bytes * FIRST == plain.window_bytes * (FIRST + DRAFTS)
    assert (cache.open_group_bytes, cache.history_bytes) == (plain.open_group_bytes, plain.history_bytes)
    zero = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(CacheError, match=f"layer {FIRST + 2} has no window; there are layers 0 to {FIRST + 1}"):
        cache.read_window(FIRST + 2, zero, zero)
    with pytest.raises(CacheError, match=f"layer {FIRST} has no window; there are layers 0 to {FIRST - 1}"):
        plain.write_window(FIRST, zero, zero, torch.zeros(1, TINY.head_dim))
    with pytest.raises(CacheError, match="draft_layers is -1; expected 0 or more"):
        cache_of(-1)


@EVERY_STORAGE
def test_a_snapshot_brings_them_back(storage):
    cache = cache_of(storage=storage)
    feed(cache, list(range(21)))
    snapshot = WindowSnapshot.from_bytes(cache.window_snapshot(0).to_bytes())
    assert snapshot.layers == tuple(range(FIRST + DRAFTS))
    other = cache_of(storage=storage, pool=cache.pool, page_tokens=None)
    poison(other)
    other.adopt(0, cache.pages_of(0), 21)
    assert len(held(other, FIRST)) == 0
    other.restore_windows(0, snapshot)
    for layer in range(FIRST + DRAFTS):
        assert torch.equal(held(other, layer), held(cache, layer))
        assert len(held(other, layer)) == WINDOW
    feed(other, [90, 91])
    assert torch.equal(held(other, FIRST), expected([18, 19, 20, 90, 91], FIRST, storage))


def test_a_snapshot_of_some_layers_leaves_the_others():
    cache = cache_of()
    feed(cache, list(range(21)))
    drafts, model = cache.window_snapshot(0, [FIRST, FIRST + 1]), cache.window_snapshot(0, range(FIRST))
    assert drafts.layers == (FIRST, FIRST + 1)
    # A draft layer pools nothing, whatever number it has.
    assert drafts.open_groups == {}
    other = cache_of(pool=cache.pool, page_tokens=None)
    other.adopt(0, cache.pages_of(0), 21)
    other.restore_windows(0, drafts)
    assert torch.equal(held(other, FIRST), held(cache, FIRST))
    assert other.window_start[:FIRST, 0].tolist() == [21] * FIRST
    other.restore_windows(0, model)
    assert torch.equal(held(other, 0), held(cache, 0))


def test_snapshots_between_caches_with_and_without():
    """Without draft layers: theirs begin anew. With them, where there are none: refused, nothing changed."""
    plain, cache = cache_of(0), cache_of()
    for each in (plain, cache):
        feed(each, list(range(21)))
    other, bare = cache_of(pool=cache.pool, page_tokens=None), cache_of(0, pool=plain.pool, page_tokens=None)
    other.adopt(0, cache.pages_of(0), 21)
    other.restore_windows(0, plain.window_snapshot(0))
    assert other.window_start[FIRST:, 0].tolist() == [21] * DRAFTS
    assert len(held(other, FIRST - 1)) == WINDOW
    bare.adopt(0, plain.pages_of(0), 21)
    with pytest.raises(CacheError, match=f"layer {FIRST} has no window"):
        bare.restore_windows(0, cache.window_snapshot(0))
    assert bare.window_start[:, 0].tolist() == [21] * FIRST


def test_a_fork_has_rows_of_its_own():
    cache = cache_of(batch=2)
    feed(cache, list(range(17)))
    cache.fork(0, 1)
    for layer in (FIRST, FIRST + 1):
        assert torch.equal(held(cache, layer, 1), held(cache, layer, 0))
    feed(cache, [70, 71], 1)
    assert torch.equal(held(cache, FIRST, 0), expected(list(range(12, 17)), FIRST))
    assert torch.equal(held(cache, FIRST, 1), expected([14, 15, 16, 70, 71], FIRST))


@pytest.mark.parametrize("back", range(1, ROLLBACK + 1))
def test_tokens_taken_back_leave_the_rows_before_them(back):
    cache = cache_of()
    feed(cache, list(range(20)))
    feed(cache, [80 + number for number in range(back)])
    cache.truncate(0, 20)
    for layer in (FIRST, FIRST + 1):
        assert torch.equal(held(cache, layer), expected(list(range(15, 20)), layer))
    with pytest.raises(CacheError, match="rollback is 3"):
        cache.truncate(0, 20 + back - ROLLBACK - 1)


def test_tokens_fed_again_keep_the_rows_that_are_there():
    """In layers whose rows reach back to the start; a draft layer whose rows do not begins anew there."""
    cache = cache_of()
    feed(cache, list(range(20)))
    cache.window_start[FIRST + 1, 0] = 19
    cache.rewind(0, 20 - WINDOW)
    assert cache.window_start[FIRST:, 0].tolist() == [20 - WINDOW - ROLLBACK, 20 - WINDOW]
    assert cache.window_kept[FIRST:, 0].tolist() == [20, 20 - WINDOW]
    # Other rows than before, to tell who is kept.
    position = torch.arange(20 - WINDOW, 20)
    cache.reserve([WINDOW])
    for layer in (FIRST, FIRST + 1):
        cache.write_window(layer, torch.zeros_like(position), position, rows(position + 300, 900 + layer))
    cache.advance([WINDOW])
    assert torch.equal(held(cache, FIRST), expected(list(range(15, 20)), FIRST))
    assert torch.equal(held(cache, FIRST + 1), expected(list(range(315, 320)), FIRST + 1))


def test_a_row_that_is_emptied_shows_nothing_of_the_one_before():
    cache = cache_of()
    feed(cache, list(range(20)))
    cache.reset(0)
    feed(cache, [50])
    assert torch.equal(held(cache, FIRST), expected([50], FIRST))


@pytest.fixture(scope="module")
def both():
    return pair()


def guessed(model, drafter, cache, row=0) -> torch.Tensor:
    return drafter.draft(model, cache, [7], rows=(row,)).logits


@pytest.fixture
def filled(both):
    model, drafter = both
    cache = drafter.new_cache(model, 60, batch=2, page_tokens=16)
    model.prefill([prompt(LENGTH), []], cache)
    return cache, guessed(model, drafter, cache)


def test_drafts_after_a_fork_and_after_tokens_taken_back(both, filled):
    model, drafter = both
    cache, before = filled
    cache.fork(0, 1)
    model.extend([torch.tensor([1, 2, 3, 4]), torch.tensor([], dtype=torch.int64)], cache, ())
    assert torch.equal(guessed(model, drafter, cache, 1), before)
    assert not torch.allclose(guessed(model, drafter, cache), before, atol=1e-3)
    cache.truncate(0, LENGTH)
    assert torch.equal(guessed(model, drafter, cache), before)


def test_drafts_after_a_snapshot_and_after_tokens_fed_again(both, filled):
    model, drafter = both
    cache, before = filled
    other = drafter.new_cache(model, 60, pool=cache.pool)
    other.adopt(0, cache.pages_of(0), LENGTH)
    other.restore_windows(0, WindowSnapshot.from_bytes(cache.window_snapshot(0).to_bytes()))
    assert torch.equal(guessed(model, drafter, other), before)
    reach = CONFIG.sliding_window
    other.rewind(0, LENGTH - reach)
    model.prefill([prompt(LENGTH)[-reach:]], other, decoder="bounded")
    assert torch.equal(guessed(model, drafter, other), before)
    replayed = drafter.new_cache(model, 60, pool=cache.pool)
    replayed.adopt(0, cache.pages_of(0), LENGTH)
    replayed.rewind(0, LENGTH - reach)
    model.prefill([prompt(LENGTH)[-reach:]], replayed, decoder="bounded")
    assert replayed.window_start[CONFIG.num_hidden_layers :, 0].tolist() == [LENGTH - reach] * 2
    assert torch.isfinite(guessed(model, drafter, replayed)).all()


@pytest.mark.parametrize("decoder", ["bounded", "exact"])
def test_a_prompt_in_two_calls_leaves_one_window(both, decoder):
    """The second is shorter than a window, so the rows of the first are still seen, and none from before its tail."""
    model, drafter = both
    ids, cache = prompt(LENGTH), drafter.new_cache(model, 60)
    model.prefill([ids[:-3]], cache, decoder)
    model.prefill([ids[-3:]], cache, decoder)
    start = LENGTH - 3 - CONFIG.sliding_window
    assert cache.window_start[CONFIG.num_hidden_layers :, 0].tolist() == [start] * 2
    if decoder == "exact":
        whole = drafter.new_cache(model, 60)
        model.prefill([ids], whole)
        ours, theirs = guessed(model, drafter, cache), guessed(model, drafter, whole)
        assert torch.allclose(ours, theirs, atol=1e-3)


def test_a_drafter_of_another_number_of_layers_is_refused(both):
    model, _ = both
    cache = model.new_cache(60, draft_layers=2)
    model.prefill([prompt(20)], cache)
    smaller = dataclasses.replace(CONFIG, num_nextn_predict_layers=1)
    with pytest.raises(CacheError, match="windows for 2 draft layers, the drafter 1 layers"):
        pair(smaller)[1].draft(model, cache, [1])


@torch.no_grad()
def test_tokens_fed_again_after_others_were_taken_back():
    """Window rows of tokens that were taken back are not kept for those that come in their place."""
    model, drafter = pair()
    ids = prompt(52)
    cache, untouched = (drafter.new_cache(model, 70) for _ in range(2))
    for each in (cache, untouched):
        model.prefill([ids[:40]], each)
    model.decode([7, 8, 9, 10], cache)
    cache.truncate(0, 40)
    for each in (cache, untouched):
        feed_again(model, each, 0, ids, 39)
    logits = [torch.cat([model.decode([[token]], each)[0] for token in ids[39:]]) for each in (cache, untouched)]
    assert torch.equal(*logits)
    assert torch.equal(*(drafter.draft(model, each, [5]).logits for each in (cache, untouched)))
