"""Sparse attention over packed keys: window rows in MXFP8 and selected main entries in FP4, one softmax with a sink.

Source: report sections 2.3 and 2.4.4; released ``sparse_attn``.
"""

from __future__ import annotations

import torch
import triton

from .attention_combine import attention_combine_launch
from .attention_kernel import sparse_attention_launch
from .attention_plan import Plan
from .launch import capability
from .tiles import FLOAT_TYPES


def sparse_attention_packed(
    query: torch.Tensor,
    sink: torch.Tensor,
    window_codes: torch.Tensor,
    window_scales: torch.Tensor,
    choice: torch.Tensor,
    main_codes: torch.Tensor | None,
    main_scales: torch.Tensor | None,
    page_table: torch.Tensor | None,
    sequence: torch.Tensor | None,
    selected: torch.Tensor | None,
    turn_cos: torch.Tensor | None,
    turn_sin: torch.Tensor | None,
    scale: float,
    splits: int = 0,
    rotate_query: bool = False,
) -> torch.Tensor:
    """Attention of each query over its window slots and its selected entries, keys being values, with a sink.

    ``sum exp(a_k) k / (sum exp(a_k) + exp(sink))`` with ``a_k = scale * query . k``; a key that is both in the window
    and selected counts twice; zeros for a query without a key.

    Args:
        query: [N, H, C] fp32, bf16 or fp16; C a multiple of 32. sink: fp32 [H].
        window_codes: uint8 [R, C], window_scales: uint8 [R, C/32], MXFP8 rows.
        choice: int64 or int32 [N, W], the row for each window slot, -1 for none.
        main_codes: uint8 [pages, entries, C/2], main_scales: uint8 [pages, entries, C/16], rows of E2M1 codes with
            E4M3 scales, views of the page pool. page_table: int64 [B, max_pages]. sequence: int64 [N], which row of
            it. selected: int64 or int32 [N, K], entry numbers below 2^31, -1 for none. The five may be None if K is 0.
        turn_cos, turn_sin: fp32 [N, R/2], the rotation of each query's position: the last R output channels are
            turned back by it, as interleaved pairs, before they are rounded. Both None: no rotation.
        splits: over how many programs the keys of a query are spread; 0 chooses from shapes and device.
        rotate_query: the query is given unrotated, and turned by the same rotation first.

    A row or an entry beyond what there is, or whose page is -1, is a key of zeros, which counts: callers mark what
    is absent by -1. Row strides are free; the last dimension of codes and scales has stride 1.

    Returns:
        [N, H, C] in the type of ``query``, contiguous.

    Raises:
        TypeError, ValueError: a tensor of another type, shape, device or layout; the message names it.
    """
    main = selected is not None and selected.shape[-1] > 0
    _check(query, sink, window_codes, window_scales, choice, turn_cos, turn_sin, rotate_query, splits)
    if main:
        _check_main(query, main_codes, main_scales, page_table, sequence, selected)
    else:
        main_codes = main_scales = page_table = sequence = selected = None
    rows, heads, channels = query.shape
    out = query.new_empty((rows, heads, channels))
    if not out.numel():
        return out
    if main and choice.dtype != selected.dtype:
        choice = choice.to(selected.dtype)
    plan = Plan.of(
        rows, heads, choice.shape[1], selected.shape[1] if main else 0, query.dtype, capability(query), splits,
        rotate_query,
    )  # fmt: skip
    turn = [None if part is None else part.contiguous() for part in (turn_cos, turn_sin)]
    partial = largest = total = None
    if plan.splits > 1:
        half = triton.next_power_of_2(channels) // 2
        partial = query.new_empty((plan.splits, rows, heads, 2, half), dtype=torch.float32)
        largest = partial.new_empty((plan.splits, rows, heads))
        total = torch.empty_like(largest)
    inner = [t if t is None or t.stride(-1) == 1 else t.contiguous() for t in (query, choice, page_table, selected)]
    query, choice, page_table, selected = inner
    sink = sink.contiguous()
    sparse_attention_launch(
        query, sink, window_codes, window_scales, choice, main_codes, main_scales, page_table,
        None if sequence is None else sequence.contiguous(), selected, *turn, out if partial is None else partial,
        largest, total, scale=scale, rotate_query=rotate_query, plan=plan,
    ).run()  # fmt: skip
    if partial is not None:
        attention_combine_launch(partial, largest, total, sink, *turn, out).run()
    return out


def _check(query, sink, window_codes, window_scales, choice, turn_cos, turn_sin, rotate_query, splits) -> None:
    if query.dtype not in FLOAT_TYPES:
        raise TypeError(f"query is {query.dtype}; expected one of {', '.join(map(str, FLOAT_TYPES))}")
    if query.dim() != 3 or query.shape[2] % 32 or not query.shape[2]:
        raise ValueError(f"query has shape {list(query.shape)}; expected [N, H, C] with C a positive multiple of 32")
    rows, heads, channels = query.shape
    if window_codes.dim() != 2 or choice.dim() != 2:
        raise ValueError(
            f"window_codes {list(window_codes.shape)} and choice {list(choice.shape)}; expected [R, C] and [N, W]"
        )
    kept = window_codes.shape[0]
    _expect(query, "sink", sink, (torch.float32,), (heads,))
    _expect(query, "window_codes", window_codes, (torch.uint8,), (kept, channels), rows_together=True)
    _expect(query, "window_scales", window_scales, (torch.uint8,), (kept, channels // 32), rows_together=True)
    _expect(query, "choice", choice, (torch.int64, torch.int32), (rows, choice.shape[1]))
    if (turn_cos is None) != (turn_sin is None) or (rotate_query and turn_cos is None):
        given = [name for name, part in (("turn_cos", turn_cos), ("turn_sin", turn_sin)) if part is not None]
        raise ValueError(f"of the rotation {given or 'nothing'} is given; expected both parts or, unrotated, none")
    if turn_cos is not None:
        if turn_cos.dim() != 2 or 2 * turn_cos.shape[1] > channels:
            raise ValueError(f"turn_cos has shape {list(turn_cos.shape)}; expected [{rows}, at most {channels // 2}]")
        for name, part in (("turn_cos", turn_cos), ("turn_sin", turn_sin)):
            _expect(query, name, part, (torch.float32,), (rows, turn_cos.shape[1]))
    if splits < 0:
        raise ValueError(f"splits is {splits}; expected 0, to have it chosen, or more")


def _check_main(query, main_codes, main_scales, page_table, sequence, selected) -> None:
    rows, _, channels = query.shape
    names = ("main_codes", "main_scales", "page_table", "sequence", "selected")
    tensors = (main_codes, main_scales, page_table, sequence, selected)
    for name, tensor, dims in zip(names, tensors, (3, 3, 2, 1, 2), strict=True):
        if tensor is None:
            raise ValueError(f"{name} is None; {selected.shape[-1]} selected entries a query need it")
        if tensor.dim() != dims:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; expected {dims} dimensions")
    pages, entries = main_codes.shape[:2]
    _expect(query, "main_codes", main_codes, (torch.uint8,), (pages, entries, channels // 2), rows_together=True)
    _expect(query, "main_scales", main_scales, (torch.uint8,), (pages, entries, channels // 16), rows_together=True)
    _expect(query, "page_table", page_table, (torch.int64,), tuple(page_table.shape))
    _expect(query, "sequence", sequence, (torch.int64,), (rows,))
    _expect(query, "selected", selected, (torch.int64, torch.int32), (rows, selected.shape[1]))


def _expect(query, name, tensor, dtypes, shape, rows_together=False) -> None:
    if tensor.dtype not in dtypes:
        raise TypeError(f"{name} is {tensor.dtype}; expected {' or '.join(map(str, dtypes))}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; expected {list(shape)}")
    if tensor.device != query.device:
        raise ValueError(f"{name} is on {tensor.device}, query on {query.device}; expected one device")
    if rows_together and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name} has strides {tensor.stride()}; expected the bytes of a row next to each other")
