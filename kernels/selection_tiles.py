"""Device functions of selection: scores as integers in their order, and writing what is selected."""

import triton
import triton.language as tl

from .numbers import INFINITY_BITS, float_bits


@triton.jit
def selection_keys(scores):
    """uint32 keys in the order of fp32 scores, 0 for minus infinity and NaN, which are never selected; -0 equals 0."""
    bits = float_bits(scores)
    magnitude = bits & 0x7FFFFFFF
    bits = tl.where(magnitude == 0, 0, bits)
    ordered = tl.where(bits < 0, ~bits, bits | -0x80000000).to(tl.uint32, bitcast=True)
    usable = (magnitude < INFINITY_BITS) | (bits == INFINITY_BITS)
    return tl.where(usable, ordered, 0)


@triton.jit
def load_keys(row_ptr, column, end, column_stride):
    """Keys of the columns before ``end`` of the row of scores at row_ptr, and 0 from there on."""
    at = column.to(tl.int64) * column_stride
    return selection_keys(tl.load(row_ptr + at, mask=column < end, other=float("-inf")))


@triton.jit
def write_selected(
    row_ptr,
    column_stride,
    indices_ptr,
    out_indices_ptr,
    out_scores_ptr,
    begin,
    end,
    count,
    threshold,
    ties,
    TILE: tl.constexpr,
):
    """Write the selected columns, of ``begin`` to ``end - 1``, ascending, to the ``count`` places at out_indices.

    Selected are all keys above the threshold and, unless it is 0, the first ``ties`` that equal it: ``count`` at most.
    indices: the number of each column in a whole row, None for its own. out_scores: their scores, None for none. -1
    and minus infinity fill the places that are left.
    """
    index_type: tl.constexpr = out_indices_ptr.dtype.element_ty
    lane = tl.arange(0, TILE)
    above = 0
    equal = 0
    for start in range(begin, end, TILE):
        column = start + lane
        key = load_keys(row_ptr, column, end, column_stride)
        is_above = key > threshold
        is_equal = (key == threshold) & (key > 0)
        # A tile holds fewer than 2^15 keys, so one running sum counts both.
        counted = is_above.to(tl.int32) + (is_equal.to(tl.int32) << 16)
        before = tl.cumsum(counted, axis=0) - counted
        equal_before = equal + (before >> 16)
        selected = is_above | (is_equal & (equal_before < ties))
        place = above + (before & 0xFFFF) + tl.minimum(equal_before, ties)
        index = column
        if indices_ptr is not None:
            index = tl.load(indices_ptr + column, mask=selected, other=-1)
        tl.store(out_indices_ptr + place, index.to(index_type), mask=selected)
        if out_scores_ptr is not None:
            score = tl.load(row_ptr + column.to(tl.int64) * column_stride, mask=selected, other=0.0)
            tl.store(out_scores_ptr + place, score, mask=selected)
        total = tl.sum(counted)
        above += total & 0xFFFF
        equal += total >> 16
    for start in range(above + tl.minimum(equal, ties), count, TILE):
        place = start + lane
        tl.store(out_indices_ptr + place, tl.full([TILE], -1, index_type), mask=place < count)
        if out_scores_ptr is not None:
            tl.store(out_scores_ptr + place, tl.full([TILE], float("-inf"), tl.float32), mask=place < count)
