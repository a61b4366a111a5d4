"""Bounded replay through the packed cache, beside the same computed without a cache.

The model is the reference's tinyA: window 8, top-k 8, a pool of 5 blocks of 4, ratio 2 and 1, Engram with three ids of
history, so 80 tokens exceed every one of them. Without rounding two ways of summing differ by 1e-5 relative.
"""

import golden_io
import golden_model
import numpy as np
import pytest
import torch
from replay_reference import replayed_logits

from ds41 import ModelConfig
from ds41.cache import CacheError, PagePool, WindowSnapshot
from ds41.decoder_tail import tail_starts
from ds41.flops import attention_begins
from ds41.replay import begin_replay, exact_replay_tokens, exact_tail_rows, feed_again, plan_replay, snapshot_layers

NAME = "tinyA"
CONFIG = golden_model.config_of(NAME)
WINDOW = CONFIG.sliding_window
IDS = golden_io.load(NAME, "fp32")["input_ids"]
TOKENS = len(IDS)
# Longer than layers times window, for what has to be exact.
LONG = torch.randint(3, CONFIG.vocab_size, (140,), generator=torch.Generator().manual_seed(2))
# None, one token, around one and two windows, odd ones, around a page of 16, all but one token, everything.
HITS = (0, 1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW - 1, 2 * WINDOW, 31, 32, 33, 45, TOKENS - 1, TOKENS)


@pytest.fixture(scope="module")
def exact():
    return golden_model.build(NAME, "fp32")


@pytest.fixture(scope="module")
def rounded():
    return golden_model.build(NAME, "fp32_cacheq")


def relative(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


def pool_of(model, pages=40):
    storage = "plain" if model.quantization == "none" else "packed"
    return PagePool(CONFIG, pages, page_tokens=16, storage=storage, dtype=model.dtype)


def prefix(model, pool, tokens, ids=IDS):
    """A cache that holds the first tokens, computed cold, and their pages."""
    cache = model.new_cache(len(ids) + 40, pool=pool)
    if tokens:
        model.prefill(ids[:tokens], cache)
    return cache, cache.pages_of(0)


def poison(cache):
    """Every private ring as if another sequence had left NaN in it."""
    for ring in (cache._windows, *cache._open.values()):
        for part in ring.parts:
            part.fill_(255 if part.dtype == torch.uint8 else torch.nan)


def resumed(model, hit, plan=None, short_hits="replay", ids=IDS, rollback=None, **options):
    """A cache that replayed after a hit, and the logits of the last token."""
    pool = pool_of(model)
    owner, pages = prefix(model, pool, hit, ids)
    cache = model.new_cache(len(ids) + 40, pool=pool, rollback=rollback)
    poison(cache)
    plan = plan_replay(hit, WINDOW, short_hits) if plan is None else plan
    begin_replay(model, cache, 0, ids, pages, plan)
    start = plan.start if plan.adopts else 0
    del owner
    return cache, model.prefill(ids[start:], cache, **options)[0]


def pages_bytes(pool, pages):
    if pool.data is not None:
        return pool.data[pages].clone()
    return torch.cat([part[pages].flatten() for rows in pool._all_rows() for part in rows.parts])


def test_plans_as_published():
    lengths = (0, 1, 127, 128, 129, 255, 256, 4096)
    plans = [plan_replay(hit, 128) for hit in lengths]
    assert [plan.adopts for plan in plans] == [False] * 4 + [True] * 4
    wanted = [(0, 0), (0, 1), (0, 127), (0, 128), (1, 129), (127, 255), (128, 256), (3968, 4096)]
    assert [(plan.start, plan.hit) for plan in plans] == wanted
    assert [plan.replayed for plan in plans] == [0, 0, 0, 0, 128, 128, 128, 128]
    assert [plan_replay(hit, 128, "replay").replayed for hit in lengths] == [0, 1, 127, 128, 128, 128, 128, 128]
    assert exact_replay_tokens(ModelConfig.flash()) == 5120
    assert exact_tail_rows(ModelConfig.flash()) == 2414


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 128), "hit is -1"),
        ((5, 0), "window is 0"),
        ((5, 8, "drop"), "short_hits is 'drop'"),
        ((5, 8, "replay", -2), "tokens is -2"),
    ],
)
def test_plans_that_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan_replay(*arguments)


@pytest.mark.parametrize("hit", HITS)
def test_replay_is_what_its_definition_gives(exact, hit):
    start = max(0, hit - WINDOW)
    wanted = replayed_logits(exact, IDS, hit, start)[-1] if hit else exact(IDS[None])[0, -1]
    cache, logits = resumed(exact, hit)
    assert cache.lengths == (TOKENS,)
    assert relative(logits, wanted) < 1e-5


@pytest.mark.parametrize("hit", [WINDOW + 1, 31, 45, TOKENS])
def test_replay_over_packed_pages(rounded, hit):
    wanted = replayed_logits(rounded, IDS, hit, hit - WINDOW)[-1]
    assert relative(resumed(rounded, hit)[1], wanted) < 2e-3


@pytest.mark.parametrize("hit", [hit for hit in HITS if hit <= WINDOW])
def test_short_hits_are_recomputed_bit_by_bit(rounded, hit):
    cold = rounded.new_cache(120)
    wanted = rounded.prefill(IDS, cold)[0]
    cache, logits = resumed(rounded, hit, short_hits="recompute")
    assert torch.equal(logits, wanted)
    assert torch.equal(rounded.decode(7, cache), rounded.decode(7, cold))


@pytest.mark.parametrize("hit", [h for h in HITS if h])
@pytest.mark.parametrize("decoder", ["bounded", "exact"])
def test_shared_pages_stay_as_they_were(rounded, hit, decoder):
    pool = pool_of(rounded)
    owner, pages = prefix(rounded, pool, hit)
    before = pages_bytes(pool, pages)
    cache = rounded.new_cache(120, pool=pool)
    begin_replay(rounded, cache, 0, IDS, pages, plan_replay(hit, WINDOW, "replay"))
    rounded.prefill(IDS[max(0, hit - WINDOW) :], cache, decoder=decoder, chunk_tokens=5)
    rounded.decode([3, 4, 5], cache)
    assert torch.equal(pages_bytes(pool, pages), before)
    # Whole pages are shared still; the last one in part was copied before anything new was written to it.
    shared = hit // 16
    assert cache.pages_of(0)[:shared] == pages[:shared]
    if hit % 16 and hit < TOKENS:
        assert cache.pages_of(0)[shared] != pages[shared]
    del owner


@pytest.mark.parametrize("decoder", ["bounded", "exact"])
def test_the_decoder_side_changes_nothing_that_is_stored_globally(rounded, decoder):
    full, other = rounded.new_cache(120), rounded.new_cache(120)
    rounded.prefill(IDS, full)
    rounded.prefill(IDS, other, decoder=decoder)
    for source in full.pool.layout.sources:
        entries, first = torch.arange(TOKENS // source.ratio)[None], torch.zeros(1, dtype=torch.int64)
        for read in ("gather_main", "gather_index"):
            ours, theirs = (
                getattr(other, read)(source.layer, first, entries),
                getattr(full, read)(source.layer, first, entries),
            )
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("hit", [31, TOKENS - 3])
@pytest.mark.parametrize("decoder", ["full", "bounded"])
@pytest.mark.parametrize("chunk", [3, 8, 100])
def test_any_chunks_give_the_same(exact, hit, decoder, chunk):
    _, wanted = resumed(exact, hit, decoder=decoder)
    cache, logits = resumed(exact, hit, decoder=decoder, chunk_tokens=chunk)
    assert relative(logits, wanted) < 1e-5
    assert torch.isfinite(exact.decode(5, cache)).all()


def test_the_two_replays_compose(exact):
    # The last window of the prompt lies in the replayed tokens, in part: both bounds hold at once.
    hit, tail = TOKENS - 3, TOKENS - WINDOW
    cache, _ = resumed(exact, hit, decoder="bounded")
    first, above = hit - WINDOW, CONFIG.decoder_start + 1
    assert cache.window_start[:above, 0].tolist() == [first] * above
    assert cache.window_start[above:, 0].tolist() == [max(first, tail)] * (CONFIG.num_hidden_layers - above)


def test_exact_replay_gives_the_windows_back(exact):
    hit, tokens = 120, exact_replay_tokens(CONFIG)
    assert tokens < hit
    wanted = exact.prefill(LONG, exact.new_cache(180))[0]
    _, recovered = resumed(exact, hit, plan_replay(hit, WINDOW, tokens=tokens), ids=LONG)
    _, bounded = resumed(exact, hit, ids=LONG)
    assert relative(recovered, wanted) < 1e-5
    assert relative(bounded, wanted) > 1e-3


def test_how_few_tokens_are_exact(exact):
    # Every layer reaches back a window less one token, so the least number is a little below layers times window.
    hit, least = 120, WINDOW + (CONFIG.num_hidden_layers - 1) * (WINDOW - 1)
    assert least < exact_replay_tokens(CONFIG)
    wanted = exact.prefill(LONG, exact.new_cache(180))[0]
    plans = [plan_replay(hit, WINDOW, tokens=tokens) for tokens in (least, 2 * WINDOW)]
    errors = [relative(resumed(exact, hit, plan, ids=LONG)[1], wanted) for plan in plans]
    assert errors[0] < 1e-5 < errors[1]


@pytest.mark.parametrize("chunk", [6, 1000])
def test_the_exact_tail_is_the_full_prefill(exact, chunk):
    full, tail = exact.new_cache(120), exact.new_cache(120)
    wanted = exact.prefill(IDS, full)[0]
    assert exact_tail_rows(CONFIG) < TOKENS
    assert relative(exact.prefill(IDS, tail, decoder="exact", chunk_tokens=chunk)[0], wanted) < 1e-5
    for token in (5, 6, 7):
        assert relative(exact.decode(token, tail), exact.decode(token, full)) < 1e-5
    bounded = exact.new_cache(120)
    assert relative(exact.prefill(IDS, bounded, decoder="bounded")[0], wanted) > 1e-4


@pytest.mark.parametrize("decoder", ["full", "bounded", "exact"])
def test_tails_are_those_that_the_operations_are_counted_for(decoder):
    for config in (ModelConfig.flash(), CONFIG):
        for tokens in (1, 100, 5000):
            starts = tail_starts(config, 0, tokens, decoder)
            begins = attention_begins(config, tokens, decoder)
            assert all(begins[layer] == max(0, start) for layer, start in starts.items())


@pytest.mark.parametrize("drafts", [0, 1, 4, 5])
@pytest.mark.parametrize("hit", [44, 45])
def test_rejected_drafts_leave_no_trace(rounded, hit, drafts):
    plain, _ = resumed(rounded, hit)
    drafted, _ = resumed(rounded, hit, rollback=5)
    rounded.decode([[3] + [9] * drafts], drafted)
    drafted.truncate(0, TOKENS + 1)
    rounded.decode([[3]], plain)
    assert torch.allclose(rounded.decode(8, drafted), rounded.decode(8, plain), rtol=1e-3, atol=1e-4)


def test_sequences_of_a_batch_replay_on_their_own(exact):
    hits = (0, 5, 31, 60, TOKENS)
    pool = pool_of(exact, 80)
    owners = [prefix(exact, pool, hit) for hit in hits]
    cache = exact.new_cache(120, len(hits), pool=pool)
    poison(cache)
    rows = []
    for row, (hit, (_, pages)) in enumerate(zip(hits, owners, strict=True)):
        plan = plan_replay(hit, WINDOW, "replay")
        begin_replay(exact, cache, row, IDS, pages, plan)
        rows.append(IDS[plan.start if plan.adopts else 0 :])
    logits = exact.prefill(rows, cache, chunk_tokens=9)
    for row, hit in enumerate(hits):
        assert relative(logits[row], resumed(exact, hit)[1]) < 1e-5


@pytest.mark.parametrize("length", [1, 7, 30, 31, 60])
@pytest.mark.parametrize("half", ["all", "prefill"])
def test_windows_that_are_put_back_are_as_if_never_gone(rounded, length, half):
    pool = pool_of(rounded, 80)
    stays, pages = prefix(rounded, pool, length)
    snapshot = WindowSnapshot.from_bytes(stays.window_snapshot(0, snapshot_layers(CONFIG, half)).to_bytes())
    cache = rounded.new_cache(120, pool=pool)
    poison(cache)
    cache.adopt(0, pages, length)
    feed_again(rounded, cache, 0, IDS, length)
    cache.restore_windows(0, snapshot)
    rest, decoder = IDS[length:], "full" if half == "all" else "bounded"
    assert torch.equal(rounded.prefill(rest, cache, decoder=decoder), rounded.prefill(rest, stays, decoder=decoder))
    for token in (4, 5):
        assert torch.equal(rounded.decode(token, cache), rounded.decode(token, stays))


@pytest.mark.parametrize("back", [1, 2, 3, WINDOW])
def test_tokens_fed_again_keep_windows_that_are_there(exact, back):
    # The rows before and among the tokens are kept, so their logits are those of the first time.
    pool = pool_of(exact, 80)
    stays, pages = prefix(exact, pool, 50)
    cache = exact.new_cache(120, pool=pool)
    cache.adopt(0, pages, 50)
    cache.restore_windows(0, stays.window_snapshot(0))
    feed_again(exact, cache, 0, IDS, 50 - back)
    held = [part.clone() for part in cache._windows.parts]
    logits = exact.prefill(IDS[50 - back : 50], cache)[0]
    assert all(torch.equal(a, b) for a, b in zip(held, cache._windows.parts, strict=True))
    wanted = exact(IDS[None, :50])[0, -1]
    assert relative(logits, wanted) < 1e-5
    assert relative(exact.prefill(IDS[50:], cache)[0], exact(IDS[None])[0, -1]) < 1e-5


def test_a_live_sequence_can_be_rewound(exact):
    cache, _ = prefix(exact, pool_of(exact), 50)
    wanted = exact(IDS[None])[0, -1]
    feed_again(exact, cache, 0, IDS, 47)
    assert cache.stored == (50,)
    exact.prefill(IDS[47:50], cache)
    assert relative(exact.prefill(IDS[50:], cache)[0], wanted) < 1e-5


def test_what_a_rewound_sequence_refuses(rounded):
    cache, pages = prefix(rounded, pool_of(rounded), 40)
    with pytest.raises(CacheError, match="cannot be rewound to 41"):
        cache.rewind(0, 41)
    snapshot = cache.window_snapshot(0)
    cache.rewind(0, 30)
    with pytest.raises(CacheError, match="windows are incomplete"):
        cache.window_snapshot(0)
    with pytest.raises(CacheError, match="snapshot is of 40 tokens; row 0 holds 30"):
        cache.restore_windows(0, snapshot)
    with pytest.raises(CacheError, match="it can be cut to 30 or more"):
        cache.truncate(0, 29)
    with pytest.raises(ValueError, match="5 ids for a hit of 40"):
        begin_replay(rounded, cache, 0, IDS[:5], pages, plan_replay(40, WINDOW))


def test_an_open_group_has_to_be_fed_again(rounded):
    cache, pages = prefix(rounded, pool_of(rounded), 45)
    with pytest.raises(ValueError, match="hit of 45 tokens leaves a group open"):
        begin_replay(rounded, cache, 0, IDS, pages, plan_replay(45, WINDOW, tokens=0))
    begin_replay(rounded, cache, 0, IDS, pages, plan_replay(45, WINDOW, tokens=1))
    assert torch.isfinite(rounded.prefill(IDS[44:], cache)).all()


def test_snapshots_that_are_none():
    model_cache = golden_model.build(NAME, "fp32_cacheq").new_cache(20)
    data = model_cache.window_snapshot(0).to_bytes()
    random = np.random.default_rng(0)
    for cut in random.integers(0, len(data) - 1, 20):
        with pytest.raises(CacheError, match="no snapshot"):
            WindowSnapshot.from_bytes(data[:cut])
    with pytest.raises(CacheError, match="no snapshot"):
        WindowSnapshot.from_bytes(b"")


def test_the_published_windows_are_the_ledgers_constant():
    from ds41 import ledger

    config = ModelConfig.flash()
    rows = config.num_hidden_layers * config.sliding_window
    assert ledger.window_bytes(config) == rows * 528 == 2_703_360
