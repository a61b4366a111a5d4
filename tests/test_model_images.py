"""Pictures in a prompt: vectors in place of embeddings, in one pass, in pieces and in steps; what else they change."""

import dataclasses

import pytest
import torch
from drafting_model import CONFIG as DRAFTED
from drafting_model import pair

from ds41.attention import SequenceMemory
from ds41.cache import DEAD
from ds41.decoder_tail import Tails, begin_tail, tail_starts
from ds41.model import Model

# Engram at layer 1, whose rows follow from the ids of text alone; window 8, so that a picture is longer than one.
CONFIG = dataclasses.replace(
    DRAFTED,
    engram_layer_ids=(1,),
    engram_num_embeddings=(301,),
    engram_n_heads=1,
    image_token_id=509,
)
WINDOW, IMAGE = CONFIG.sliding_window, CONFIG.image_token_id
# Pages of 16 tokens: one picture crosses a window's end, one a page's, and one ends the prompt.
SPANS = (range(5, 12), range(13, 34), range(60, 64))
LENGTH = 64


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.15


def prompt(length=LENGTH, spans=SPANS, seed=1):
    """Ids, and the mask of their pictures."""
    ids = torch.randint(16, 500, (length,), generator=torch.Generator().manual_seed(seed))
    for span in spans:
        ids[span.start : span.stop] = IMAGE
    return ids, ids == IMAGE


def vectors_of(mask, seed=2):
    return random(int(mask.sum()), CONFIG.hidden_size, seed=seed)


@pytest.fixture(scope="module")
def exact():
    return build("none")


@pytest.fixture(scope="module")
def rounded():
    return build("cache")


def build(quantization, config=CONFIG):
    """Its two biases differ, so that the router shows which one it took."""
    torch.manual_seed(0)
    token_map = torch.arange(config.vocab_size) % config.engram_compressed_vocab_size
    model = Model(config, quantization, token_map=token_map if config.engram_layer_ids else None)
    with torch.no_grad():
        for number, block in enumerate(model.layers):
            block.ffn.gate.bias_vl.copy_(random(config.n_routed_experts, seed=number))
    return model.requires_grad_(False)


def relative(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


def test_vectors_stand_where_embeddings_stood(exact):
    """A model without pictures whose table holds the vectors as rows of spare ids gives the same logits."""
    ids, mask = prompt()
    spare = torch.arange(400, 400 + int(mask.sum()))
    text = build("none")
    ids[~mask] %= 400
    with torch.no_grad():
        text.embed.weight[spare] = vectors_of(mask)
    renamed = ids.masked_scatter(mask, spare)
    expected = text(renamed[None], mask[None])
    assert torch.equal(exact(ids[None], image_vectors=vectors_of(mask)), expected)
    # What ids stand under a picture is all one, as long as the mask says where it is.
    assert torch.equal(exact(renamed[None], mask[None], vectors_of(mask)), expected)
    assert relative(exact(ids[None], mask[None]), expected) > 0.1


@pytest.mark.parametrize("chunk", [1, 3, 7, 16, 33, 64])
def test_a_prefill_in_pieces_equals_one_pass(exact, chunk):
    ids, mask = prompt()
    cache = exact.new_cache(LENGTH, page_tokens=16)
    logits = exact.prefill(ids, cache, image_vectors=vectors_of(mask), chunk_tokens=chunk)
    assert relative(logits[0], exact(ids[None], image_vectors=vectors_of(mask))[0, -1]) < 1e-5


def test_prompts_that_come_in_several_calls_equal_one_pass(exact):
    """A picture cut between two calls, and calls of text or of a picture alone."""
    ids, mask = prompt()
    whole, vectors = exact(ids[None], image_vectors=vectors_of(mask))[0], vectors_of(mask)
    cache = exact.new_cache(LENGTH, page_tokens=16)
    ends = (5, 12, 20, 34, 45, LENGTH)
    for start, end in zip((0, *ends), ends, strict=False):
        first, last = int(mask[:start].sum()), int(mask[:end].sum())
        logits = exact.prefill(ids[start:end], cache, image_vectors=vectors[first:last])
        assert relative(logits[0], whole[end - 1]) < 1e-5


def test_steps_of_a_batch_agree_with_whole_sequences(exact):
    """Three rows of unequal pieces in one step, one of them decoding; counts of wanted logits by row."""
    made = [prompt(30, (range(2, 17),), 5), prompt(21, (range(4, 6), range(9, 13)), 6), prompt(9, (), 7)]
    vectors = [vectors_of(mask, seed) for seed, (_, mask) in enumerate(made)]
    whole = [exact(ids[None], image_vectors=rows)[0] for (ids, _), rows in zip(made, vectors, strict=True)]
    cache = exact.new_cache(40, 3, page_tokens=16)
    done, seen = [0, 0, 0], [0, 0, 0]
    steps = [(11, 5, 8), (0, 6, 1), (19, 10, 0)]
    wanted = [{0: 3, 2: 8}, {2: 1, 1: 6}, {1: 2, 0: 19}]
    for counts, asked in zip(steps, wanted, strict=True):
        fed, masks, parts = [], [], []
        for row, count in enumerate(counts):
            ids, mask = made[row]
            piece = slice(done[row], done[row] + count)
            fed.append(ids[piece])
            masks.append(mask[piece])
            inside = int(mask[piece].sum())
            parts.append(vectors[row][seen[row] : seen[row] + inside])
            done[row], seen[row] = done[row] + count, seen[row] + inside
        logits = exact.extend(fed, cache, asked, images=masks, image_vectors=parts)
        expected = torch.cat([whole[row][done[row] - count : done[row]] for row, count in asked.items()])
        assert logits.shape == expected.shape
        assert relative(logits, expected) < 1e-5
    assert cache.lengths == (30, 21, 9)


def test_unequal_rows_of_pictures_in_one_prefill(exact):
    made = [prompt(30, (range(3, 25),), 5), prompt(0, (), 6), prompt(44, (range(1, 9), range(20, 22)), 7)]
    cache = exact.new_cache(64, 3, page_tokens=16)
    vectors = [vectors_of(mask, seed) for seed, (_, mask) in enumerate(made)]
    logits = exact.prefill([ids for ids, _ in made], cache, image_vectors=torch.cat(vectors), chunk_tokens=7)
    assert bool(logits[1].isnan().all())
    for row in (0, 2):
        assert relative(logits[row], exact(made[row][0][None], image_vectors=vectors[row])[0, -1]) < 1e-5


def test_rows_of_one_pass_keep_their_own_vectors(exact):
    """Rows of equal length with different numbers of positions, one of them without a picture."""
    made = [prompt(24, spans, seed) for seed, spans in enumerate(((range(2, 20),), (), (range(0, 3), range(22, 24))))]
    vectors = [vectors_of(mask, seed) for seed, (_, mask) in enumerate(made)]
    together = exact(torch.stack([ids for ids, _ in made]), image_vectors=torch.cat(vectors))
    for row, (ids, _) in enumerate(made):
        assert relative(together[row], exact(ids[None], image_vectors=vectors[row])[0]) < 1e-5


@pytest.mark.parametrize("decoder", ["full", "exact", "bounded"])
def test_decoding_after_a_prompt_that_ends_in_pictures(rounded, exact, decoder):
    """Packed pages and rings behind pictures that cross page and window ends: chunks do not matter, rolls back do."""
    ids, mask = prompt()
    vectors, new = vectors_of(mask), torch.randint(16, 500, (6,), generator=torch.Generator().manual_seed(9))
    for model, limit in ((exact, 1e-5), (rounded, 0.1)):
        found = []
        for chunk in (64, 5):
            cache = model.new_cache(LENGTH + 6, page_tokens=16)
            first = model.prefill(ids, cache, decoder, image_vectors=vectors, chunk_tokens=chunk)
            model.decode(new[:4].flip(0), cache)
            cache.truncate(0, LENGTH)
            found.append(torch.cat((first, model.decode(new, cache)[0])))
        assert relative(found[1], found[0]) < limit
        if decoder != "bounded":
            whole = model(torch.cat((ids, new))[None], image_vectors=vectors)[0, LENGTH - 1 :]
            assert relative(found[0], whole) < limit


def test_gradients_reach_every_vector(exact):
    """And the numbers are right, by a difference quotient."""
    ids, mask = prompt(20, (range(3, 15),))
    vectors = vectors_of(mask).requires_grad_()
    weights = random(20, CONFIG.vocab_size, seed=3)
    loss = (exact(ids[None], image_vectors=vectors)[0] * weights).sum()
    loss.backward()
    assert (vectors.grad.abs().sum(1) > 0).all()
    direction, step = random(*vectors.shape, seed=4), 1e-3
    with torch.no_grad():
        ends = [exact(ids[None], image_vectors=vectors + sign * step * direction)[0] for sign in (1, -1)]
    slope = float(((ends[0] - ends[1]) * weights).sum() / (2 * step))
    assert slope == pytest.approx(float((vectors.grad * direction).sum()), rel=0.02)


def test_a_batch_without_a_picture_takes_no_vectors(exact):
    ids, _ = prompt(12, ())
    none = torch.zeros(0, CONFIG.hidden_size, requires_grad=True)
    logits = exact(ids[None], image_vectors=none).detach()
    assert relative(logits, exact(ids[None])) < 1e-6


def test_counts_and_shapes_that_do_not_fit_are_named(exact):
    ids, mask = prompt(12, (range(3, 7),))
    cache = exact.new_cache(20)
    width = CONFIG.hidden_size
    for shape in ((3, width), (5, width), (4, width - 1), (4,), (1, 4, width)):
        with pytest.raises(ValueError, match=rf"image_vectors are \[.*\]; expected \[4, {width}\]"):
            exact.prefill(ids, cache, image_vectors=torch.zeros(shape))
    for rows in ([torch.zeros(4, width)] * 2, [torch.zeros(3, width)], []):
        with pytest.raises(ValueError, match="one for each image position of each row"):
            exact.extend([ids], cache, (), image_vectors=rows)
    with pytest.raises(ValueError, match=rf"expected \[0, {width}\]"):
        exact(torch.full((1, 4), 20), image_vectors=torch.zeros(1, width))
    with pytest.raises(ValueError, match=r"expected torch\.bool in rows of \[12\]"):
        exact.prefill(ids, cache, image_mask=mask[:-1], image_vectors=torch.zeros(4, width))
    with pytest.raises(ValueError, match=r"image_mask is torch\.int64"):
        exact.prefill(ids, cache, image_mask=mask.long(), image_vectors=torch.zeros(4, width))
    assert cache.lengths == (0,)


def test_a_mask_may_be_a_list_as_an_expanded_prompt_has_it(exact):
    ids, mask = prompt(12, (range(3, 7),))
    found = [
        exact.prefill(ids.tolist(), exact.new_cache(20), image_mask=each, image_vectors=vectors_of(mask))
        for each in (mask, mask.tolist(), [mask.tolist()])
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_the_router_takes_the_bias_of_pictures_at_their_positions(rounded):
    """An extreme bias sends every position of a picture to one pair of experts, and no other."""
    ids, mask = prompt()
    gates = [block.ffn.gate for block in rounded.layers]
    before, chosen = [gate.bias_vl.clone() for gate in gates], []
    hooks = [gate.register_forward_hook(lambda _, given, routing: chosen.append(routing.indices)) for gate in gates]
    with torch.no_grad():
        for gate in gates:
            gate.bias_vl.copy_(torch.tensor([100.0, 0, 0, 90.0]))
    try:
        rounded(ids[None], image_vectors=vectors_of(mask))
        rounded.prefill(ids, rounded.new_cache(LENGTH), image_vectors=vectors_of(mask))
    finally:
        for gate, bias, hook in zip(gates, before, hooks, strict=True):
            gate.bias_vl.data.copy_(bias)
            hook.remove()
    assert len(chosen) == 2 * len(gates)
    for indices in chosen:
        assert torch.equal(indices[mask], torch.tensor([[0, 3]]).expand(int(mask.sum()), 2))
        assert not torch.equal(indices[~mask], torch.tensor([[0, 3]]).expand(int((~mask).sum()), 2))


def engram_of(model, ids, mask, **options):
    """Rows that each token looks up at the Engram layer, and what its gate lets through."""
    found = {}
    module = model.layers[1].engram
    hook = module.register_forward_hook(lambda _, given, out: found.update(rows=given[1], moved=out - given[0]))
    try:
        model(ids[None], mask[None], **options)
    finally:
        hook.remove()
    return found["rows"], found["moved"]


def test_engram_is_shut_at_pictures_and_blind_to_their_ids(rounded):
    ids, mask = prompt()
    other = ids.masked_scatter(mask, torch.randint(16, 500, (int(mask.sum()),)))
    vectors = vectors_of(mask)
    rows, moved = engram_of(rounded, ids, mask, image_vectors=vectors)
    others, _ = engram_of(rounded, other, mask, image_vectors=vectors)
    assert torch.equal(rows, others)
    assert not moved[mask].any()
    assert moved[~mask].flatten(1).abs().sum(1).min() > 0
    # Text behind a picture does not look back over it: its rows are those of text behind the beginning.
    end = SPANS[1].stop
    fresh, _ = engram_of(rounded, ids[end:], mask[end:], image_vectors=vectors[int(mask[:end].sum()) :])
    assert torch.equal(rows[end : SPANS[2].start], fresh[: SPANS[2].start - end])
    # As text the same ids would have been looked back to.
    seen, _ = engram_of(rounded, ids, torch.zeros_like(mask))
    assert not torch.equal(seen[end], rows[end])


def test_the_history_of_a_cache_is_dead_behind_a_picture(rounded):
    ids, mask = prompt(16, (range(10, 16),))
    for chunk in (1, 5, 64):
        cache = rounded.new_cache(32)
        rounded.prefill(ids, cache, image_vectors=vectors_of(mask), chunk_tokens=chunk)
        assert (cache.history() == DEAD).all()
        rounded.decode(20, cache)
        assert (cache.history() == DEAD).sum() == cache.history().numel() - 1


def test_two_ids_under_the_same_vectors_leave_the_same_cache(rounded):
    """What follows a picture in steps depends on its vectors, not on the id that its positions carry."""
    ids, mask = prompt(40, (range(7, 29),))
    other = ids.masked_fill(mask, 77)
    found = []
    for each in (ids, other):
        cache = rounded.new_cache(50, page_tokens=16)
        logits = rounded.prefill(each, cache, image_mask=mask, image_vectors=vectors_of(mask), chunk_tokens=9)
        found.append(torch.cat((logits, rounded.decode([20, 21, 22], cache)[0])))
    assert torch.equal(*found)


def test_a_refused_step_writes_nothing(exact):
    """Wanted logits of tokens that a step does not have, or that lie before its tail."""
    ids, mask = prompt(40, (range(7, 29),))
    cache = exact.new_cache(50)
    for wanted in ({0: 41}, {0: 0}, {1: 1}, {-1: 1}, [1]):
        with pytest.raises(ValueError, match="are wanted, which has"):
            exact.extend([ids], cache, wanted, images=[mask], image_vectors=[vectors_of(mask)])
    tails = Tails(1)
    tails.set(0, tail_starts(CONFIG, 0, 40, "bounded"))
    begin_tail(cache, 0, tails.rows[0])
    with pytest.raises(ValueError, match="logits of 9 tokens of row 0 are wanted, of which 8 lie in its tail"):
        exact.extend([ids], cache, {0: 9}, tails, [mask], [vectors_of(mask)])
    assert cache.lengths == (0,)
    logits = exact.extend([ids], cache, {0: 8}, tails, [mask], [vectors_of(mask)])
    expected = exact.prefill(ids, exact.new_cache(50), "bounded", image_vectors=vectors_of(mask))
    assert relative(logits[-1:], expected) < 1e-5


@pytest.mark.parametrize("decoder", ["full", "bounded"])
def test_watched_layers_see_pictures_as_a_cache_does(decoder):
    """Drafts behind a prompt with a picture: context rows of its positions follow from the vectors."""
    config = dataclasses.replace(DRAFTED, image_token_id=IMAGE)
    model, drafter = pair(config)
    ids, mask = prompt(40, (range(20, 38),))
    vectors, drafts = vectors_of(mask), []
    for chunk in (64, 6):
        cache = drafter.new_cache(model, 60)
        model.prefill(ids, cache, decoder, image_vectors=vectors, chunk_tokens=chunk)
        drafts.append(drafter.draft(model, cache, [20]).logits)
    assert relative(drafts[1], drafts[0]) < 1e-3
    cache = drafter.new_cache(model, 60)
    model.prefill(ids, cache, decoder, image_mask=mask)
    assert relative(drafter.draft(model, cache, [20]).logits, drafts[0]) > 1e-2


def test_what_run_sequences_watches_is_what_entered(exact):
    ids, mask = prompt(20, (range(3, 15),))
    hidden = exact.run_sequences(ids[None], image_vectors=vectors_of(mask), watched=(0, 2, 4))
    assert len(hidden.entering) == 3
    assert all(mean.shape == (20, CONFIG.hidden_size) for mean in hidden.entering)
    # Before the first layer all streams are the embedding, or the vector in its place.
    assert torch.allclose(hidden.entering[0][mask], vectors_of(mask), atol=1e-6)
    assert torch.allclose(hidden.entering[0][~mask], exact.embed(ids)[~mask], atol=1e-6)
    assert exact.run_sequences(ids[None]).entering == ()
    memory = exact.run_sequences(
        ids[None], image_vectors=vectors_of(mask), memory=lambda step: SequenceMemory(CONFIG, step, False)
    )
    assert torch.equal(memory.streams, hidden.streams)
