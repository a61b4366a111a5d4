"""Prefill and decode through the packed cache give what one pass over the whole sequence gives.

The model is the reference's tinyA: window 8, top-k 8, a pool of 5 blocks of 4, so 80 tokens exceed every one of them.
Different chunks sum in different orders; without rounding that leaves 1e-5 relative. With rounded caches a flip can
move a token further, so those runs compare with a looser limit, and bit by bit where the arithmetic is the same.
"""

import golden_io
import golden_model
import numpy as np
import pytest
import torch

from ds41.cache import CacheError

NAME = "tinyA"
IDS = golden_io.load(NAME, "fp32")["input_ids"]


@pytest.fixture(scope="module")
def exact():
    return golden_model.build(NAME, "fp32")


@pytest.fixture(scope="module")
def rounded():
    return golden_model.build(NAME, "fp32_cacheq")


@pytest.fixture(scope="module")
def whole(exact):
    return exact(IDS[None])[0]


def relative(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


def decode_each(model, ids, cache):
    return torch.stack([model.decode(int(token), cache)[0, 0] for token in ids])


@pytest.mark.parametrize("mode", ["fp32", "fp32_cacheq", "fp32_fullq"])
@pytest.mark.parametrize("name", golden_io.MODELS)
def test_decode_against_the_reference(name, mode):
    model, io = golden_model.build(name, mode), golden_io.load(name, mode)
    selected = {layer: [] for layer in model.config.index_source_layer_ids}
    for layer, entries in selected.items():
        model.layers[layer].attn.indexer.register_forward_hook(
            lambda module, inputs, output, entries=entries: entries.append(output.entries)
        )
    prompt, cache = int(io["decode.prefill_len"]), model.new_cache(100)
    logits = [model.prefill(io["input_ids"][:prompt], cache)[0]]
    logits += list(decode_each(model, io["input_ids"][prompt:], cache))
    assert relative(torch.stack(logits), io["decode_fixed.logits"]) < (3e-6 if mode == "fp32" else 1e-3)
    for layer, entries in selected.items():
        assert torch.equal(torch.cat(entries[1:]), io[f"decode_fixed.layers.{layer}.indexer.topk"].long())
    # The released path scores against stale keys between groups: it is another model.
    if mode == "fp32":
        assert relative(torch.stack(logits), io["decode_official.logits"]) > 0.1


@pytest.mark.parametrize("prompt", [1, 2, 3, 7, 8, 9, 16, 33, 50, 51])
def test_prefill_then_decode_equals_one_pass(exact, whole, prompt):
    cache = exact.new_cache(len(IDS))
    first = exact.prefill(IDS[:prompt], cache)[0]
    # One run goes through all lengths; beyond two windows the others would only repeat it.
    end = len(IDS) if prompt == 1 else min(len(IDS), prompt + 2 * exact.config.sliding_window + 1)
    rest = decode_each(exact, IDS[prompt:end], cache)
    assert relative(torch.cat((first[None], rest)), whole[prompt - 1 : end]) < 1e-5


# Each chunk is a pass, so small chunks get fewer tokens: 48 still exceed the window, the top-k and the pool.
@pytest.mark.parametrize(
    ("chunk", "length"), [(1, 48), (2, 48), (3, 48), (7, 80), (8, 80), (9, 80), (32, 80), (80, 80)]
)
def test_chunks_of_any_size(exact, whole, chunk, length):
    cache = exact.new_cache(len(IDS))
    assert relative(exact.prefill(IDS[:length], cache, chunk_tokens=chunk)[0], whole[length - 1]) < 1e-5
    assert cache.lengths == (length,)


@pytest.mark.parametrize(("chunk", "length"), [(1, 48), (3, 48), (8, 80), (80, 80)])
def test_chunks_with_rounded_caches(rounded, chunk, length):
    logits = rounded(IDS[None, :length])[0]
    cache = rounded.new_cache(len(IDS))
    assert relative(rounded.prefill(IDS[:length], cache, chunk_tokens=chunk)[0], logits[-1]) < 2e-2


@pytest.mark.parametrize("several", [2, 3, 6])
@pytest.mark.parametrize("prompt", [20, 21])
def test_several_tokens_at_once(exact, whole, several, prompt):
    cache = exact.new_cache(len(IDS))
    exact.prefill(IDS[:prompt], cache)
    logits = [exact.decode(IDS[None, at : at + several], cache)[0] for at in range(prompt, prompt + 30, several)]
    logits = torch.cat(logits)
    assert relative(logits, whole[prompt : prompt + len(logits)]) < 1e-5


def test_a_batch_of_unequal_lengths_equals_single_runs(exact, whole):
    lengths = [1, 2, 7, 8, 9, 60, 0]
    cache = exact.new_cache(len(IDS), batch=len(lengths))
    logits = exact.prefill([IDS[:length] for length in lengths], cache, chunk_tokens=11)
    assert cache.lengths == tuple(lengths)
    for row, length in enumerate(lengths):
        if length:
            assert relative(logits[row], whole[length - 1]) < 1e-5
        else:
            assert logits[row].isnan().all()
    following = exact.decode([int(IDS[length]) for length in lengths], cache)
    for row, length in enumerate(lengths):
        assert relative(following[row, 0], whole[length]) < 1e-5
    counts = [3, 0, 1, 2, 5, 4, 1]
    ragged = exact.decode([IDS[n + 1 : n + 1 + more] for n, more in zip(lengths, counts, strict=True)], cache)
    assert [len(rows) for rows in ragged] == counts
    for rows, length in zip(ragged, lengths, strict=True):
        if len(rows):
            assert relative(rows, whole[length + 1 : length + 1 + len(rows)]) < 1e-5


@pytest.mark.parametrize("mode", ["fp32_cacheq", "fp32_fullq", "bf16_native"])
def test_packed_and_fake_storage_give_the_same_bits(mode):
    model = golden_model.build(NAME, mode)
    runs = []
    for storage in ("packed", "fake"):
        cache = model.new_cache(len(IDS), storage=storage)
        logits = [model.prefill(IDS[:41], cache, chunk_tokens=16)]
        logits += [model.decode(IDS[None, at : at + 3], cache)[0] for at in range(41, 59, 3)]
        runs.append(torch.cat(logits))
    assert torch.equal(*runs)


@pytest.mark.parametrize("length", [30, 31])
@pytest.mark.parametrize("kept", [0, 1, 2, 3, 4, 5])
def test_rejected_drafts_leave_no_trace(exact, length, kept):
    plain, drafted = (exact.new_cache(len(IDS), rollback=5) for _ in range(2))
    exact.prefill(IDS[:length], plain)
    exact.prefill(IDS[:length], drafted)
    exact.decode(IDS[None, length : length + kept + 1], plain)
    wrong = (IDS[length + kept + 1 : length + 6] + 1) % 500
    exact.decode(torch.cat((IDS[length : length + kept + 1], wrong))[None], drafted)
    drafted.truncate(0, length + kept + 1)
    assert drafted.lengths == plain.lengths
    # One token, then several: more than a window in all.
    for start, count in ((1, 1), (2, 5), (7, 5)):
        following = IDS[None, length + kept + start :][:, :count]
        ours, theirs = exact.decode(following, drafted), exact.decode(following, plain)
        assert relative(ours, theirs) < 1e-5


@pytest.mark.parametrize("length", [3, 8])
def test_bounded_decoder_is_exact_within_one_window(exact, whole, length):
    cache = exact.new_cache(len(IDS))
    assert relative(exact.prefill(IDS[:length], cache, decoder="bounded")[0], whole[length - 1]) < 1e-5


def global_bytes(cache):
    return torch.stack([cache.pool.read_page(page) for page in cache.pages_of(0)])


@pytest.mark.parametrize(("chunk", "length"), [(80, 64), (32, 64), (7, 64), (1, 24)])
def test_bounded_decoder_writes_the_same_global_entries(rounded, chunk, length):
    full, bounded = rounded.new_cache(64, page_tokens=8), rounded.new_cache(64, page_tokens=8)
    rounded.prefill(IDS[:length], full, chunk_tokens=chunk)
    rounded.prefill(IDS[:length], bounded, decoder="bounded", chunk_tokens=chunk)
    assert torch.equal(global_bytes(full), global_bytes(bounded))


def bounded_run(model, chunk):
    """Logits of a bounded prefill of 61 tokens and of the 10 tokens after it, more than a window."""
    cache = model.new_cache(len(IDS))
    first = model.prefill(IDS[:61], cache, decoder="bounded", chunk_tokens=chunk)
    return torch.cat((first, decode_each(model, IDS[61:71], cache)))


@pytest.fixture(scope="module")
def bounded_at_once(exact):
    return bounded_run(exact, 80)


@pytest.mark.parametrize("chunk", [32, 9, 7, 1])
def test_bounded_decoder_does_not_depend_on_chunks(exact, bounded_at_once, chunk):
    assert relative(bounded_run(exact, chunk), bounded_at_once) < 1e-5


def test_bounded_decoder_is_an_approximation(bounded_at_once, whole):
    # The decoder's windows begin at the last window of the prompt.
    assert 1e-4 < relative(bounded_at_once, whole[60:71]) < 1


def test_bounded_decoder_in_a_batch_of_unequal_lengths(exact):
    lengths = [5, 61, 0, 8, 30]
    cache = exact.new_cache(len(IDS), batch=len(lengths))
    logits = exact.prefill([IDS[:length] for length in lengths], cache, decoder="bounded", chunk_tokens=13)
    following = exact.decode(IDS[torch.tensor(lengths)], cache)
    for row, length in enumerate(lengths):
        single = exact.new_cache(len(IDS))
        alone = exact.prefill(IDS[:length], single, decoder="bounded")[0]
        assert torch.allclose(logits[row], alone, atol=1e-4, equal_nan=True)
        assert relative(following[row], exact.decode(int(IDS[length]), single)[0]) < 1e-5


def test_bounded_prefill_in_two_calls_continues_the_windows(exact):
    cache = exact.new_cache(len(IDS))
    exact.prefill(IDS[:50], cache, decoder="bounded")
    start = cache.window_start[:, 0].clone()
    source, window = exact.config.decoder_start, exact.config.sliding_window
    assert start.tolist() == [0] * (source + 1) + [50 - window] * (exact.config.num_hidden_layers - source - 1)
    exact.prefill(IDS[50:53], cache, decoder="bounded")
    assert torch.equal(cache.window_start[:, 0], start)


def test_poisoned_memory_never_shows(rounded):
    cache = rounded.new_cache(len(IDS))
    rounded.prefill(IDS[:70], cache)
    expected = rounded.decode(int(IDS[70]), cache)
    cache.reset(0)
    for tensor in vars(cache.pool).values():
        if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.uint8:
            tensor.fill_(0xFF)
    rounded.prefill(IDS[:70], cache)
    assert torch.equal(rounded.decode(int(IDS[70]), cache), expected)


@pytest.mark.parametrize(("chunk", "length"), [(80, 60), (7, 60), (1, 20)])
@pytest.mark.parametrize("decoder", ["full", "bounded"])
def test_poisoned_windows_never_show(rounded, decoder, chunk, length):
    """Rows that a bounded prefill leaves out are masked, and a masked NaN would still be NaN."""
    runs = []
    for poison in (0x00, 0xFF):
        cache = rounded.new_cache(len(IDS))
        for part in cache._windows.parts:
            part.view(torch.uint8).fill_(poison)
        logits = [rounded.prefill(IDS[:length], cache, decoder=decoder, chunk_tokens=chunk)]
        runs.append(torch.cat([*logits, rounded.decode(int(IDS[length]), cache)[0]]))
    assert torch.equal(*runs)


def test_a_fork_goes_its_own_way(exact):
    cache = exact.new_cache(len(IDS), batch=2, page_tokens=8)
    exact.prefill([IDS[:37], IDS[:0]], cache)
    cache.fork(0, 1)
    exact.decode([IDS[37:43], (IDS[37:43] + 7) % 500], cache)
    after = exact.decode(torch.stack((IDS[43], IDS[43])), cache)
    single = exact.new_cache(len(IDS))
    exact.prefill(IDS[:37], single)
    exact.decode(((IDS[37:43] + 7) % 500)[None], single)
    assert relative(after[1], exact.decode(int(IDS[43]), single)[0]) < 1e-5
    assert relative(after[0], after[1]) > 1e-3


def test_no_room_changes_nothing(rounded):
    cache = rounded.new_cache(32, page_tokens=8)
    rounded.prefill(IDS[:30], cache)
    expected = rounded.new_cache(40)
    rounded.prefill(IDS[:30], expected)
    with pytest.raises(CacheError, match="32"):
        rounded.prefill(IDS[30:40], cache)
    assert cache.lengths == (30,)
    assert torch.equal(rounded.decode(int(IDS[30]), cache), rounded.decode(int(IDS[30]), expected))


def test_bad_calls_are_named(rounded, exact):
    cache = rounded.new_cache(32)
    with pytest.raises(ValueError, match="decoder is 'half'; expected 'full', 'bounded' or 'exact'"):
        rounded.prefill(IDS[:4], cache, decoder="half")
    with pytest.raises(ValueError, match="chunk_tokens is 0"):
        rounded.prefill(IDS[:4], cache, chunk_tokens=0)
    with pytest.raises(ValueError, match=r"token id 512 at place 1 of row 0 is .* expected 0 to 511"):
        rounded.prefill(torch.tensor([1, 512]), cache)
    with pytest.raises(ValueError, match="token id -1"):
        rounded.decode(-1, cache)
    with pytest.raises(TypeError, match=r"torch\.float32; expected integers"):
        rounded.prefill(torch.tensor([1.0]), cache)
    with pytest.raises(ValueError, match="there are 2 rows of token ids; expected 1"):
        rounded.prefill([[1], [2]], cache)
    with pytest.raises(ValueError, match="storage is 'plain' and the model's quantization 'cache'"):
        rounded.new_cache(8, storage="plain")
    with pytest.raises(ValueError, match="the cache's storage is 'packed' and the model's quantization 'none'"):
        exact.prefill(IDS[:4], cache)
    with pytest.raises(ValueError, match="another configuration"):
        golden_model.build("tinyC", "fp32_cacheq").prefill(IDS[:4], cache)
    assert cache.lengths == (0,)


def test_a_prefill_that_failed_early_leaves_the_windows_as_they_were(exact, whole):
    cache = exact.new_cache(len(IDS))
    token_map = exact.hasher.token_map
    exact.hasher.token_map = None
    try:
        with pytest.raises(RuntimeError, match="token map"):
            exact.prefill(IDS[:70], cache, decoder="bounded")
    finally:
        exact.hasher.token_map = token_map
    assert not bool(cache.window_start.any())
    assert relative(exact.prefill(IDS[:70], cache)[0], whole[69]) < 1e-5


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_ids_of_any_integer_type(exact, whole, dtype):
    ids = IDS[:20] % 100
    assert torch.equal(exact(ids[None].to(dtype)), exact(ids[None]))
    with pytest.raises(ValueError, match="outside the vocabulary"):
        exact(torch.tensor([[600]], dtype=torch.int16))


def test_a_hit_without_its_windows_is_finite_and_looks_at_nothing_old(rounded):
    """Request 2 takes request 1's pages; the rings still hold poison, which its windows never reach."""
    first = rounded.new_cache(len(IDS), page_tokens=8)
    rounded.prefill(IDS[:64], first)
    clean, poisoned = (rounded.new_cache(len(IDS), page_tokens=8, pool=first.pool) for _ in range(2))
    for cache, value in ((clean, 0), (poisoned, 0xFF)):
        for ring in (cache._windows, *cache._open.values()):
            for part in ring.parts:
                part.view(torch.uint8).fill_(value)
        cache.adopt(0, first.pages_of(0), 64)
    logits = [rounded.decode(int(IDS[64]), cache) for cache in (clean, poisoned)]
    assert bool(logits[1].isfinite().all())
    assert torch.equal(*logits)


def test_more_bad_calls_are_named(rounded):
    cache = rounded.new_cache(32)
    with pytest.raises(TypeError, match="token ids are a str"):
        rounded.decode("a", cache)
    with pytest.raises(TypeError, match="token ids are a NoneType"):
        rounded.decode(None, cache)
    with pytest.raises(TypeError, match="cache is a str; expected a Cache"):
        rounded.prefill(IDS[:4], "x")
    with pytest.raises(ValueError, match=r"the rows have \[2, 1\] tokens; expected equal lengths"):
        rounded([[20, 21], [22]])
    with pytest.raises(ValueError, match=r"expected torch\.bool in rows of"):
        rounded.prefill(IDS[:4], cache, image_mask=torch.zeros(4))
    with pytest.raises(ValueError, match="max_position_embeddings 256"):
        rounded(torch.zeros(1, 257, dtype=torch.int64))
    with pytest.raises(CacheError, match="storage is 'x'; expected one of"):
        rounded.new_cache(8, storage="x")
    config, zero = rounded.config, torch.zeros(1, dtype=torch.int64)
    rows = torch.zeros(1, config.head_dim), torch.zeros(1, config.index_head_dim)
    with pytest.raises(CacheError, match="beyond the pages"):
        cache.write_entries(config.kv_source_layer_ids[0], zero, zero - 40, *rows)
    assert rounded.decode(np.int64(20), cache).shape == (1, 1, rounded.config.vocab_size)
