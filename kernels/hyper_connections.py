"""Hyper-connections: everything between one sublayer and the next, in a single sweep over the residual streams.

The sweep writes the last sublayer's output into the four streams, predicts this site's coefficients from them, and
collapses and normalises them for the next sublayer. For many tokens one launch does it all, a tile of tokens a
program. Few tokens would leave most of a GPU idle and read the predictor's matrix through one program: there the
channels are split among programs, and a second launch adds up what they found.

Source: report section 2.4.1 (Eq. 6); mHC paper, arXiv 2512.24880.
"""

from __future__ import annotations

import torch

from .hyper_finish import finish_launch
from .hyper_site import MIXES
from .hyper_sweep import STREAMS, Site, SweepTiling, coefficient_shapes, sweep_launch
from .launch import capability
from .tiles import FLOAT_TYPES


def _run(site: Site) -> None:
    tokens, _, channels = site.streams.shape
    level = capability(site.streams)
    splits = SweepTiling.of(tokens, channels).splits
    parts = None if splits == 1 else site.x.new_empty(splits, tokens, MIXES.value, dtype=torch.float32)
    sweep_launch(site, parts, level).run()
    if parts is not None:
        finish_launch(site, parts).run()


def hyper_connection_site(
    streams: torch.Tensor,
    y: torch.Tensor | None,
    post: torch.Tensor | None,
    comb: torch.Tensor | None,
    pre: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """From the output of one sublayer to the input of the next.

    Args:
        streams: [N, 4, d], as the site before received them: float32, bfloat16 or float16. y: [N, d], its sublayer's
            output, with its coefficients post float32 [N, 4] and comb float32 [N, 4, 4]. All three None: the streams
            are as they should be, as before the first site.
        pre: float32 [N, 4], predicted at the site before; collapses the streams with y written.
        fn: float32 [24, 4 d], base: float32 [24], scale: float32 [3]: this site's predictor.
        norm_weight: [d]. norm_eps: for both root mean squares. eps, iterations: of the coefficients.

    Returns:
        x [N, d]: the input of the next sublayer, normalised, in the type of the streams; the new streams [N, 4, d];
        this site's pre [N, 4], post [N, 4] and comb [N, 4, 4], float32.

    Raises:
        ValueError: a tensor of another shape, type, device or layout, or a number out of range; the message names it.
    """
    _check(streams, y, post, comb, pre, norm_weight)
    tokens, _, channels = streams.shape
    for name, tensor, shape in (("fn", fn, (24, 4 * channels)), ("base", base, (24,)), ("scale", scale, (3,))):
        _check_float32(name, tensor, shape)
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {list(tensor.stride())}; expected it contiguous")
    if iterations < 1:
        raise ValueError(f"iterations is {iterations}; expected at least 1")
    coefficients = [streams.new_empty(shape, dtype=torch.float32) for shape in coefficient_shapes(tokens)]
    site = Site(
        *_dense(streams, y, post, comb, pre), fn, base, scale, norm_weight, norm_eps, eps, iterations,
        streams.new_empty(tokens, channels), streams.new_empty(tokens, STREAMS, channels), *coefficients,
    )  # fmt: skip
    if tokens:
        _run(site)
    return site.x, site.new_streams, *coefficients


def hyper_connection_site_cost(tokens: int, channels: int, value_bytes: int, writes_y: bool = True) -> tuple[int, int]:
    """Bytes and operations of :func:`hyper_connection_site`; weights and coefficients are counted once.

    Per token (2n + 2) d values for n = 4: streams and y read, new streams and x written. Operations per channel: the
    products of ``fn`` (24 a stream), the update (n + 1 a stream), squares and collapse (2 a stream), norm.
    """
    n = STREAMS
    moved = (2 * n + 1 + writes_y) * channels * value_bytes + 4 * (n + n + n * n) + 4 * (n + (n + n * n) * writes_y)
    fixed = 4 * (24 * n * channels + 24 + 3) + channels * 4
    products = n * 24 + n * (n + 1) * writes_y + 2 * n + 3
    return tokens * moved + fixed, 2 * tokens * products * channels


def hyper_collapse(
    streams: torch.Tensor,
    y: torch.Tensor | None,
    post: torch.Tensor | None,
    comb: torch.Tensor | None,
    pre: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_eps: float,
) -> torch.Tensor:
    """The way out after the last site: write y, collapse, normalise; nothing is predicted and no stream is kept.

    Args:
        streams, y, post, comb, pre, norm_weight, norm_eps: as in :func:`hyper_connection_site`.

    Returns:
        x [N, d], the input of the head.

    Raises:
        ValueError: a tensor of another shape, type, device or layout, or a number out of range; the message names it.
    """
    _check(streams, y, post, comb, pre, norm_weight)
    tokens, _, channels = streams.shape
    x = streams.new_empty(tokens, channels)
    site = Site(
        *_dense(streams, y, post, comb, pre), None, None, None, norm_weight, norm_eps, 0.0, 1, x, *[None] * 4
    )  # fmt: skip
    if tokens:
        _run(site)
    return x


def hyper_collapse_cost(tokens: int, channels: int, value_bytes: int, writes_y: bool = True) -> tuple[int, int]:
    """Bytes and operations of :func:`hyper_collapse`: (n + 2) d values a token, streams and y read, x written."""
    n = STREAMS
    moved = (n + 1 + writes_y) * channels * value_bytes + 4 * (n + (n + n * n) * writes_y)
    return tokens * moved + 4 * channels, 2 * tokens * (n * (n + 1) * writes_y + n + 3) * channels


def _dense(streams, y, post, comb, pre) -> tuple[torch.Tensor | None, ...]:
    """The operands as the kernel reads them: channels side by side, coefficients without gaps."""
    wide = (x if x is None or x.stride(-1) == 1 else x.contiguous() for x in (streams, y))
    return *wide, *(x if x is None else x.contiguous() for x in (post, comb, pre))


def _check(streams, y, post, comb, pre, norm_weight) -> None:
    if streams.dtype not in FLOAT_TYPES or streams.dim() != 3 or streams.shape[1] != STREAMS or not streams.shape[2]:
        raise ValueError(
            f"streams are {streams.dtype} {list(streams.shape)}; expected [tokens, {STREAMS}, channels] of "
            f"{', '.join(map(str, FLOAT_TYPES))}"
        )
    tokens, _, channels = streams.shape
    if (y is None) != (post is None) or (y is None) != (comb is None):
        raise ValueError("y, post and comb come together: give all three or None for each")
    pre_shape, post_shape, comb_shape = coefficient_shapes(tokens)
    _check_float32("pre", pre, pre_shape)
    if y is not None:
        if y.dtype not in FLOAT_TYPES or y.shape != (tokens, channels):
            raise ValueError(f"y is {y.dtype} {list(y.shape)}; expected [{tokens}, {channels}], as of the streams")
        _check_float32("post", post, post_shape)
        _check_float32("comb", comb, comb_shape)
    if norm_weight.dtype not in FLOAT_TYPES or norm_weight.shape != (channels,) or not norm_weight.is_contiguous():
        raise ValueError(f"norm_weight is {norm_weight.dtype} {list(norm_weight.shape)}; expected [{channels}]")


def _check_float32(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    if tensor.dtype != torch.float32 or tuple(tensor.shape) != shape:
        raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}; expected torch.float32 {list(shape)}")
