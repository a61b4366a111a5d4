"""Losses of a pass, where windows begin anew, and which optimiser moves what."""

import pytest
import torch
from tiny_run import tiny_corpus, tiny_model, tiny_recipe

from ds41.training.losses import replay_begins, step_losses, token_losses
from ds41.training.muon import Muon
from ds41.training.optimizers import Optimizers, clip_gradients
from ds41.training.signals import Signals
from ds41.training.stream import make_batch

RECIPE = tiny_recipe()


def test_token_losses_are_of_the_next_token():
    logits = torch.randn(2, 5, 272, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[0, 7, 200, 3, 9], [0, 1, 2, 3, 4]])
    expected = [[-float(logits[b, t].log_softmax(0)[ids[b, t + 1]]) for t in range(4)] for b in range(2)]
    assert torch.allclose(token_losses(logits, ids), torch.tensor(expected), atol=1e-5)


def test_the_text_loss_weighs_tokens_as_the_rows_say():
    model, batch = tiny_model("none"), make_batch(tiny_corpus(), {"stream": 1.0}, 3, 40, "s")
    with torch.no_grad(), Signals(model) as signals:
        losses = step_losses(model, signals, batch, RECIPE.stages[0], RECIPE, seed=1)
        each, weights = token_losses(model(batch.ids), batch.ids), batch.weights[:, 1:]
    rows, places = batch.answers()
    assert float(losses.text) == pytest.approx(float((each * weights).sum() / weights.sum()), rel=1e-5)
    assert float(losses.answers) == pytest.approx(float(each[rows, places - 1].mean()), rel=1e-5)
    total = losses.text + RECIPE.alignment * losses.alignment + losses.balance
    assert float(losses.total) == pytest.approx(float(total), rel=1e-6)


def test_without_queries_there_is_no_answer_loss():
    model, batch = tiny_model("cache"), make_batch(tiny_corpus(), {"source": 1.0}, 2, 24, "s")
    with torch.no_grad(), Signals(model) as signals:
        losses = step_losses(model, signals, batch, RECIPE.stages[0], RECIPE, seed=1)
    assert bool(losses.answers.isnan())
    assert bool(losses.total.isfinite())


def test_windows_begin_anew_in_their_share_of_rows():
    begins = replay_begins((4000, 50), 8, 0.25, torch.Generator().manual_seed(0))
    anew = begins[begins < 50]
    assert len(anew) / 4000 == pytest.approx(0.25, abs=0.03)
    assert (int(anew.min()), int(anew.max())) == (8, 49)
    assert bool((replay_begins((9, 50), 8, 0.0, torch.Generator()) == 50).all())
    # A window longer than the row still leaves a place to begin.
    assert bool((replay_begins((9, 5), 8, 1.0, torch.Generator()) == 4).all())


@pytest.fixture
def model():
    return tiny_model("cache")


def test_muon_moves_matrices_and_adamw_the_rest(model):
    muon, adamw = Optimizers(model, RECIPE).each
    assert isinstance(muon, Muon)
    names = {parameter: name for name, parameter in model.named_parameters()}
    matrices = [names[parameter] for parameter in muon.param_groups[0]["params"]]
    rest, tables = ([names[parameter] for parameter in group["params"]] for group in adamw.param_groups)
    assert tables == ["layers.1.engram.embed.weight"]
    assert {"embed.weight", "head.weight", "norm.weight", "layers.0.attn.attn_sink"} <= set(rest)
    assert any(".experts." in name for name in matrices)
    assert any(".indexer.wq_b" in name for name in matrices)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert sorted(matrices + rest + tables) == sorted(trained)
    assert not any(name.endswith((".bias", ".bias_vl")) for name in matrices + rest)


def test_a_step_scales_every_rate_and_drops_the_gradients(model):
    optimizers = Optimizers(model, RECIPE)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)
    for factor in (0.5, 0.1):
        optimizers.step(factor)
        rates = [group["lr"] for optimizer in optimizers.each for group in optimizer.param_groups]
        full = (RECIPE.matrix_rate, RECIPE.other_rate, 5 * RECIPE.other_rate)
        assert rates == pytest.approx([factor * rate for rate in full])
    assert all(parameter.grad is None for parameter in model.parameters())
    assert optimizers.each[1].defaults["weight_decay"] == 0


def test_gradients_are_clipped_together(model):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.1)
    count = sum(parameter.numel() for parameter in parameters)
    assert clip_gradients(model, 1.0) == pytest.approx(0.1 * count**0.5, rel=1e-2)
    total = sum(float(parameter.grad.pow(2).sum()) for parameter in parameters)
    assert total == pytest.approx(1, rel=2e-2)
    assert clip_gradients(model, 10.0) == pytest.approx(1, rel=1e-2)
