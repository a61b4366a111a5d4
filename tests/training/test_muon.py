"""Muon for stacks of matrices, held to torch's own and to its matrices one by one."""

import pytest
import torch

from ds41.training.muon import Muon, orthogonalize

SETTINGS = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.3}
SHAPES = [(24, 64), (64, 24), (32, 32), (1, 48)]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def run(optimizer, parameters, steps=3):
    """The parameters after every step, under gradients that differ from step to step."""
    seen = []
    for step in range(steps):
        for parameter in parameters:
            parameter.grad = random(*parameter.shape, seed=100 + step)
        optimizer.step()
        seen.append([parameter.detach().clone() for parameter in parameters])
    return seen


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize("shape", SHAPES)
def test_updates_are_those_of_torch(shape):
    ours, theirs = (torch.nn.Parameter(random(*shape)) for _ in range(2))
    reference = torch.optim.Muon([theirs], nesterov=True, ns_steps=5, adjust_lr_fn="match_rms_adamw", **SETTINGS)
    before = random(*shape)
    for (mine,), (other,) in zip(run(Muon([ours], steps=5, **SETTINGS), [ours]), run(reference, [theirs]), strict=True):
        decay = 1 - SETTINGS["lr"] * SETTINGS["weight_decay"]
        mine, other = mine - before * decay, other - before * decay
        cosine = torch.nn.functional.cosine_similarity(mine.flatten(), other.flatten(), dim=0)
        # torch iterates in bfloat16, here it is float32.
        assert cosine > 0.99
        assert mine.norm() / other.norm() == pytest.approx(1, abs=0.03)
        ours.data.copy_(before)
        theirs.data.copy_(before)


def test_a_stack_equals_its_matrices():
    for shape in ((5, 24, 40), (5, 40, 24), (5, 32, 32)):
        stack = torch.nn.Parameter(random(*shape))
        for part in range(5):
            single = torch.nn.Parameter(random(*shape)[part].clone())
            alone, together = Muon([single], **SETTINGS), Muon([stack], **SETTINGS)
            stack.data.copy_(random(*shape))
            for step in range(2):
                stack.grad = random(*shape, seed=step)
                single.grad = random(*shape, seed=step)[part].clone()
                alone.step()
                together.step()
            assert torch.equal(stack[part], single)


def test_matrices_of_one_shape_and_its_transpose_do_not_disturb_each_other():
    shapes = [(24, 40), (40, 24), (3, 24, 40), (16, 16)]
    together = [torch.nn.Parameter(random(*shape)) for shape in shapes]
    alone = [torch.nn.Parameter(random(*shape)) for shape in shapes]
    run(Muon(together, **SETTINGS), together)
    for parameter, expected in zip(together, alone, strict=True):
        run(Muon([expected], **SETTINGS), [expected])
        assert torch.equal(parameter, expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_update_has_the_size_of_an_adamw_update(shape):
    parameter = torch.nn.Parameter(torch.zeros(shape))
    parameter.grad = random(*shape)
    Muon([parameter], lr=1.0, weight_decay=0.0).step()
    # 0.2 where the singular values are one; the iteration leaves them near it.
    assert parameter.detach().pow(2).mean().sqrt().item() == pytest.approx(0.2, rel=0.4)


def test_singular_values_come_near_one():
    values = torch.linalg.svdvals(orthogonalize(random(8, 24, 64)))
    assert bool(((values > 0.6) & (values < 1.3)).all())


def test_a_parameter_without_gradient_is_left_alone():
    moved, left = (torch.nn.Parameter(random(8, 8, seed=seed)) for seed in (1, 2))
    optimizer = Muon([moved, left], **SETTINGS)
    moved.grad = random(8, 8)
    optimizer.step()
    assert torch.equal(left, random(8, 8, seed=2))
    assert not torch.equal(moved, random(8, 8, seed=1))
    assert left not in optimizer.state


def test_a_zero_gradient_only_decays():
    parameter = torch.nn.Parameter(random(6, 9))
    parameter.grad = torch.zeros(6, 9)
    Muon([parameter], **SETTINGS).step()
    assert torch.allclose(parameter, random(6, 9) * (1 - 0.02 * 0.3), atol=1e-7)


@pytest.mark.parametrize(
    ("name", "value"), [("lr", -1.0), ("momentum", 1.0), ("momentum", -0.1), ("weight_decay", -1.0), ("steps", 0)]
)
def test_a_bad_setting_is_refused_by_its_name(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}; expected"):
        Muon([torch.nn.Parameter(torch.zeros(2, 2))], **{name: value})


@pytest.mark.parametrize("shape", [(3,), (2, 2, 2, 2)])
def test_other_dimensions_are_refused(shape):
    with pytest.raises(ValueError, match=r"a parameter is \[.*\]; expected matrices"):
        Muon([torch.nn.Parameter(torch.zeros(shape))])
