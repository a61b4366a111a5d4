"""Rotary position embedding: the plain table of window-only layers, the YaRN table of all others.

Pairs are interleaved and stand at the end of a vector: of C channels, the last R rotate as R/2 complex numbers.
YaRN changes frequencies only; no factor enters the softmax scale.

Source: report section 4.2.1 and the released configuration (``rope_theta``, ``compress_rope_theta``, ``rope_scaling``).
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from ds41.config import ModelConfig


@lru_cache(maxsize=64)
def layer_frequencies(config: ModelConfig, ratio: int) -> torch.Tensor:
    """Radians per position for a layer of compression ``ratio``: float32 [qk_rope_head_dim / 2], on the CPU.

    Ratio 0 takes ``rope_theta`` as it is; every other layer takes ``compress_rope_theta`` with YaRN, however short
    the sequence.
    """
    if ratio == 0:
        return frequencies(config.qk_rope_head_dim, config.rope_theta)
    return yarn_frequencies(
        config.qk_rope_head_dim,
        config.compress_rope_theta,
        config.rope_factor,
        config.original_max_position_embeddings,
        config.rope_beta_fast,
        config.rope_beta_slow,
    )


def frequencies(channels: int, theta: float) -> torch.Tensor:
    """``theta^(-2i/channels)`` for i in 0 .. channels/2 - 1: float32 [channels/2]."""
    exponents = torch.arange(0, channels, 2, dtype=torch.float64, device="cpu") / channels
    return (theta**-exponents).to(torch.float32)


def yarn_frequencies(
    channels: int, theta: float, factor: float, original_length: int, beta_fast: float, beta_slow: float
) -> torch.Tensor:
    """YaRN: fast pairs keep their frequency, slow ones are divided by ``factor``, a ramp lies between: float32
    [channels/2].
    """

    def pair_that_turns(times: float) -> float:
        return channels * math.log(original_length / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_that_turns(beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(beta_slow)), channels - 1)
    ramp = (torch.arange(channels // 2, dtype=torch.float64, device="cpu") - low) / max(high - low, 1e-3)
    slow_share = ramp.clamp(0, 1)
    plain = frequencies(channels, theta).to(torch.float64)
    return (plain * (1 - slow_share) + plain / factor * slow_share).to(torch.float32)


def turns(positions: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """``exp(i * position * frequency)``: complex64 [..., R/2] for positions [...] and ``freqs`` float32 [R/2], to
    rotate many tensors by.
    """
    angles = positions.to(torch.float32)[..., None] * freqs.to(positions.device)
    return torch.polar(torch.ones_like(angles), angles)


def rotate_by(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Rotate the last channels of ``x`` [..., C] by ``turn`` [..., R/2], in float32; ``turn.conj()`` turns back.

    Returns:
        A new tensor in the type and shape of ``x``; the leading C - R channels are copied.

    Raises:
        ValueError: ``x`` has fewer channels than the rotation turns.
    """
    width = 2 * turn.shape[-1]
    if x.shape[-1] < width:
        raise ValueError(f"x has {x.shape[-1]} channels; the rotation needs {width}")
    pairs = torch.view_as_complex(x[..., -width:].to(torch.float32).unflatten(-1, (-1, 2)).contiguous())
    rotated = torch.view_as_real(pairs * turn).flatten(-2)
    return torch.cat((x[..., :-width], rotated.to(x.dtype)), dim=-1)


def rotate(x: torch.Tensor, positions: torch.Tensor, freqs: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """Rotate the last ``2 * len(freqs)`` channels of ``x`` by ``position * frequency``, in float32.

    Args:
        x: [..., C]. positions: integer tensor that broadcasts against the leading dimensions of ``x``.
        inverse: rotate back, as the attention output is at the query's position.
    """
    turn = turns(positions, freqs)
    return rotate_by(x, turn.conj() if inverse else turn)
