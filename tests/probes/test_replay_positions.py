"""What the probe measures, beside the same computed without a cache, and by hand."""

import math
import sys
from pathlib import Path

import pytest
import torch
from replay_reference import replayed_logits

from ds41.generation import generate
from ds41.probes.replay_distance import Request, answer, divergence, likeliest
from ds41.probes.replay_positions import after_hits, answers, offsets_after, standard_ways

sys.path.insert(0, str(Path(__file__).parent))
import replay_model

WINDOW, CONFIG = replay_model.WINDOW, replay_model.CONFIG
WAYS = standard_ways(CONFIG)
IDS = tuple(torch.randint(16, 272, (170,), generator=torch.Generator().manual_seed(5)).tolist())
OTHER = tuple(torch.randint(16, 272, (140,), generator=torch.Generator().manual_seed(6)).tolist())
OFFSETS = (0, 1, 5, 16, 33)
# Below a window and at it, around a page of 16, odd ones, and beyond what an exact replay feeds, 80.
HITS = (1, 2, 15, 16, 17, 32, 33, 47, 96, 101, 130)


@pytest.fixture(scope="module")
def model():
    return replay_model.build()


@pytest.fixture(scope="module")
def found(model):
    return dict(zip(HITS, after_hits(model, [Request(IDS, hit) for hit in HITS], WAYS, OFFSETS), strict=True))


def kl(p, q):
    p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


@pytest.mark.parametrize("hit", HITS)
@pytest.mark.parametrize("way", ["absent", "replay"])
def test_distances_are_those_of_the_definition(model, found, hit, way):
    ids = torch.tensor(IDS)
    start = max(0, hit - WAYS[way])
    at = torch.tensor([hit - 1 + offset for offset in OFFSETS])
    kept, other = model(ids[None])[0][at], replayed_logits(model, ids, hit, start)[at - start]
    ours = found[hit][way]
    assert ours.kl == pytest.approx(kl(kept, other).tolist(), rel=1e-3, abs=1e-9)
    assert ours.largest == pytest.approx((kept - other).abs().amax(-1).tolist(), rel=1e-3, abs=1e-5)
    assert list(ours.same_top) == (kept.argmax(-1) == other.argmax(-1)).tolist()
    following = ids[at + 1, None]
    extra = kept.log_softmax(-1).gather(1, following) - other.log_softmax(-1).gather(1, following)
    assert ours.extra_loss == pytest.approx(extra[:, 0].tolist(), rel=1e-2, abs=1e-5)


def test_the_ways_are_ordered(found):
    assert WAYS == {"absent": 1, "replay": WINDOW, "exact": 5 * WINDOW}
    assert max(max(one["exact"].kl) for one in found.values()) < 1e-9
    assert max(max(found[hit]["replay"].kl) for hit in HITS if hit <= WINDOW) < 1e-9
    longer = [found[hit] for hit in HITS if hit > 2 * WINDOW]
    means = [sum(one[way].kl[0] for one in longer) for way in ("absent", "replay")]
    assert means[0] > means[1] > 1e-6


def test_other_requests_change_nothing(model, found):
    mixed = [Request(IDS, 33), Request(OTHER, 40), Request(IDS, 17), Request(OTHER, 41), Request(IDS, 33)]
    together = after_hits(model, mixed, {"replay": WINDOW}, OFFSETS)
    alone = [after_hits(model, [one], {"replay": WINDOW}, OFFSETS)[0] for one in mixed]
    for request, a, b in zip(mixed, together, alone, strict=True):
        assert a["replay"].kl == pytest.approx(b["replay"].kl, rel=1e-3, abs=1e-9)
        if request.ids == IDS:
            assert a["replay"].kl == pytest.approx(found[request.hit]["replay"].kl, rel=1e-3, abs=1e-9)
    assert together[1]["replay"].kl != pytest.approx(together[3]["replay"].kl, rel=1e-2)


def test_packed_pages_have_no_noise_of_their_own():
    rounded = replay_model.build("cache")
    one = after_hits(rounded, [Request(IDS, 120), Request(IDS, 121)], WAYS, OFFSETS)
    assert all(max(found["exact"].kl) < 1e-3 * found["replay"].kl[0] for found in one)


def test_answers_are_what_generation_gives(model):
    # With the decoder on all tokens, and the whole hit fed again, it is the text of a plain generation.
    hits = (20, 60, 100)
    ids = IDS[:100]
    found = answers(model, [Request(ids, hit) for hit in hits], WAYS, 12, decoder="full")
    text = list(generate(model, list(ids), 12, temperature=0, stop_ids=()))
    for hit, one in zip(hits, found, strict=True):
        assert one["exact"].first_different is None
        assert one["exact"].equal_share == 1
        assert one["exact"].kl < 1e-9
        for way in ("absent", "replay"):
            own = continued(model, ids, hit, WAYS[way], 12)
            equal = [a == b for a, b in zip(own, text, strict=True)]
            assert one[way].equal_share == sum(equal) / 12
            assert one[way].first_different == (None if all(equal) else equal.index(False))
    assert any(one["absent"].first_different is not None for one in found)


def continued(model, ids, hit, tokens, new_tokens):
    """Greedy text after a replay, each token from the definition without a cache."""
    found = list(ids)
    for _ in range(new_tokens):
        start = max(0, hit - tokens)
        found.append(int(replayed_logits(model, torch.tensor(found), hit, start)[-1].argmax()))
    return found[len(ids) :]


def test_only_the_hit_differs_where_the_decoder_is_bounded(model):
    request = Request(IDS[:120], 10)
    one = answers(model, [request], {"replay": WINDOW}, 4)[0]["replay"]
    assert one.kl < 1e-9
    assert one.equal_share == 1


def test_distances_by_hand():
    kept, other = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    found = divergence(kept, other, Request((0, 1, 1), 1), [0])
    assert found.kl[0] == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert found.extra_loss[0] == pytest.approx(math.log(2 / 3))
    assert found.largest[0] == pytest.approx(math.log(2))
    # Of equals the lower id is the likeliest.
    assert found.same_top == (False,)
    assert likeliest(torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 0.0]])).tolist() == [1, 0]


def test_recall_is_of_the_answers_tokens():
    # The answer is tokens 1 and 0 at positions 3 and 4; logits at offsets 1 and 2 predict them.
    request = Request((0, 0, 0, 1, 0, 1), 2, (3, 5))
    kept = torch.tensor([[0.0, 0.0], [0.0, 2.0], [2.0, 0.0], [0.0, 0.0]])
    other = torch.tensor([[0.0, 0.0], [0.0, 2.0], [0.0, 2.0], [0.0, 0.0]])
    recall = divergence(kept, other, request, [0]).recall
    right, wrong = math.log1p(math.exp(-2)), math.log1p(math.exp(2))
    assert (recall.kept_right, recall.right) == (True, False)
    assert recall.kept_loss == pytest.approx(right)
    assert recall.loss == pytest.approx((right + wrong) / 2)


def test_texts_by_hand():
    logits = torch.zeros(4)
    one = answer(logits, logits, torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 0, 4]))
    assert (one.kl, one.same_top, one.first_different, one.equal_share) == (0, True, 2, 0.75)


def test_offsets_reach_as_far_as_asked():
    assert offsets_after(8) == (0, 1, 2, 3, 4, 6, 8, 12, 16)
    assert offsets_after(12, 1)[-1] == 12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: Request((1, 2), 0), "hit is 0; expected 1 to 2"),
        (lambda m: Request((1, 2), 1, (0, 2)), "answer is"),
        (lambda m: after_hits(m, [], WAYS, OFFSETS), "0 requests"),
        (lambda m: after_hits(m, [Request(IDS, 5)], WAYS, (3, 1)), "ascending"),
        (
            lambda m: after_hits(m, [Request(IDS, 150)], WAYS, (0, 20)),
            "170 tokens; a hit of 150 and offset 20 need 171",
        ),
        (lambda m: answers(m, [Request(IDS, 5)], WAYS, 0), "0 new tokens"),
        (lambda m: answers(m, [Request(IDS, 5)], WAYS, 1, decoder="none"), "decoder is 'none'"),
    ],
)
def test_what_is_refused(model, call, message):
    with pytest.raises(ValueError, match=message):
        call(model)
