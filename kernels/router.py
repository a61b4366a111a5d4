"""Router: expert scores sqrt(softplus(logit)), the top k of score + bias, and their weights, in one launch.

Source: report section 2.1.1; the released model's ``Gate``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .launch import CompileCase, Launch
from .numbers import as_float, float_bits

MAX_EXPERTS = 1024
NUM_WARPS = 4
# Added to the sum of the chosen scores before the division; the released code's own constant.
_RENORM_EPS = 1e-20


@triton.jit
def _exp(x):
    """e^x of fp32 x <= 20 to about two units in the last place, where the GPU's own is off by |x| half units.

    e^x = 2^n e^r with n the nearest integer to x / log(2); r in two steps, the first of them exact. The power of two
    comes in two factors, since n reaches below the exponents of fp32.
    """
    x = tl.maximum(x, -110.0)
    n = tl.floor(x * 1.4426950408889634 + 0.5)
    r = (x - n * 0.693359375) + n * 2.12194440e-4
    upper = n.to(tl.int32) >> 1
    lower = n.to(tl.int32) - upper
    return tl.exp(r) * as_float((upper + 127) << 23) * as_float((lower + 127) << 23)


@triton.jit
def _log1p(x):
    """log(1 + x) of fp32 x >= 0: the logarithm of the rounded 1 + x, corrected for what the rounding did."""
    sum = 1.0 + x
    kept = sum - 1.0
    return tl.where(kept == 0, x, tl.log(sum) * tl.div_rn(x, tl.where(kept == 0, 1.0, kept)))


@triton.jit
def _score(logit):
    """sqrt(softplus(logit)); above 20 the softplus is the logit itself, as in torch."""
    softplus = tl.where(logit > 20, logit, _log1p(_exp(tl.minimum(logit, 20.0))))
    # A minimum may drop a NaN.
    return tl.where(logit == logit, tl.sqrt_rn(softplus), logit)


@triton.jit
def _ordered(x):
    """int64 that orders as fp32 x does in torch's sort: -0 equals 0, and NaN of either sign lies above infinity."""
    bits = float_bits(x + 0.0)
    bits = tl.where(x == x, bits, 0x7FFFFFFF)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def router_kernel(
    logits_ptr,
    bias_ptr,
    bias_vl_ptr,
    image_mask_ptr,
    indices_ptr,
    weights_ptr,
    tokens,
    logits_row_stride,
    image_mask_stride,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    RENORM_EPS: tl.constexpr,
    SCALING: tl.constexpr,
    TILE_EXPERTS: tl.constexpr,
    TILE_CHOICES: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
):
    """logits [tokens, EXPERTS] -> indices int64 and weights fp32 [tokens, TOP_K]."""
    token = tl.program_id(0).to(tl.int64) * TILE_TOKENS + tl.arange(0, TILE_TOKENS)[:, None]
    expert = tl.arange(0, TILE_EXPERTS)[None, :]
    exists = expert < EXPERTS
    logit = tl.load(
        logits_ptr + (token * logits_row_stride + expert.to(tl.int64)), mask=(token < tokens) & exists, other=0.0
    )
    score = _score(logit)
    bias = tl.load(bias_ptr + expert.to(tl.int64), mask=exists, other=0.0)
    if image_mask_ptr is not None:
        is_image = tl.load(image_mask_ptr + token * image_mask_stride, mask=token < tokens, other=0) != 0
        bias_vl = tl.load(bias_vl_ptr + expert.to(tl.int64), mask=exists, other=0.0)
        bias = tl.where(is_image, bias_vl, bias)

    # One integer orders by biased score first and by lower expert second, so every maximum is unique.
    lowest: tl.constexpr = -(2**63)
    key = (_ordered(score + bias) << 32) | (TILE_EXPERTS - 1 - expert)
    key = tl.where(exists, key, lowest)
    choice = tl.arange(0, TILE_CHOICES)[None, :]
    indices = tl.zeros([TILE_TOKENS, TILE_CHOICES], tl.int32)
    weights = tl.zeros([TILE_TOKENS, TILE_CHOICES], tl.float32)
    for k in range(TOP_K):
        best = TILE_EXPERTS - 1 - (tl.max(key, axis=1) & 0xFFFFFFFF).to(tl.int32)[:, None]
        chosen = expert == best
        indices = tl.where(choice == k, best, indices)
        weights = tl.where(choice == k, tl.sum(tl.where(chosen, score, 0.0), axis=1)[:, None], weights)
        key = tl.where(chosen, lowest, key)
    if RENORMALIZE:
        weights = tl.div_rn(weights, tl.broadcast_to(tl.sum(weights, axis=1)[:, None] + RENORM_EPS, weights.shape))
    place = token * TOP_K + choice
    mask = (token < tokens) & (choice < TOP_K)
    tl.store(indices_ptr + place, indices.to(tl.int64), mask=mask)
    tl.store(weights_ptr + place, weights * SCALING, mask=mask)


def router_launch(
    logits: torch.Tensor,
    bias: torch.Tensor,
    bias_vl: torch.Tensor | None,
    image_mask: torch.Tensor | None,
    indices: torch.Tensor,
    weights: torch.Tensor,
    *,
    renormalize: bool,
    scaling: float,
) -> Launch:
    """The launch for logits [N, E] with neighbouring experts side by side; image_mask uint8 [N]; outputs contiguous."""
    tokens, experts = logits.shape
    width = triton.next_power_of_2(experts)
    # A warp for each token, so that a maximum never leaves it, unless few experts leave warps without work.
    height = NUM_WARPS * max(1, 32 // width)
    return Launch(
        kernel=router_kernel,
        grid=(triton.cdiv(tokens, height),),
        arguments={
            "logits_ptr": logits,
            "bias_ptr": bias,
            "bias_vl_ptr": bias_vl,
            "image_mask_ptr": image_mask,
            "indices_ptr": indices,
            "weights_ptr": weights,
            "tokens": tokens,
            "logits_row_stride": logits.stride(0),
            "image_mask_stride": 0 if image_mask is None else image_mask.stride(0),
        },
        constants={
            "EXPERTS": experts,
            "TOP_K": indices.shape[1],
            "RENORMALIZE": renormalize,
            "RENORM_EPS": _RENORM_EPS,
            "SCALING": scaling,
            "TILE_EXPERTS": width,
            "TILE_CHOICES": triton.next_power_of_2(indices.shape[1]),
            "TILE_TOKENS": height,
        },
        num_warps=NUM_WARPS,
    )


def route_tokens(
    logits: torch.Tensor,
    bias: torch.Tensor,
    bias_vl: torch.Tensor | None,
    image_mask: torch.Tensor | None,
    top_k: int,
    renormalize: bool,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts by score + bias and weigh them by score.

    Args:
        logits: float32 [N, E], E up to 1024. bias: float32 [E]. bias_vl: float32 [E], the bias of image positions;
            needed with image_mask. image_mask: bool [N], or None for text alone.
        renormalize: divide the weights by their sum; the caller leaves it off for top_k 1. scaling: a last factor.

    Returns:
        indices int64 [N, k] by descending score + bias, equal ones by ascending expert; weights float32 [N, k].
        NaN counts as the largest number, so an index is always an expert.

    Raises:
        ValueError: a tensor of another shape, type, device or layout, or a number out of range; the message names it.
    """
    if logits.dtype != torch.float32 or logits.dim() != 2 or not 1 <= logits.shape[1] <= MAX_EXPERTS:
        raise ValueError(
            f"logits are {logits.dtype} {list(logits.shape)}; expected torch.float32 [N, 1 to {MAX_EXPERTS}]"
        )
    tokens, experts = logits.shape
    for name, vector in (("bias", bias), ("bias_vl", bias_vl)):
        if vector is not None and (vector.dtype != torch.float32 or tuple(vector.shape) != (experts,)):
            raise ValueError(f"{name} is {vector.dtype} {list(vector.shape)}; expected torch.float32 [{experts}]")
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k is {top_k}; expected 1 to {experts}")
    if image_mask is not None:
        if image_mask.dtype != torch.bool or tuple(image_mask.shape) != (tokens,):
            raise ValueError(
                f"image_mask is {image_mask.dtype} {list(image_mask.shape)}; expected torch.bool [{tokens}]"
            )
        if bias_vl is None:
            raise ValueError("image_mask is given and bias_vl is None; expected the bias of image positions")
        image_mask = image_mask.view(torch.uint8)
    indices = logits.new_empty((tokens, top_k), dtype=torch.int64)
    weights = logits.new_empty((tokens, top_k))
    if tokens:
        router_launch(
            logits.detach() if logits.stride(1) == 1 else logits.detach().contiguous(),
            bias.detach().contiguous(),
            None if image_mask is None else bias_vl.detach().contiguous(),
            image_mask,
            indices,
            weights,
            renormalize=renormalize,
            scaling=scaling,
        ).run()
    return indices, weights


def route_tokens_cost(tokens: int, experts: int, top_k: int, images: bool = False) -> tuple[int, int]:
    """(bytes, operations): logits and biases read once, an int64 and a float32 written for each choice.

    Nothing is a multiply-add; the work of a few operations a logit hides behind its four bytes.
    """
    biases = 2 if images else 1
    return 4 * experts * (tokens + biases) + images * tokens + 12 * tokens * top_k, 0


def compile_cases() -> Iterator[CompileCase]:
    """Published: 384 experts, 6 of them, and the drafter's 3 of 128; with and without images."""
    for name, experts, top_k, images in (
        ("backbone", 384, 6, False),
        ("images", 384, 6, True),
        ("drafter", 128, 3, False),
        ("most", MAX_EXPERTS, 8, False),
    ):
        logits = torch.empty(4096, experts, device="meta")
        bias = logits.new_empty(experts)
        launch = router_launch(
            logits,
            bias,
            bias if images else None,
            logits.new_empty(4096, dtype=torch.uint8) if images else None,
            logits.new_empty((4096, top_k), dtype=torch.int64),
            logits.new_empty((4096, top_k)),
            renormalize=True,
            scaling=1.5,
        )
        # Six indices and weights a token, a few bytes each, are all that is written.
        yield CompileCase(f"router_{name}", launch, wide=False)
