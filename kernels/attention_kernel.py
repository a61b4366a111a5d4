"""The kernel of sparse attention over packed keys, and its launch.

Keys are decoded in registers, once for all heads of a program; nothing is gathered into memory first. Prefill, decode
and the verification of several tokens are the same kernel: a row is a query token, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .attention_keys import key_indices, main_keys, window_keys
from .attention_plan import Plan
from .attention_softmax import LOG2_E, NO_KEY, finish, fold_lanes, fold_matrix, gather_lanes, head_lanes, turn_tile
from .launch import CompileCase, Launch

# Counts that change from step to step: their values must not select another compilation.
_COUNTS = ["window_rows", "selected_stride", "selected_width", "table_width", "tiles"]


@triton.jit(do_not_specialize=_COUNTS)
def sparse_attention_kernel(
    query_ptr,
    sink_ptr,
    window_codes_ptr,
    window_scales_ptr,
    choice_ptr,
    main_codes_ptr,
    main_scales_ptr,
    table_ptr,
    sequence_ptr,
    selected_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    largest_ptr,
    total_ptr,
    query_row_stride,
    query_head_stride,
    window_codes_stride,
    window_scales_stride,
    choice_stride,
    choice_width,
    window_rows,
    main_codes_page_stride,
    main_codes_row_stride,
    main_scales_page_stride,
    main_scales_row_stride,
    table_stride,
    table_width,
    selected_stride,
    selected_width,
    tiles,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAIRS: tl.constexpr,
    PER_PAGE: tl.constexpr,
    SCALE: tl.constexpr,
    HAS_MAIN: tl.constexpr,
    ROTATE_QUERY: tl.constexpr,
    PARTIAL: tl.constexpr,
    MATRIX: tl.constexpr,
    OPERAND: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    HALF: tl.constexpr,
):
    """One query row, HEAD_TILE heads, and ``tiles`` tiles of keys a program; grid (rows * head tiles, splits).

    SCALE is in units of log 2. PARTIAL: out is fp32 [splits, rows, HEADS, 2, HALF], with the running maximum and sum
    beside it; otherwise the finished [rows, HEADS, CHANNELS]. OPERAND is the type of matrix operands.
    """
    HEAD_TILES: tl.constexpr = (HEADS + HEAD_TILE - 1) // HEAD_TILE
    program = tl.program_id(0)
    row = (program // HEAD_TILES).to(tl.int64)
    head = (program % HEAD_TILES) * HEAD_TILE + tl.arange(0, HEAD_TILE)
    channel = tl.arange(0, 2 * HALF)[None, :]
    query = tl.load(
        query_ptr + (row * query_row_stride + (head.to(tl.int64) * query_head_stride)[:, None] + channel),
        mask=(head < HEADS)[:, None] & (channel < CHANNELS),
        other=0.0,
    )
    even, odd = tl.split(query.reshape(HEAD_TILE, HALF, 2))
    even, odd = even.to(tl.float32), odd.to(tl.float32)
    if ROTATE_QUERY:
        cos, sin = turn_tile(cos_ptr, sin_ptr, row, CHANNELS, PAIRS, HALF)
        even, odd = even * cos[None, :] - odd * sin[None, :], odd * cos[None, :] + even * sin[None, :]
    even, odd = even.to(OPERAND), odd.to(OPERAND)

    if MATRIX:
        largest = tl.full([HEAD_TILE], NO_KEY, tl.float32)
        total = tl.zeros([HEAD_TILE], tl.float32)
        sum_even = tl.zeros([HEAD_TILE, HALF], tl.float32)
        sum_odd = tl.zeros([HEAD_TILE, HALF], tl.float32)
    else:
        LANES: tl.constexpr = 32 if HALF >= 32 else HALF
        even, odd = head_lanes(even, LANES), head_lanes(odd, LANES)
        largest = tl.full([HEAD_TILE, KEY_TILE], NO_KEY, tl.float32)
        total = tl.zeros([HEAD_TILE, KEY_TILE], tl.float32)
        sum_even = tl.zeros([HEAD_TILE, HALF // LANES, KEY_TILE, LANES], tl.float32)
        sum_odd = tl.zeros([HEAD_TILE, HALF // LANES, KEY_TILE, LANES], tl.float32)

    choice_ptr += row * choice_stride
    if HAS_MAIN:
        selected_ptr += row * selected_stride
        table_ptr += tl.load(sequence_ptr + row) * table_stride
    window_tiles = tl.cdiv(choice_width, KEY_TILE)
    first = tl.program_id(1) * tiles
    last = tl.minimum(first + tiles, window_tiles + tl.cdiv(selected_width, KEY_TILE))
    index = key_indices(first, window_tiles, choice_ptr, choice_width, selected_ptr, selected_width, HAS_MAIN, KEY_TILE)
    # Invariants are kept out of registers: the sums leave no room for them.
    for tile in tl.range(first, last, disable_licm=True):
        if not HAS_MAIN or tile < window_tiles:
            key_even, key_odd = window_keys(
                index, window_rows, window_codes_ptr, window_scales_ptr, window_codes_stride, window_scales_stride,
                CHANNELS, OPERAND, KEY_TILE, HALF,
            )  # fmt: skip
        else:
            key_even, key_odd = main_keys(
                index, table_ptr, table_width, main_codes_ptr, main_scales_ptr, main_codes_page_stride,
                main_codes_row_stride, main_scales_page_stride, main_scales_row_stride,
                PER_PAGE, CHANNELS, OPERAND, KEY_TILE, HALF,
            )  # fmt: skip
        usable = index >= 0
        # The next tile's indices are on their way while this tile is worked on.
        index = key_indices(
            tile + 1, window_tiles, choice_ptr, choice_width, selected_ptr, selected_width, HAS_MAIN, KEY_TILE
        )
        if MATRIX:
            largest, total, sum_even, sum_odd = fold_matrix(
                even, odd, key_even, key_odd, usable, largest, total, sum_even, sum_odd, SCALE
            )
        else:
            largest, total, sum_even, sum_odd = fold_lanes(
                even, odd, key_even, key_odd, usable, largest, total, sum_even, sum_odd, SCALE, LANES
            )

    if not MATRIX:
        largest, total, sum_even, sum_odd = gather_lanes(largest, total, sum_even, sum_odd, HALF)
    if PARTIAL:
        rows = tl.num_programs(0) // HEAD_TILES
        index = (tl.program_id(1).to(tl.int64) * rows + row) * HEADS + head
        real = head < HEADS
        tl.store(largest_ptr + index, largest, mask=real)
        tl.store(total_ptr + index, total, mask=real)
        half = out_ptr + ((index * (2 * HALF))[:, None] + tl.arange(0, HALF)[None, :])
        tl.store(half, sum_even, mask=real[:, None])
        tl.store(half + HALF, sum_odd, mask=real[:, None])
    else:
        finish(
            sum_even, sum_odd, largest, total, row, head, sink_ptr, cos_ptr, sin_ptr, out_ptr,
            HEADS, CHANNELS, PAIRS, HEAD_TILE, HALF,
        )  # fmt: skip


def sparse_attention_launch(
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
    out: torch.Tensor,
    largest: torch.Tensor | None,
    total: torch.Tensor | None,
    *,
    scale: float,
    rotate_query: bool,
    plan: Plan,
) -> Launch:
    """The launch for checked tensors of :func:`sparse_attention_packed`; last dimensions have stride 1.

    Without selected entries the four tensors that lead to them are None, and so is ``selected``. With one split
    ``out`` is the result and largest and total are None; with several it is fp32 [splits, N, H, 2, C/2 padded], and
    largest and total are [splits, N, H], for :func:`attention_combine_launch`.
    """
    rows, heads, channels = query.shape
    main = selected is not None
    return Launch(
        kernel=sparse_attention_kernel,
        grid=(rows * triton.cdiv(heads, plan.head_tile), plan.splits),
        arguments={
            "query_ptr": query,
            "sink_ptr": sink,
            "window_codes_ptr": window_codes,
            "window_scales_ptr": window_scales,
            "choice_ptr": choice,
            "main_codes_ptr": main_codes,
            "main_scales_ptr": main_scales,
            "table_ptr": page_table,
            "sequence_ptr": sequence,
            "selected_ptr": selected,
            "cos_ptr": turn_cos,
            "sin_ptr": turn_sin,
            "out_ptr": out,
            "largest_ptr": largest,
            "total_ptr": total,
            "query_row_stride": query.stride(0),
            "query_head_stride": query.stride(1),
            "window_codes_stride": window_codes.stride(0),
            "window_scales_stride": window_scales.stride(0),
            "choice_stride": choice.stride(0),
            "choice_width": choice.shape[1],
            "window_rows": window_codes.shape[0],
            "main_codes_page_stride": main_codes.stride(0) if main else 0,
            "main_codes_row_stride": main_codes.stride(1) if main else 0,
            "main_scales_page_stride": main_scales.stride(0) if main else 0,
            "main_scales_row_stride": main_scales.stride(1) if main else 0,
            "table_stride": page_table.stride(0) if main else 0,
            "table_width": page_table.shape[1] if main else 0,
            "selected_stride": selected.stride(0) if main else 0,
            "selected_width": selected.shape[1] if main else 0,
            "tiles": plan.tiles,
        },
        constants={
            "HEADS": heads,
            "CHANNELS": channels,
            "PAIRS": 0 if turn_cos is None else turn_cos.shape[1],
            "PER_PAGE": main_codes.shape[1] if main else 1,
            "SCALE": scale * LOG2_E.value,
            "HAS_MAIN": main,
            "ROTATE_QUERY": rotate_query,
            "PARTIAL": plan.splits > 1,
            "MATRIX": plan.matrix,
            "OPERAND": plan.operand,
            "HEAD_TILE": plan.head_tile,
            "KEY_TILE": plan.key_tile,
            "HALF": triton.next_power_of_2(channels) // 2,
        },
        num_warps=plan.num_warps,
        # Sums of products are rounded once, not twice. Loads are not staged through shared memory: decoding needs
        # them in registers.
        options={"enable_fp_fusion": True, "num_stages": 1},
    )


def compile_cases() -> Iterator[CompileCase]:
    """The published shape: one token and a prefill, with entries of both sources, and layers with a window only."""
    matrix = (80, 86, 89, 90, 100, 120)
    half, brain = torch.float16, torch.bfloat16
    yield _case("prefill_bfloat16", 4096, brain, (80, 86, 89, 100, 120))
    yield _case("prefill_window_bfloat16", 4096, brain, matrix, per_page=0)
    yield _case("prefill_rotated_bfloat16", 4096, brain, matrix, per_page=64, rotate_query=True)
    yield _case("prefill_64_heads_bfloat16", 4096, brain, (90,))
    yield _case("prefill_64_heads_float16", 4096, half, (90,), per_page=64)
    # Of a small tile the loads of indices are a large part, by the count of instructions.
    yield _case("decode_bfloat16", 1, brain, matrix, wide=False)
    yield _case("decode_float16", 1, half, matrix, wide=False)
    yield _case("lanes_decode_float16", 1, half, (75,), wide=False)
    yield _case("lanes_prefill_float16", 4096, half, (75,), wide=False)
    yield _case("lanes_decode_float32", 1, torch.float32, (75, *matrix), wide=False)


def _case(
    name: str,
    rows: int,
    dtype: torch.dtype,
    targets: tuple[int, ...],
    per_page: int = 32,
    rotate_query: bool = False,
    wide: bool = True,
) -> CompileCase:
    """64 heads of 512 channels, 128 window slots, 512 entries in pages of 56,960 bytes, or none if per_page is 0."""
    plan = Plan.of(rows, 64, 128, 512 if per_page else 0, dtype, targets[0], rotate_query=rotate_query)
    query = torch.empty(rows, 64, 512, dtype=dtype, device="meta")
    pages = torch.empty(1024, 56960, dtype=torch.uint8, device="meta")
    main = [None] * 5
    if per_page:
        codes, scales = (
            pages[:, start : start + per_page * width].unflatten(1, (per_page, width))
            for start, width in ((0, 256), (256 * per_page, 32))
        )
        numbers = query.new_empty((rows, 513), dtype=torch.int64)
        main = [codes, scales, query.new_empty((8, 1024), dtype=torch.int64), numbers[:, 0], numbers[:, 1:]]
    turn = query.new_empty((rows, 32), dtype=torch.float32)
    split = plan.splits > 1
    sums = query.new_empty((plan.splits, rows, 64), dtype=torch.float32) if split else None
    launch = sparse_attention_launch(
        query,
        query.new_empty((64,), dtype=torch.float32),
        pages[:, :512],
        pages[:, 512:528],
        query.new_empty((rows, 128), dtype=torch.int64),
        *main,
        turn,
        turn,
        query.new_empty((plan.splits, rows, 64, 2, 256), dtype=torch.float32) if split else torch.empty_like(query),
        sums,
        sums,
        scale=512**-0.5,
        rotate_query=rotate_query,
        plan=plan,
    )
    return CompileCase(f"sparse_attention_{name}", launch, wide, targets, plan.matrix)
