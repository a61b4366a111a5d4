"""Other ways to spend four and eight bits, for comparison with the published formats. Fake quantisation only.

Each function takes [..., C] and returns the values that a stored copy would give back, in float32.

Source: OCP Microscaling Formats (MX) v1.0; NVFP4 as NVIDIA documents it; the other variants are ds41's own.
"""

from __future__ import annotations

import torch

from ds41.formats import INDEX_KEY, MAIN_KV
from ds41.small_floats import E2M1_MAX, E4M3_MAX, number_table, round_to_e2m1, round_to_e4m3


def nvfp4(x: torch.Tensor) -> torch.Tensor:
    """NVFP4 proper: MAIN_KV under one float32 scale for all of ``x`` [..., C], which maps its maximum to 448 * 6.

    Raises:
        ValueError: the channels do not divide into blocks.
    """
    x = x.to(torch.float32)
    # An all-zero tensor keeps a scale of one: there is nothing to map.
    tensor_scale = (x.abs().max() / (E4M3_MAX * E2M1_MAX)) or x.new_tensor(1.0)
    return MAIN_KV.fake_quantize(x / tensor_scale) * tensor_scale


def mxfp4_floor(x: torch.Tensor) -> torch.Tensor:
    """``x`` [..., C] in MXFP4 with the exponent rule of OCP's text: floor(log2(amax)) - 2, which clips above 6 * 2^e.

    Raises:
        ValueError: the channels do not divide into blocks.
    """
    blocks, shape = _blocks(x, INDEX_KEY.block)
    amax = blocks.abs().amax(-1, keepdim=True).clamp(min=INDEX_KEY.amax_floor)
    return _with_scale(blocks, torch.exp2(torch.floor(torch.log2(amax)) - 2)).view(shape)


def e4m3_scale_per_32(x: torch.Tensor) -> torch.Tensor:
    """``x`` [..., C] by MAIN_KV's recipe with half as many scales: 4.25 bits a channel.

    Raises:
        ValueError: the channels do not divide into blocks.
    """
    blocks, shape = _blocks(x, 32)
    return _with_scale(blocks, _e4m3(_main_target(blocks))).view(shape)


def scale_rounded_up(x: torch.Tensor) -> torch.Tensor:
    """``x`` [..., C] in MAIN_KV with the scale rounded up to the next E4M3 number: nothing clips below 448 * 6.

    Raises:
        ValueError: the channels do not divide into blocks.
    """
    blocks, shape = _blocks(x, MAIN_KV.block)
    target = _main_target(blocks).clamp(max=E4M3_MAX)
    nearest = round_to_e4m3(target)
    values = number_table("e4m3", x.device)
    too_small = values[nearest.int()] < target
    return _with_scale(blocks, values[nearest.int() + too_small]).view(shape)


def int4(x: torch.Tensor) -> torch.Tensor:
    """``x`` [..., C] as integers -7..7 under an unrounded float16 scale per 16 channels: 5 bits a channel.

    Raises:
        ValueError: the channels do not divide into blocks.
    """
    blocks, shape = _blocks(x, 16)
    # The least float16 above zero keeps an all-zero block from dividing by zero.
    scale = (blocks.abs().amax(-1, keepdim=True) / 7).clamp(min=2.0**-24).to(torch.float16).float()
    return ((blocks / scale).round().clamp(-7, 7) * scale).view(shape)


def _blocks(x: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Size]:
    if x.shape[-1] % block:
        raise ValueError(f"a row has {x.shape[-1]} channels; expected a multiple of {block}")
    return x.to(torch.float32).reshape(-1, block), x.shape


def _main_target(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.abs().amax(-1, keepdim=True).clamp(min=MAIN_KV.amax_floor) / E2M1_MAX


def _e4m3(scale: torch.Tensor) -> torch.Tensor:
    return number_table("e4m3", scale.device)[round_to_e4m3(scale).int()]


def _with_scale(blocks: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    scaled = blocks / scale
    codes = round_to_e2m1(scaled.abs()).int()
    return torch.copysign(number_table("e2m1", blocks.device)[codes], scaled) * scale
