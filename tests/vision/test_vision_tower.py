"""Tower, aligner and span vectors against loops in double precision, and images that must not see each other."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from small_vision import CONFIG, TINY, build

from ds41.config import ConfigError, ModelConfig
from ds41.vision import Role, Vision, plan_image, span_roles
from ds41.vision.tower import grid_angles, space_to_depth


def image_of(width: int, height: int, seed: int) -> tuple[torch.Tensor, object]:
    plan = plan_image(width, height, TINY)
    return torch.randn(plan.patches, 3 * 14 * 14, generator=torch.Generator().manual_seed(seed)), plan


def parameters(module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().double().numpy() for name, value in module.named_parameters()}


def assert_close(actual: torch.Tensor, expected: np.ndarray, tolerance: float = 5e-6) -> None:
    difference = np.linalg.norm(actual.detach().double().numpy() - expected) / np.linalg.norm(expected)
    assert difference < tolerance


def test_published_counts():
    with torch.device("meta"):
        model = Vision(ModelConfig.flash(), torch.bfloat16)

    def count(*prefixes):
        return sum(value.numel() for name, value in model.named_parameters() if name.startswith(prefixes))

    assert count("vision.") == 411_842_560
    assert count("aligner.") == 73_410_560
    assert count("image_") == 15_360
    assert count("") == 485_268_480
    assert len(list(model.parameters())) == 266


def test_official_names_and_shapes():
    block = {
        "norm1.weight": (32,),
        "attn.wqkv.weight": (96, 32),
        "attn.wqkv.bias": (96,),
        "attn.wo.weight": (32, 32),
        "attn.wo.bias": (32,),
        "norm2.weight": (32,),
        "mlp.w1.weight": (96, 32),
        "mlp.w2.weight": (32, 48),
    }
    hidden = CONFIG.hidden_size
    expected = {
        "vision.patch_embed.proj.weight": (32, 588),
        "vision.patch_embed.proj.bias": (32,),
        **{f"vision.blocks.{index}.{name}": shape for index in range(2) for name, shape in block.items()},
        "vision.norm.weight": (32,),
        "aligner.w1.weight": (hidden, 32 * 9),
        "aligner.w1.bias": (hidden,),
        "aligner.w2.weight": (hidden, hidden),
        "aligner.w2.bias": (hidden,),
        **{f"image_{name}": (hidden,) for name in ("start", "newline", "end")},
    }
    assert {name: tuple(value.shape) for name, value in Vision(CONFIG).state_dict().items()} == expected


def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def turned(vector: np.ndarray, row: int, column: int) -> np.ndarray:
    """One head of one patch, pair by pair: the first half of the pairs by its row, the second by its column."""
    pairs = len(vector) // 2
    out = np.empty_like(vector)
    for pair in range(pairs):
        place, index = (row, pair) if pair < pairs // 2 else (column, pair - pairs // 2)
        angle = place * 10000.0 ** (-2 * index / pairs)
        a, b = vector[pair], vector[pair + pairs]
        out[pair] = a * math.cos(angle) - b * math.sin(angle)
        out[pair + pairs] = a * math.sin(angle) + b * math.cos(angle)
    return out


def tower_by_loops(p: dict[str, np.ndarray], patches: np.ndarray, down: int, across: int) -> np.ndarray:
    heads, size = TINY.num_attention_heads, TINY.hidden_size // TINY.num_attention_heads
    places = [(row, column) for row in range(down) for column in range(across)]
    x = patches @ p["patch_embed.proj.weight"].T + p["patch_embed.proj.bias"]
    for index in range(TINY.num_hidden_layers):
        b = {name: p[f"blocks.{index}.{name}"] for name in
             ("norm1.weight", "attn.wqkv.weight", "attn.wqkv.bias", "attn.wo.weight", "attn.wo.bias",
              "norm2.weight", "mlp.w1.weight", "mlp.w2.weight")}  # fmt: skip
        q, k, v = np.split(norm(x, b["norm1.weight"]) @ b["attn.wqkv.weight"].T + b["attn.wqkv.bias"], 3, axis=1)
        mixed = np.zeros_like(x)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            queries = np.stack([turned(q[i, part], *place) for i, place in enumerate(places)])
            keys = np.stack([turned(k[i, part], *place) for i, place in enumerate(places)])
            scores = np.exp(queries @ keys.T / math.sqrt(size))
            mixed[:, part] = scores / scores.sum(1, keepdims=True) @ v[:, part]
        x = x + mixed @ b["attn.wo.weight"].T + b["attn.wo.bias"]
        gate, up = np.split(norm(x, b["norm2.weight"]) @ b["mlp.w1.weight"].T, 2, axis=1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ b["mlp.w2.weight"].T
    return norm(x, p["norm.weight"])


# With tiny embeddings the epsilon of the first norm decides.
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_tower_by_loops(scale):
    tower = build().vision
    with torch.no_grad():
        for parameter in tower.patch_embed.parameters():
            parameter.mul_(scale)
    patches = torch.randn(4 * 5, 588, generator=torch.Generator().manual_seed(1))
    expected = tower_by_loops(parameters(tower), patches.double().numpy(), 4, 5)
    assert_close(tower(patches, [(4, 5)]), expected)


def test_angles_are_by_row_then_by_column():
    angles = grid_angles([(3, 4)], 16, 10000.0)
    assert angles.shape == (12, 8)
    row_two_column_one = [2 * 10000 ** (-i / 4) for i in range(4)] + [10000 ** (-i / 4) for i in range(4)]
    torch.testing.assert_close(angles[2 * 4 + 1], torch.tensor(row_two_column_one))


def test_space_to_depth_is_channel_major():
    down, across, channels, ratio = 4, 5, 2, 3
    grid = torch.arange(1.0, down * across * channels + 1).reshape(down, across, channels)
    expected = torch.zeros(2, 2, channels * ratio * ratio)
    for y in range(down):
        for x in range(across):
            for channel in range(channels):
                index = channel * ratio * ratio + y % ratio * ratio + x % ratio
                expected[y // ratio, x // ratio, index] = grid[y, x, channel]
    assert torch.equal(space_to_depth(grid, ratio), expected)
    unfolded = torch.nn.functional.unfold(
        torch.nn.functional.pad(grid, (0, 0, 0, 1, 0, 2)).permute(2, 0, 1)[None], ratio, stride=ratio
    )
    assert torch.equal(unfolded[0].T.reshape(2, 2, -1), expected)


def test_aligner_has_the_exact_gelu():
    aligner = build().aligner
    features = torch.randn(6 * 3, 32, generator=torch.Generator().manual_seed(2))
    p = parameters(aligner)
    squares = space_to_depth(features.reshape(6, 3, 32), 3).double().numpy().reshape(2, -1)
    inner = squares @ p["w1.weight"].T + p["w1.bias"]
    inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
    assert_close(aligner(features, [(6, 3)]), inner @ p["w2.weight"].T + p["w2.bias"])


def test_span_holds_each_vector_at_its_role():
    model, image = build(), image_of(200, 130, seed=3)
    patches, plan = image
    span = model([image])[0]
    roles = torch.from_numpy(span_roles(plan))
    grids = [(plan.patches_down, plan.patches_across)]
    assert span.shape == (plan.span_tokens, CONFIG.hidden_size)
    assert torch.equal(span[roles == Role.IMAGE], model.aligner(model.vision(patches, grids), grids))
    for role, vector in (("START", "image_start"), ("NEWLINE", "image_newline"), ("END", "image_end")):
        rows = span[roles == Role[role]]
        assert torch.equal(rows, getattr(model, vector).expand_as(rows))


def test_images_do_not_see_each_other():
    model = build()
    images = [image_of(200, 130, seed=4), image_of(130, 260, seed=5), image_of(200, 130, seed=6)]
    alone = [model([image])[0] for image in images]
    for order in ((0, 1, 2), (2, 0, 1)):
        for index, span in zip(order, model([images[index] for index in order]), strict=True):
            torch.testing.assert_close(span, alone[index], rtol=1e-5, atol=1e-5)
    patches = [patches.requires_grad_() for patches, _ in images]
    model(images)[1].square().sum().backward()
    assert patches[1].grad.abs().sum(1).min() > 0
    assert not patches[0].grad.any()
    assert not patches[2].grad.any()


def test_every_parameter_learns():
    model = Vision(CONFIG)
    model([image_of(200, 130, seed=7)])[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().sum() > 0, name


def test_initial_values():
    torch.manual_seed(0)
    for name, value in Vision(CONFIG).state_dict().items():
        if name.endswith("bias"):
            assert not value.any(), name
        elif "norm" in name:
            assert torch.equal(value, torch.ones_like(value)), name
        else:
            assert value.std().item() == pytest.approx(0.02, rel=0.25), name


def test_bfloat16_stays_near_float32():
    exact, rounded = build(), build(dtype=torch.bfloat16)
    rounded.load_state_dict(exact.state_dict())
    images = [image_of(200, 130, seed=8)]
    span = rounded(images)[0]
    assert span.dtype == torch.bfloat16
    assert_close(span, exact(images)[0].detach().double().numpy(), tolerance=0.05)


def test_no_images_give_no_spans():
    assert build()([]) == []


def test_patches_must_fit_their_plan():
    patches, plan = image_of(200, 130, seed=9)
    with pytest.raises(
        ValueError, match=rf"patches of image 1 are \[{plan.patches - 1}, 588\]; expected \[{plan.patches}"
    ):
        build()([(patches, plan), (patches[1:], plan)])
    with pytest.raises(ValueError, match=r"patches are \[5, 588\]; expected \[6, ...\]"):
        build().vision(patches[:5], [(2, 3)])


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"hidden_size": 36}, "hidden_size is 36; expected a multiple of 8"),
        ({"num_attention_heads": 3}, "hidden_size is 32; expected a multiple of 12"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"intermediate_size": -1}, "intermediate_size is -1"),
        ({"rope_theta": 0.0}, "rope_theta is 0.0"),
        ({"patch_size": 0}, "patch_size is 0"),
        ({"downsample_ratio": 0}, "downsample_ratio is 0"),
        ({"max_image_tokens": 1}, "max_image_tokens is 1"),
    ],
)
def test_sizes_that_fit_no_tower(changed, named):
    config = dataclasses.replace(CONFIG, vision=dataclasses.replace(TINY, **changed))
    with pytest.raises(ConfigError, match=named):
        Vision(config)


def test_a_text_model_has_no_vision():
    with pytest.raises(ConfigError, match="vision is None"):
        Vision(ModelConfig.mini())
