"""Main KV in several formats on a small model: equal selection, losses by hand, and what the comparison says."""

from __future__ import annotations

import dataclasses
import json

import pytest
import tiny_model
import torch

from ds41.formats import MAIN_KV
from ds41.probes.estimates import Estimate
from ds41.probes.format_comparison import (
    NOT_ROUNDED,
    FormatRow,
    Questions,
    accuracy_by_length,
    compare_formats,
    grown_norm_weights,
    measure,
    training_against_post_hoc,
    with_main_format,
)
from ds41.probes.fp4_claims import trained_claims
from ds41.probes.main_formats import MAIN_FORMATS, UNROUNDED, Scaled
from ds41.probes.selection_tape import SelectionTape


class Negated:
    """Main KV with its sign turned: no format is this wrong."""

    def fake_quantize(self, x):
        return -x


@pytest.fixture(scope="module")
def model():
    """Random weights, large enough that selections and answers follow from what is read."""
    made = tiny_model.build()
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.mul_(6)
    return made


def questions(length=48, rows=3, seed=0) -> Questions:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, tiny_model.CONFIG.vocab_size, (rows, length), generator=generator)
    row = torch.arange(rows).repeat_interleave(2)
    return Questions(ids, row, torch.tensor([length // 2, length - 2]).repeat(rows))


def test_fp4_is_what_the_model_itself_does(model):
    ids = questions().ids
    assert torch.equal(with_main_format(model, ids, MAIN_KV), model(ids))


def test_replayed_passes_select_what_the_recorded_one_did(model):
    ids = questions().ids
    tape, seen, free = SelectionTape(model), SelectionTape(model), SelectionTape(model)
    with tape.record():
        with_main_format(model, ids, UNROUNDED)
    with tape.replay(), seen.record():
        with_main_format(model, ids, Negated())
    with free.record():
        with_main_format(model, ids, Negated())
    layers = [plan.index for plan in model.config.layers if plan.owns_selection]
    assert list(tape.selections) == layers
    assert all(torch.equal(seen.selections[layer].entries, tape.selections[layer].entries) for layer in layers)
    assert any(not torch.equal(free.selections[layer].entries, tape.selections[layer].entries) for layer in layers)


def test_equal_selection_changes_what_a_format_costs(model):
    asked = questions()
    equal, own = (measure(model, asked, {"negated": Negated()}, equal_selection=one) for one in (True, False))
    assert torch.equal(equal[NOT_ROUNDED].loss, own[NOT_ROUNDED].loss)
    assert not torch.equal(equal["negated"].loss, own["negated"].loss)


def test_a_pass_of_other_length_and_an_empty_tape_are_refused(model):
    tape = SelectionTape(model)
    with pytest.raises(ValueError, match="the tape holds none"), tape.replay():
        model(questions().ids)
    with tape.record():
        model(questions().ids)
    with pytest.raises(ValueError, match="the tape holds"), tape.replay():
        model(questions(length=40).ids)
    assert not any(layer.attn.indexer._forward_hooks for layer in model.layers if hasattr(layer.attn, "indexer"))


def test_losses_and_hits_are_those_of_the_answers_tokens(model):
    asked = questions()
    found = measure(model, asked, {"FP4": MAIN_KV}, equal_selection=False, batch=2)["FP4"]
    log_shares = model(asked.ids).log_softmax(-1)
    for number, (row, first) in enumerate(zip(asked.row.tolist(), asked.position.tolist(), strict=True)):
        tokens = [int(asked.ids[row, first + offset]) for offset in range(2)]
        before = [log_shares[row, first + offset - 1] for offset in range(2)]
        loss = -sum(float(shares[token]) for shares, token in zip(before, tokens, strict=True)) / 2
        assert float(found.loss[number]) == pytest.approx(loss, rel=1e-4)
        assert bool(found.right[number]) == all(int(s.argmax()) == t for s, t in zip(before, tokens, strict=True))


def test_answers_that_the_model_gives_are_right(model):
    """Ask for the token that the unrounded model predicts: every answer is right, until main KV is negated."""
    asked = questions(rows=8)
    predicted = with_main_format(model, asked.ids, UNROUNDED)[asked.row, -2].argmax(-1)
    ids = asked.ids.clone()
    ids[asked.row, -1] = predicted
    rows = torch.arange(8)
    one = Questions(ids, rows, torch.full((8,), ids.shape[1] - 1), tokens=1)
    exact, negated = compare_formats(model, one, {"negated": Negated()})
    assert exact.accuracy.mean == 1
    assert exact.accuracy.low < 1
    assert negated.lost > 0
    assert negated.gained == 0
    assert negated.accuracy.mean == 1 - negated.lost / 8


def test_no_rounding_costs_nothing_and_rows_are_the_samples(model):
    rows = compare_formats(model, questions(), {"same": UNROUNDED} | MAIN_FORMATS)
    assert [row.format for row in rows] == [NOT_ROUNDED, "same", "FP4", "FP8", "bf16"]
    reference, same, fp4, fp8, bf16 = rows
    assert same.penalty == reference.penalty == Estimate(0, 0, 0, 3)
    assert (same.lost, same.gained, same.answers) == (0, 0, 6)
    assert abs(bf16.penalty.mean) < abs(fp4.penalty.mean)
    assert fp8.penalty.mean != fp4.penalty.mean
    assert json.loads(json.dumps(dataclasses.asdict(fp4)))["length"] == 48


def test_grown_weights_are_exact_until_the_scale_saturates_or_underflows(model):
    rows = grown_norm_weights(model, questions(), (1, 2, 8, 2.0**14, 2.0**-9))
    plain, double, eight, huge, small = (row.loss.mean for row in rows[1:])
    assert plain == double == eight
    assert huge != plain
    assert small != plain
    with pytest.raises(ValueError, match="factor is 0"):
        Scaled(MAIN_KV, 0)


def test_lengths_come_in_order_and_must_be_what_they_say(model):
    by_length = {40: questions(40), 24: questions(24)}
    rows = accuracy_by_length(model, by_length, {"FP4": MAIN_KV})
    assert [(row.length, row.format) for row in rows] == [
        (24, NOT_ROUNDED),
        (24, "FP4"),
        (40, NOT_ROUNDED),
        (40, "FP4"),
    ]
    assert rows[-1] == compare_formats(model, by_length[40], {"FP4": MAIN_KV})[-1]
    with pytest.raises(ValueError, match="length 32 have rows of 40"):
        accuracy_by_length(model, {32: questions(40)})


def test_post_training_compares_each_model_with_itself(model):
    other, asked = tiny_model.build(seed=5), questions()
    for row in training_against_post_hoc(model, model, asked):
        assert row.before == row.after
        assert row.change == Estimate(0, 0, 0, 3)
    (row,) = training_against_post_hoc(model, other, asked, {"FP4": MAIN_KV})
    assert row.before == compare_formats(model, asked, {"FP4": MAIN_KV})[1].penalty
    assert row.after == compare_formats(other, asked, {"FP4": MAIN_KV})[1].penalty
    assert row.change.mean == pytest.approx(row.after.mean - row.before.mean, abs=1e-6)


def test_questions_outside_of_the_rows_are_refused(model):
    ids = torch.zeros(2, 10, dtype=torch.int64)
    one = torch.tensor([1])
    with pytest.raises(ValueError, match="row holds 2 to 2; expected 0 to 1"):
        Questions(ids, torch.tensor([2]), one)
    with pytest.raises(ValueError, match="position holds 9 to 9; expected 1 to 8"):
        Questions(ids, one, torch.tensor([9]))
    with pytest.raises(ValueError, match="position holds 0"):
        Questions(ids, one, torch.tensor([0]))
    with pytest.raises(ValueError, match="one answer or more"):
        Questions(ids, one[:0], one[:0])
    with pytest.raises(ValueError, match="'not rounded', which is the reference's name"):
        measure(model, questions(), {NOT_ROUNDED: MAIN_KV})


def made_rows(length, fp4, fp8, lost=1, accuracy=0.9):
    def row(name, low, high, lost=0):
        found = Estimate(accuracy, 0, 1, 20)
        return FormatRow(name, length, found, found, Estimate((low + high) / 2, low, high, 20), lost, 0, 20)

    return [row(NOT_ROUNDED, 0, 0), row("FP4", *fp4, lost), row("FP8", *fp8)]


def test_claims_of_a_trained_model_follow_its_rows():
    def decided(*lengths):
        return [claim.holds for claim in trained_claims([row for rows in lengths for row in rows])]

    short, long = made_rows(64, (0, 0.008), (0, 0.004)), made_rows(256, (-0.01, 0.008), (-0.01, 0.01))
    assert decided(long, short) == [True, True]
    assert decided(short) == [True, None]
    assert decided(short, made_rows(256, (0.05, 0.07), (-0.01, 0.01))) == [False, False]
    assert decided(short, made_rows(256, (0, 0.008), (0, 0.004), lost=2)) == [False, True]
    # Wide intervals falsify nothing, and show nothing.
    assert decided(short, made_rows(256, (-0.2, 0.2), (-0.2, 0.2))) == [None, True]
    # Where the model finds little without rounding, its losses say nothing.
    assert decided(short, made_rows(256, (0.05, 0.07), (-0.01, 0.01), accuracy=0.4)) == [True, None]
    assert decided(made_rows(64, (0, 0.008), (0, 0.004), accuracy=0.1)) == [None, None]
    with pytest.raises(ValueError, match="length 64 has no row of FP8; it has not rounded, FP4"):
        trained_claims(short[:2])
