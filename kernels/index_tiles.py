"""Device functions of the indexer's score kernels: a program's rows and columns, and the keys behind the columns."""

import triton
import triton.language as tl

from .numbers import e2m1_to_float, e8m0_to_float


@triton.jit
def score_tile(
    key_codes_ptr,
    key_scales_ptr,
    page_table_ptr,
    sequence_ptr,
    visible_ptr,
    candidates_ptr,
    rows,
    queries,
    columns,
    blocks,
    max_pages,
    codes_page_stride,
    codes_entry_stride,
    scales_page_stride,
    scales_entry_stride,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PAGE_ENTRIES: tl.constexpr,
    POOL_BLOCK: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """This program's rows and columns of scores, and what lies behind the columns.

    A column is an entry, or with POOL_BLOCK (then ``queries`` is 1) a place in the row's candidate pool.

    Returns:
        first, end: the rows, ``queries`` or fewer, all of one sequence. column [KEYS]; entry int64 [KEYS]; page int64
        [KEYS], -1 where none of the rows sees the entry or the entry has no page; keys fp32 [KEYS, WIDTH], zero there.
    """
    first = tl.program_id(0).to(tl.int64) * queries
    end = tl.minimum(first + queries, rows)
    column = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    newest = _newest_visible(visible_ptr, first, end, QUERIES)
    entry, wanted = _tile_entries(column, first, columns, candidates_ptr, blocks, POOL_BLOCK)
    page = _find_pages(
        entry, wanted & (entry < newest), page_table_ptr, tl.load(sequence_ptr + first), max_pages, PAGE_ENTRIES
    )
    keys = _load_keys(
        key_codes_ptr,
        key_scales_ptr,
        page,
        entry % PAGE_ENTRIES,
        codes_page_stride,
        codes_entry_stride,
        scales_page_stride,
        scales_entry_stride,
        CHANNELS,
        WIDTH,
        BLOCK,
        KEYS,
    )
    return first, end, column, entry, page, keys


@triton.jit
def _tile_entries(column, row, columns, candidates_ptr, blocks, POOL_BLOCK: tl.constexpr):
    """Entries that columns of a row's scores stand for, and whether there is one.

    Without a pool (POOL_BLOCK 0) a column is its entry. With one, a column is an entry of the row's candidate block
    ``column // POOL_BLOCK``, which may be -1 for none.
    """
    inside = column < columns
    if POOL_BLOCK == 0:
        return column.to(tl.int64), inside
    else:
        block = tl.load(candidates_ptr + (row * blocks + column // POOL_BLOCK), mask=inside, other=-1)
        return block * POOL_BLOCK + column % POOL_BLOCK, inside & (block >= 0)


@triton.jit
def _newest_visible(visible_ptr, first, end, QUERIES: tl.constexpr):
    """How many entries rows first to end - 1, at most QUERIES of them, see between them."""
    row = first + tl.arange(0, QUERIES)
    return tl.max(tl.load(visible_ptr + row, mask=row < end, other=0))


@triton.jit
def _find_pages(entry, wanted, page_table_ptr, sequence, max_pages, PAGE_ENTRIES: tl.constexpr):
    """Page of each entry, -1 where none is wanted or the table has none."""
    number = entry // PAGE_ENTRIES
    return tl.load(page_table_ptr + (sequence * max_pages + number), mask=wanted & (number < max_pages), other=-1)


@triton.jit
def _load_keys(
    codes_ptr,
    scales_ptr,
    page,
    place,
    codes_page_stride,
    codes_entry_stride,
    scales_page_stride,
    scales_entry_stride,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
):
    """fp32 keys [KEYS, WIDTH] at places of pages, zero where the page is -1; WIDTH is CHANNELS rounded up."""
    wanted = (page >= 0)[:, None]
    byte = tl.arange(0, WIDTH // 2)[None, :]
    at = (page * codes_page_stride + place * codes_entry_stride)[:, None] + byte
    codes = tl.load(codes_ptr + at, mask=wanted & (byte < CHANNELS // 2), other=0).to(tl.int32)
    block = tl.arange(0, WIDTH // BLOCK)[None, :]
    at = (page * scales_page_stride + place * scales_entry_stride)[:, None] + block
    scales = tl.load(scales_ptr + at, mask=wanted & (block < CHANNELS // BLOCK), other=0).to(tl.int32)
    numbers = tl.join(e2m1_to_float(codes & 15), e2m1_to_float(codes >> 4)).reshape(KEYS, WIDTH // BLOCK, BLOCK)
    return (numbers * e8m0_to_float(scales)[:, :, None]).reshape(KEYS, WIDTH)
