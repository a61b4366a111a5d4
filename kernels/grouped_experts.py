"""Grouped experts over packed FP4 weights: group the pairs, go up, go down, add up a token's choices.

A weight [O, C] is its codes uint8 [O, C/2], two E2M1 numbers a byte with the even column in the low nibble, and its
scales uint8 [O, C/32], E8M0. C is a multiple of 32.

Source: report section 2.1.1; the released model's ``MoE``.
"""

from __future__ import annotations

import torch

from .decode import decode_blocks
from .encode import encode_blocks
from .expert_products import experts_down_launch, experts_up_launch
from .expert_tiles import ExpertTiles, rows_per_tile
from .group_tokens import group_tokens
from .launch import capability
from .sum_choices import sum_choices_launch
from .tiles import FLOAT_TYPES

# The released model rounds the inputs of FP8 and FP4 matrices as it rounds window entries.
_INPUT_FORMAT = {"element": "e4m3", "scale": "e8m0", "block": 32}


def experts_up(
    x: torch.Tensor,
    order: torch.Tensor,
    tile_experts: torch.Tensor,
    weights: torch.Tensor,
    w1_codes: torch.Tensor,
    w1_scales: torch.Tensor,
    w3_codes: torch.Tensor,
    w3_scales: torch.Tensor,
    limit: float,
    round_output: bool,
) -> torch.Tensor:
    """``silu(min(w1 x, limit)) * clamp(w3 x, -limit, limit) * weight`` for each pair, float32 within.

    Args:
        x: float32, bfloat16 or float16 [N, C]. order, tile_experts: from :func:`~.group_tokens.group_tokens` over
            indices [N, k]. weights: float32 [N, k].
        w1_codes, w3_codes: uint8 [E, I, C/2]. w1_scales, w3_scales: uint8 [E, I, ceil(C/32)].
        limit: positive, as in the configuration. round_output: round the result to FP8, 32 channels a scale, as the
            released model rounds the input of w2.

    Returns:
        hidden [rows, I] in the type of x, rows as in ``order``; zero where that holds no pair.

    Raises:
        ValueError: a tensor of another shape, type, device or layout, or a number out of range; the message names it.
    """
    _check_rows("x", x, w1_codes)
    outputs = _check_weight("w1", w1_codes, w1_scales, x.shape[1])
    if _check_weight("w3", w3_codes, w3_scales, x.shape[1]) != outputs or len(w3_codes) != len(w1_codes):
        raise ValueError(f"w3_codes are {list(w3_codes.shape)}; expected {list(w1_codes.shape)}, as w1_codes")
    if weights.dtype != torch.float32 or weights.dim() != 2 or len(weights) != len(x):
        raise ValueError(f"weights are {weights.dtype} {list(weights.shape)}; expected torch.float32 [{len(x)}, k]")
    if not limit > 0:
        raise ValueError(f"limit is {limit}; expected a positive number")
    block_m = _block_m(order, tile_experts)
    hidden = x.new_empty((len(order), outputs))
    if hidden.numel():
        target = capability(x) or 0
        experts_up_launch(
            _rows(x),
            order,
            tile_experts,
            weights.detach().contiguous(),
            (w1_codes, w1_scales),
            (w3_codes, w3_scales),
            hidden,
            limit=limit,
            round_output=round_output,
            tiles=ExpertTiles.of(block_m, x.dtype, target),
            target=target,
        ).run()
    return hidden


def experts_down(
    hidden: torch.Tensor,
    order: torch.Tensor,
    tile_experts: torch.Tensor,
    indices: torch.Tensor,
    w2_codes: torch.Tensor,
    w2_scales: torch.Tensor,
    shared: torch.Tensor | None = None,
) -> torch.Tensor:
    """``w2 hidden`` for each pair, in the type of hidden, added up over a token's choices in float32, in their order.

    Args:
        hidden: [rows, I] from :func:`experts_up`. order, tile_experts: as given there. indices: int64 [N, k], of
            which they were made. w2_codes: uint8 [E, O, I/2]. w2_scales: uint8 [E, O, ceil(I/32)]. shared: [N, O] of
            any float type, added last.

    Returns:
        [N, O], float32, or in the type of shared; a choice that names no expert adds nothing.

    Raises:
        ValueError: a tensor of another shape, type, device or layout, or a number out of range; the message names it.
    """
    _check_rows("hidden", hidden, w2_codes)
    outputs = _check_weight("w2", w2_codes, w2_scales, hidden.shape[1])
    if indices.dtype != torch.int64 or indices.dim() != 2:
        raise ValueError(f"indices are {indices.dtype} {list(indices.shape)}; expected torch.int64 [N, k]")
    if len(hidden) != len(order):
        raise ValueError(f"hidden has {len(hidden)} rows; expected {len(order)}, as order")
    block_m = _block_m(order, tile_experts)
    rows = hidden.new_empty((indices.numel(), outputs))
    out = hidden.new_empty((len(indices), outputs), dtype=torch.float32 if shared is None else shared.dtype)
    if shared is not None and tuple(shared.shape) != tuple(out.shape):
        raise ValueError(f"shared is {list(shared.shape)}; expected {list(out.shape)}")
    if not rows.numel():
        return out.zero_() if shared is None else out.copy_(shared)
    target = capability(hidden) or 0
    experts_down_launch(
        _rows(hidden),
        order,
        tile_experts,
        w2_codes,
        w2_scales,
        rows,
        tiles=ExpertTiles.of(block_m, hidden.dtype, target),
        target=target,
    ).run()
    shared = None if shared is None else shared.contiguous()
    sum_choices_launch(rows, indices.contiguous(), shared, out, experts=len(w2_codes)).run()
    return out


def experts_packed(
    x: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    w1_codes: torch.Tensor,
    w1_scales: torch.Tensor,
    w3_codes: torch.Tensor,
    w3_scales: torch.Tensor,
    w2_codes: torch.Tensor,
    w2_scales: torch.Tensor,
    limit: float,
    round_inputs: bool,
    shared: torch.Tensor | None = None,
) -> torch.Tensor:
    """Weighted sum of each token's experts: :func:`experts_up` and :func:`experts_down` over grouped pairs.

    Args:
        x: float32, bfloat16 or float16 [N, C]. indices: int64 [N, k]; a number that is no expert adds nothing.
        weights: float32 [N, k].
        w1_codes, w1_scales, w3_codes, w3_scales: uint8, of [E, I, C], as in :func:`experts_up`.
        w2_codes, w2_scales: uint8, of [E, C, I], as in :func:`experts_down`.
        round_inputs: round x and the input of w2 to FP8, as the released model does. shared: [N, C], what the shared
            expert gave, added last.

    Returns:
        [N, C], float32, or in the type of shared. Nothing waits for the device, and sizes depend on shapes alone.

    Raises:
        ValueError: a tensor of another shape, type, device or layout, or a number out of range; the message names it.
    """
    if tuple(weights.shape) != tuple(indices.shape) or len(indices) != len(x):
        raise ValueError(
            f"indices are {list(indices.shape)}, weights {list(weights.shape)}; expected [{len(x)}, k] for both"
        )
    if round_inputs and x.numel():
        codes, scales, _ = encode_blocks(x, **_INPUT_FORMAT, amax_floor=1e-4, check=False)
        x = decode_blocks(codes, scales, **_INPUT_FORMAT, dtype=x.dtype)
    experts = len(w1_codes)
    order, tile_experts = group_tokens(
        indices, experts, rows_per_tile(indices.numel(), experts, x.dtype, capability(x) or 0)
    )
    hidden = experts_up(x, order, tile_experts, weights, w1_codes, w1_scales, w3_codes, w3_scales, limit, round_inputs)
    return experts_down(hidden, order, tile_experts, indices, w2_codes, w2_scales, shared)


def distinct_experts(tokens: int, top_k: int, experts: int) -> float:
    """Experts that at least one of the tokens visits, on average, if each chooses evenly and on its own."""
    return experts * (1 - (1 - top_k / experts) ** tokens)


def experts_packed_cost(
    tokens: int, top_k: int, experts: int, hidden: int, intermediate: int, element_bytes: int, visited: int
) -> tuple[int, int]:
    """(bytes, operations) of all three products.

    Read once: x, indices, routing weights, and three matrices of each of the ``visited`` experts, half a byte a
    weight and one more for each 32. Written once: float32 [tokens, hidden]. Rows between the products are not
    counted: they need not leave the chip. Every pair costs three products of hidden x intermediate.
    """
    pairs, weights = tokens * top_k, 3 * hidden * intermediate
    moved = tokens * hidden * (element_bytes + 4) + 12 * pairs + visited * weights * 17 // 32
    return moved, 2 * pairs * weights


def experts_up_cost(
    tokens: int, top_k: int, experts: int, hidden: int, intermediate: int, element_bytes: int, visited: int
) -> tuple[int, int]:
    """(bytes, operations): x, order, routing weights and two matrices of each visited expert in, a row a pair out."""
    pairs, weights = tokens * top_k, 2 * hidden * intermediate
    moved = tokens * hidden * element_bytes + 8 * pairs + visited * weights * 17 // 32
    return moved + pairs * intermediate * element_bytes, 2 * pairs * weights


def experts_down_cost(
    tokens: int, top_k: int, experts: int, hidden: int, intermediate: int, element_bytes: int, visited: int
) -> tuple[int, int]:
    """(bytes, operations): a row a pair, indices, order and a matrix of each visited expert in, float32 a token out."""
    pairs, weights = tokens * top_k, hidden * intermediate
    moved = pairs * (intermediate * element_bytes + 12) + visited * weights * 17 // 32
    return moved + 4 * tokens * hidden, 2 * pairs * weights


def _rows(x: torch.Tensor) -> torch.Tensor:
    x = x.detach()
    return x if x.stride(1) == 1 else x.contiguous()


def _block_m(order: torch.Tensor, tile_experts: torch.Tensor) -> int:
    for name, tensor in (("order", order), ("tile_experts", tile_experts)):
        if tensor.dtype != torch.int32 or tensor.dim() != 1 or not tensor.is_contiguous():
            raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}; expected what group_tokens returned")
    if len(tile_experts) == 0:
        return 16
    if len(order) % len(tile_experts):
        raise ValueError(f"order has {len(order)} rows for {len(tile_experts)} tiles; expected the same for each tile")
    return len(order) // len(tile_experts)


def _check_rows(name: str, x: torch.Tensor, codes: torch.Tensor) -> None:
    if x.dtype not in FLOAT_TYPES or x.dim() != 2:
        raise ValueError(
            f"{name} is {x.dtype} {list(x.shape)}; expected [rows, channels] of {', '.join(map(str, FLOAT_TYPES))}"
        )
    if x.device != codes.device:
        raise ValueError(f"{name} is on {x.device} and the weights on {codes.device}; expected one device")


def _check_weight(name: str, codes: torch.Tensor, scales: torch.Tensor, columns: int) -> int:
    """The weight's outputs."""
    for part, tensor in (("codes", codes), ("scales", scales)):
        if tensor.dtype != torch.uint8 or tensor.dim() != 3 or tensor.stride(2) != 1:
            raise ValueError(
                f"{name}_{part} are {tensor.dtype} {list(tensor.shape)}, strides {list(tensor.stride())}; "
                "expected torch.uint8 [experts, outputs, bytes] with bytes side by side"
            )
    if columns % 32 or not columns:
        raise ValueError(f"rows have {columns} channels; expected a positive multiple of 32")
    experts, outputs, _ = codes.shape
    for part, tensor, each in (("codes", codes, 2), ("scales", scales, 32)):
        if tuple(tensor.shape) != (experts, outputs, columns // each):
            raise ValueError(
                f"{name}_{part} are {list(tensor.shape)}; expected {[experts, outputs, columns // each]} for "
                f"{columns} input channels"
            )
    return outputs
