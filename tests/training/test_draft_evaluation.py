"""What a drafter is worth: rounds counted by hand, oracles that are always or never right, and calibration."""

import dataclasses
import math

import pytest
import torch
from drafting_model import CONFIG, Oracle, pair
from tiny_run import tiny_corpus

from ds41.dspark import Calibration
from ds41.generation import generate
from ds41.training import draft_evaluation
from ds41.training.draft_evaluation import Rounds, calibrate, draft_rounds, prompts

CORPUS = tiny_corpus()
SIZE = CONFIG.dspark_block_size
TINY = dataclasses.replace(CONFIG, dspark_noise_token_id=3)


def test_shares_by_hand():
    rounds = Rounds(torch.zeros(5, 3), torch.tensor([0, 3, 1, 2, 3]))
    assert rounds.prefixes.tolist() == [
        [False, False, False],
        [True, True, True],
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]
    assert [place.mean for place in rounds.by_place()] == [4 / 5, 3 / 5, 2 / 5]
    assert rounds.conditional() == [4 / 5, 3 / 4, 2 / 3]
    assert rounds.tokens().mean == pytest.approx((1 + 4 + 2 + 3 + 4) / 5)
    # Confidences of a half: survival 1/2, 1/4, 1/8.
    assert rounds.errors() == pytest.approx([4 / 5 - 1 / 2, 3 / 5 - 1 / 4, 2 / 5 - 1 / 8])


def test_a_place_that_no_round_reached_has_no_share():
    rounds = Rounds(torch.zeros(2, 3), torch.tensor([0, 1]))
    shares = rounds.conditional()
    assert shares[:2] == [1 / 2, 0]
    assert math.isnan(shares[2])


def test_a_fitted_calibration_lowers_the_errors():
    """Drafts that are accepted half of the time, said to be nearly sure."""
    generator = torch.Generator().manual_seed(0)
    stands = torch.rand(4000, 3, generator=generator) < torch.tensor([0.7, 0.6, 0.55])
    rounds = Rounds(torch.full((4000, 3), 4.0), stands.int().cumprod(1).sum(1))
    calibration = calibrate(rounds)
    assert all(temperature > 1 for temperature in calibration.temperatures)
    before, after = rounds.errors(), rounds.errors(calibration)
    assert all(late < early / 4 for early, late in zip(before, after, strict=True))
    assert rounds.errors(Calibration((1.0,) * 3)) == before


@pytest.mark.parametrize("wrong_at", [None, 0, 2])
def test_rounds_of_an_oracle(wrong_at):
    """Greedy: the drafts up to the wrong one stand in every round, and the text is the model's own."""
    model, _ = pair(TINY)
    prompt = next(prompts(CORPUS, "source", 1, 24))
    truth = list(generate(model, prompt, 40, temperature=0, stop_ids=()))
    oracle = Oracle(TINY).requires_grad_(False)
    oracle.truth, oracle.wrong_at = prompt + truth, wrong_at
    rounds = draft_rounds(model, oracle, CORPUS, 1, temperature=0.0, length=24, new_tokens=8)
    stands = SIZE if wrong_at is None else wrong_at
    assert rounds.accepted.tolist() == [stands] * len(rounds.accepted)
    assert len(rounds.accepted) == -(-8 // (stands + 1))
    assert rounds.logits.shape == (len(rounds.accepted), SIZE)
    assert torch.isfinite(rounds.logits).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rounds_are_the_same_every_time(temperature):
    model, drafter = pair(TINY)
    settings = {"temperature": temperature, "length": 24, "new_tokens": 6}
    first, second = (draft_rounds(model, drafter, CORPUS, 2, "copy", **settings) for _ in range(2))
    assert torch.equal(first.logits, second.logits)
    assert torch.equal(first.accepted, second.accepted)
    assert first.accepted.max() <= SIZE
    other = draft_rounds(model, drafter, CORPUS, 2, "copy", seed="another", **settings)
    assert first.logits.shape != other.logits.shape or not torch.equal(first.logits, other.logits)


def test_drafts_from_the_models_own_distributions_all_stand(monkeypatch):
    """At temperature 1 too: the distributions overlap wholly."""
    model, drafter = pair(TINY, "none")
    real = draft_evaluation.propose

    def propose(drafter, model, cache, last, draws):
        """Each draft drawn from the model's own distribution, found by a second cache."""
        found = real(drafter, model, cache, last, draws)[0]
        copy = drafter.new_cache(model, 80)
        model.prefill([fed[: cache.lengths[0]]], copy)
        rows, ids, token = [], [], last[0]
        for _ in range(SIZE):
            logits = model.decode(token, copy)[0, -1]
            rows.append(torch.softmax(logits.double(), -1))
            token = int(torch.multinomial(rows[-1], 1, generator=draws[0].random))
            ids.append(token)
        return {0: dataclasses.replace(found, ids=tuple(ids), proposed=torch.stack(rows))}

    fed = next(prompts(CORPUS, "source", 1, 24))

    def settle(proposal, logits, chosen):
        tokens = real_settle(proposal, logits, chosen)
        fed.extend([pending[-1], *tokens[:-1]])
        pending.append(tokens[-1])
        return tokens

    real_settle, pending = draft_evaluation.settle, []
    real_sample = draft_evaluation.sample
    monkeypatch.setattr(draft_evaluation, "sample", lambda *given: pending.append(real_sample(*given)) or pending[-1])
    monkeypatch.setattr(draft_evaluation, "propose", propose)
    monkeypatch.setattr(draft_evaluation, "settle", settle)
    rounds = draft_rounds(model, drafter, CORPUS, 1, length=24, new_tokens=10)
    assert rounds.accepted.tolist() == [SIZE] * 2


def test_prompts_are_as_long_as_asked_and_the_same_every_time():
    found = list(prompts(CORPUS, "copy", 3, 32))
    assert [len(prompt) for prompt in found] == [32] * 3
    assert found == list(prompts(CORPUS, "copy", 3, 32))
    assert len({tuple(prompt) for prompt in found}) == 3
    assert found != list(prompts(CORPUS, "copy", 3, 32, seed="another"))
