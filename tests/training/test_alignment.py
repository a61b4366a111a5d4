"""The indexer's signal: the teacher against a plain loop, the student against what the indexer really does."""

import math

import pytest
import torch
from tiny_run import read_signals, tiny_ids, tiny_model

from ds41.training.alignment import alignment_loss, attention_mass, index_scores
from ds41.training.serving_conditions import set_conditions

SHAPE = (3, 30)
POSITIONS = torch.tensor([0, 1, 2, 9, 16, 29])
SELECTING = (1, 3, 4)


@pytest.fixture(scope="module")
def model():
    return tiny_model("none")


@pytest.fixture(scope="module")
def signals(model):
    return read_signals(model, tiny_ids(*SHAPE), rounds=False)


def plain_attention(model, signals, layer, row, position):
    """Softmax of every head over window rows, visible entries and sink, and the head's output, by the definition."""
    config, plan = model.config, model.config.layers[layer]
    start, length = row * SHAPE[1], SHAPE[1]
    visible = (position + 1) // plan.ratio
    entries = signals.memory.written(plan.kv_source)[0].unflatten(0, (SHAPE[0], length // plan.ratio))[row, :visible]
    first = max(0, position - config.sliding_window + 1)
    keys = torch.cat((entries, signals.rows[layer][start + first : start + position + 1]))
    for head in range(config.num_attention_heads):
        query = signals.queries[layer][start + position, head]
        exponents = [math.exp((query @ key).item() / math.sqrt(config.head_dim)) for key in keys]
        total = sum(exponents) + math.exp(model.layers[layer].attn.attn_sink[head].item())
        shares = torch.tensor([exponent / total for exponent in exponents])
        yield shares[:visible], shares @ keys


@pytest.mark.parametrize("source", SELECTING)
def test_the_mass_is_what_a_plain_loop_finds(model, signals, source):
    mass = attention_mass(model, signals, source, SHAPE, POSITIONS)
    served = [plan.index for plan in model.config.layers if plan.ratio and plan.index_source == source]
    assert len(served) == (2 if source == 1 else 1)
    for row in range(SHAPE[0]):
        for number, position in enumerate(POSITIONS.tolist()):
            visible = (position + 1) // model.config.layers[source].ratio
            heads = [share for layer in served for share, _ in plain_attention(model, signals, layer, row, position)]
            assert torch.allclose(mass[row, number, :visible], sum(heads, torch.zeros(visible)), atol=1e-5)
            assert bool((mass[row, number, visible:] == 0).all())
    # Sinks, which start at zero, and windows take their part.
    assert bool((mass.sum(-1) < len(served) * model.config.num_attention_heads).all())


def test_the_teacher_is_the_attention_of_a_model_that_selects_everything(monkeypatch):
    dense, outputs = tiny_model("none", index_topk=SHAPE[1], candidate_source_layer_id=-1), []
    attend = __import__("ds41.attention.attention", fromlist=["sparse_attention"]).sparse_attention
    monkeypatch.setattr(
        "ds41.attention.attention.sparse_attention", lambda *given: outputs.append(attend(*given)) or outputs[-1]
    )
    signals = read_signals(dense, tiny_ids(*SHAPE), rounds=False)
    for layer in (1, 2, 3, 4):
        for row, position in ((0, 0), (1, 13), (2, 29)):
            heads = torch.stack([out for _, out in plain_attention(dense, signals, layer, row, position)])
            assert torch.allclose(outputs[layer][row * SHAPE[1] + position], heads, atol=1e-5)


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("layer", SELECTING)
def test_scores_are_those_that_the_indexer_selects_by(rounds, layer):
    model = tiny_model("cache")
    set_conditions(model, serving=rounds)
    with torch.no_grad():
        signals = read_signals(model, tiny_ids(*SHAPE), rounds)
        found = index_scores(model, signals, layer, SHAPE, POSITIONS)
        indexer, entries = model.layers[layer].attn.indexer, SHAPE[1] // model.config.layers[layer].ratio
        asked = indexer.query(*signals.asking[layer])
        for row in range(SHAPE[0]):
            mine = asked.part(slice(row * SHAPE[1], (row + 1) * SHAPE[1]))
            scores = indexer.scores(mine, row, entries, signals.memory)[POSITIONS]
            visible = (POSITIONS + 1) // model.config.layers[layer].ratio
            scores.masked_fill_(torch.arange(entries) >= visible[:, None], -torch.inf)
            assert torch.allclose(found[row], scores, atol=1e-6)


def test_rounding_changes_the_scores(model):
    rounded = tiny_model("cache")
    ids = tiny_ids(*SHAPE)
    plain, coarse = (
        index_scores(each, read_signals(each, ids, False), 3, SHAPE, POSITIONS) for each in (model, rounded)
    )
    seen = plain.isfinite()
    assert torch.equal(seen, coarse.isfinite())
    assert not torch.allclose(plain[seen], coarse[seen], atol=1e-6)


def test_before_the_first_entry_there_are_no_scores(model):
    signals = read_signals(model, tiny_ids(2, 1), rounds=False)
    assert index_scores(model, signals, 1, (2, 1), torch.tensor([0])) is None
    assert float(alignment_loss(model, signals, (2, 1), torch.tensor([0]))) == 0


def test_queries_that_see_no_entry_do_not_count(model, signals):
    # At position 0 a ratio-2 source has no entry, and a ratio-1 source a single one.
    assert float(alignment_loss(model, signals, SHAPE, torch.tensor([0]))) == 0


@pytest.mark.parametrize("legal", ["visible", "selected"])
def test_the_loss_is_the_cross_entropy_of_its_definition(model, signals, legal):
    losses = []
    for source in SELECTING:
        scores = index_scores(model, signals, source, SHAPE, POSITIONS)
        mass = attention_mass(model, signals, source, SHAPE, POSITIONS)
        of_source = []
        for row in range(SHAPE[0]):
            for number, position in enumerate(POSITIONS.tolist()):
                visible = range((position + 1) // model.config.layers[source].ratio)
                best = sorted(visible, key=lambda e, at=scores[row, number]: -float(at[e]))
                kept = list(visible) if legal == "visible" else best[: model.config.index_topk]
                if not kept:
                    continue
                target = mass[row, number, kept] / mass[row, number, kept].sum()
                of_source.append(float(-(target * scores[row, number, kept].log_softmax(0)).sum()))
        losses.append(sum(of_source) / len(of_source))
    assert float(alignment_loss(model, signals, SHAPE, POSITIONS, legal)) == pytest.approx(sum(losses) / 3, abs=1e-5)


@pytest.mark.parametrize("legal", ["visible", "selected"])
def test_the_gradient_reaches_indexers_and_nothing_else(model, signals, legal):
    model.zero_grad()
    alignment_loss(model, signals, SHAPE, POSITIONS, legal).backward(retain_graph=True)
    reached = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    parts = {f"layers.{layer}.attn.indexer.{part}.weight" for layer in SELECTING for part in ("wq_b", "weights_proj")}
    keys = {f"layers.{layer}.attn.indexer.keys.{part}.weight" for layer in (1, 3) for part in ("wk", "k_norm")}
    assert reached == parts | keys
    assert all(bool(model.get_parameter(name).grad.any()) for name in reached)
    model.zero_grad()


def selected_share(model, signals, positions):
    """Share of the attention mass on entries that lies on the selected ones, averaged over selecting layers."""
    shares = []
    for source in SELECTING:
        scores = index_scores(model, signals, source, SHAPE, positions)
        mass = attention_mass(model, signals, source, SHAPE, positions)
        best = scores.topk(model.config.index_topk, -1).indices
        shares.append((mass.gather(-1, best).sum(-1) / mass.sum(-1)).mean())
    return float(torch.stack(shares).mean())


def test_the_signal_teaches_the_indexer_where_attention_goes():
    model, positions = tiny_model("none", seed=1), torch.arange(20, SHAPE[1])
    with torch.no_grad():
        signals = read_signals(model, tiny_ids(*SHAPE, seed=1), rounds=False)
    parameters = [parameter for name, parameter in model.named_parameters() if ".indexer." in name]
    optimizer = torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.0)
    share, losses = selected_share(model, signals, positions), []
    for _ in range(200):
        loss = alignment_loss(model, signals, SHAPE, positions)
        losses.append(float(loss))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.05
    assert selected_share(model, signals, positions) > share + 0.05
