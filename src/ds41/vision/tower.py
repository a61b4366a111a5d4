"""The vision tower and the aligner: from patches to vectors that stand in the prompt.

No position is learned and no token is added: rotary angles of row and column are all that the tower knows of a
patch's place.

Source: the released ``inference/model.py``; ``vision_config``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from ds41.config import ConfigError, ModelConfig, VisionConfig
from ds41.norm import RMSNorm
from ds41.rope import frequencies
from ds41.vision.sizes import ImagePlan, check_grid

# The text model's 1e-20 is not the tower's.
_NORM_EPS = 1e-6

# Rows and columns of patches.
Grid = tuple[int, int]
# Cosine and sine of every patch's angles, float32 [P, 1, head_dim / 2].
Turn = tuple[torch.Tensor, torch.Tensor]


class PatchEmbed(nn.Module):
    """A linear map of each flattened patch: [P, 3 * patch_size^2] to [P, hidden]."""

    def __init__(self, vision: VisionConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.proj = nn.Linear(3 * vision.patch_size**2, vision.hidden_size, dtype=dtype)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return self.proj(patches)


class VisionAttention(nn.Module):
    """Attention of every patch to every patch of its own image. ``wqkv`` gives thirds q, k, v."""

    def __init__(self, vision: VisionConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = vision.num_attention_heads
        self.wqkv = nn.Linear(vision.hidden_size, 3 * vision.hidden_size, dtype=dtype)
        self.wo = nn.Linear(vision.hidden_size, vision.hidden_size, dtype=dtype)

    def forward(self, x: torch.Tensor, turn: Turn, counts: Sequence[int]) -> torch.Tensor:
        """x [P, hidden], the images one after the other; counts: patches of each."""
        q, k, v = self.wqkv(x).unflatten(-1, (3, self.heads, -1)).unbind(1)
        parts = zip(*(t.split(counts) for t in (rotate_halves(q, *turn), rotate_halves(k, *turn), v)), strict=True)
        mixed = [
            functional.scaled_dot_product_attention(*(t.transpose(0, 1)[None] for t in part))[0].transpose(0, 1)
            for part in parts
        ]
        return self.wo(torch.cat(mixed).flatten(1))


class VisionMLP(nn.Module):
    """``w2(silu(gate) * up)``, where ``w1`` gives gate and up as halves. No bias, no clamp."""

    def __init__(self, vision: VisionConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.w1 = nn.Linear(vision.hidden_size, 2 * vision.intermediate_size, bias=False, dtype=dtype)
        self.w2 = nn.Linear(vision.intermediate_size, vision.hidden_size, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.w1(x).chunk(2, dim=-1)
        return self.w2(functional.silu(gate) * up)


class VisionBlock(nn.Module):
    """A pre-norm layer of the tower."""

    def __init__(self, vision: VisionConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm1 = RMSNorm(vision.hidden_size, _NORM_EPS)
        self.attn = VisionAttention(vision, dtype)
        self.norm2 = RMSNorm(vision.hidden_size, _NORM_EPS)
        self.mlp = VisionMLP(vision, dtype)

    def forward(self, x: torch.Tensor, turn: Turn, counts: Sequence[int]) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), turn, counts)
        return x + self.mlp(self.norm2(x))


class VisionTower(nn.Module):
    """The vision transformer. Images run together, one after the other with no padding, and never see each other."""

    def __init__(self, vision: VisionConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.head_dim = vision.hidden_size // vision.num_attention_heads
        self.rope_theta = vision.rope_theta
        self.patch_embed = PatchEmbed(vision, dtype)
        self.blocks = nn.ModuleList(VisionBlock(vision, dtype) for _ in range(vision.num_hidden_layers))
        self.norm = RMSNorm(vision.hidden_size, _NORM_EPS)

    def forward(self, patches: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """``patches`` of all images [P, 3 * patch_size^2] to features [P, hidden].

        Args:
            grids: rows and columns of each image; their products add up to P.

        Raises:
            ValueError: patches that the grids do not add up to.
        """
        counts = [down * across for down, across in grids]
        if patches.ndim != 2 or len(patches) != sum(counts):
            raise ValueError(
                f"patches are {list(patches.shape)}; expected [{sum(counts)}, ...] for grids {list(grids)}"
            )
        angles = grid_angles(grids, self.head_dim, self.rope_theta).to(patches.device)[:, None]
        turn = (angles.cos(), angles.sin())
        x = self.patch_embed(patches)
        for block in self.blocks:
            x = block(x, turn, counts)
        return self.norm(x)


def grid_angles(grids: Sequence[Grid], head_dim: int, theta: float) -> torch.Tensor:
    """Rotary angles of every patch, float32 [P, head_dim / 2]: half of them by its row, then half by its column."""
    freqs = frequencies(head_dim // 2, theta)
    places = [
        torch.cartesian_prod(torch.arange(down, device="cpu"), torch.arange(across, device="cpu"))
        for down, across in grids
    ]
    return (torch.cat(places).to(torch.float32)[:, :, None] * freqs).flatten(1)


def rotate_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (j, j + C/2) of the last dimension of x [..., C], in float32; cos and sin broadcast against
    [..., C/2].

    The language model's pairs are neighbours instead: see :mod:`ds41.rope`.
    """
    first, second = x.to(torch.float32).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Aligner(nn.Module):
    """Joins squares of patches and maps them to the language model's width: ``w2(gelu(w1 x))``, both with bias."""

    def __init__(self, vision: VisionConfig, hidden_size: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.ratio = vision.downsample_ratio
        self.w1 = nn.Linear(vision.hidden_size * self.ratio**2, hidden_size, dtype=dtype)
        self.w2 = nn.Linear(hidden_size, hidden_size, dtype=dtype)

    def forward(self, features: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """``features`` of all images [P, C] to the vectors of their tokens [tokens, hidden], in reading order."""
        parts = features.split([down * across for down, across in grids])
        squares = [
            space_to_depth(part.unflatten(0, grid), self.ratio).flatten(0, 1)
            for part, grid in zip(parts, grids, strict=True)
        ]
        return self.w2(functional.gelu(self.w1(torch.cat(squares))))


def space_to_depth(features: torch.Tensor, ratio: int) -> torch.Tensor:
    """``features`` [H, W, C] to [ceil(H / ratio), ceil(W / ratio), C * ratio^2]; zeros are added below and to the
    right.

    In a square, channel * ratio^2 + dy * ratio + dx: the order of an unfold, not that of neighbouring pixels.
    """
    down, across, channels = features.shape
    padded = functional.pad(features, (0, 0, 0, -across % ratio, 0, -down % ratio))
    squares = padded.unflatten(1, (-1, ratio)).unflatten(0, (-1, ratio))
    return squares.permute(0, 2, 4, 1, 3).reshape(*squares.shape[0:3:2], channels * ratio**2)


class Vision(nn.Module):
    """Everything between patches and prompt. Its parameters' names are those of the released checkpoint.

    ``image_start``, ``image_newline``, ``image_end`` [hidden_size] are the vectors of the positions of a span that
    hold no part of the image. Norm weights are float32 whatever ``dtype`` is.

    Raises:
        ConfigError: the configuration has no vision part, or its sizes fit no tower.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        vision = _checked(config.vision)
        self.config = config
        self.patch_values = 3 * vision.patch_size**2
        self.vision = VisionTower(vision, dtype)
        self.aligner = Aligner(vision, config.hidden_size, dtype)
        self.image_start = nn.Parameter(torch.empty(config.hidden_size, dtype=dtype))
        self.image_newline = nn.Parameter(torch.empty(config.hidden_size, dtype=dtype))
        self.image_end = nn.Parameter(torch.empty(config.hidden_size, dtype=dtype))
        self._initialize(config.initializer_range)

    def _initialize(self, std: float) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for vector in (self.image_start, self.image_newline, self.image_end):
            nn.init.normal_(vector, 0, std)

    def forward(self, images: Sequence[tuple[torch.Tensor, ImagePlan]]) -> list[torch.Tensor]:
        """The vectors of each image's span, [span_tokens, hidden_size]; differentiable.

        Args:
            images: patches [plan.patches, 3 * patch_size^2] and plan of each, as
                :func:`ds41.vision.patches_of` gives them.

        Raises:
            ValueError: patches do not have the shape that their plan says.
        """
        parts = self.image_vectors(images)
        return [self._span(part, plan) for part, (_, plan) in zip(parts, images, strict=True)]

    def image_vectors(self, images: Sequence[tuple[torch.Tensor, ImagePlan]]) -> list[torch.Tensor]:
        """Of each of ``images``, patches [P, 3 * patch_size^2] and their plan, what its IMAGE positions take,
        [image_tokens, hidden_size]; as :meth:`forward`.

        Raises:
            ValueError: patches that do not fit their plan.
        """
        if not images:
            return []
        for index, (patches, plan) in enumerate(images):
            expected = [plan.patches, self.patch_values]
            if list(patches.shape) != expected:
                raise ValueError(f"patches of image {index} are {list(patches.shape)}; expected {expected}")
        grids = [(plan.patches_down, plan.patches_across) for _, plan in images]
        flat = torch.cat([patches.to(self.image_start) for patches, _ in images])
        vectors = self.aligner(self.vision(flat, grids), grids)
        return list(vectors.split([plan.image_tokens for _, plan in images]))

    def _span(self, vectors: torch.Tensor, plan: ImagePlan) -> torch.Tensor:
        newlines = self.image_newline.expand(plan.tokens_down, 1, -1)
        rows = torch.cat((vectors.unflatten(0, (plan.tokens_down, plan.tokens_across)), newlines), dim=1)
        return torch.cat((self.image_start[None], rows.flatten(0, 1), self.image_end[None]))


def _checked(vision: VisionConfig | None) -> VisionConfig:
    if vision is None:
        raise ConfigError("vision is None; expected the sizes of a vision tower")
    check_grid(vision)
    for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "rope_theta"):
        value = getattr(vision, name)
        if value <= 0:
            raise ConfigError(f"vision.{name} is {value}; expected a positive number")
    if vision.hidden_size % (4 * vision.num_attention_heads):
        raise ConfigError(
            f"vision.hidden_size is {vision.hidden_size}; expected a multiple of {4 * vision.num_attention_heads}: "
            f"{vision.num_attention_heads} heads of a multiple of 4 channels, a pair each for row and column"
        )
    return vision
