"""The device functions that read and round the small number formats, over everything they can meet.

The oracle rounds by searching the exact midpoints in float64, where all products compared here are exact.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from ds41.kernels import numbers

CASES = json.loads((Path(__file__).parents[1] / "golden" / "format_cases.json").read_text())
E2M1 = np.array([CASES["tables"]["e2m1"][str(code)] for code in range(8)])
E4M3 = np.array([CASES["tables"]["e4m3fn_finite"][str(code)] for code in range(127)])

TILE = tl.constexpr(4096)
# A threshold may overflow to infinity, on purpose; under the interpreter numpy mentions it.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")


@triton.jit
def map_kernel(x_ptr, y_ptr, out_ptr, n, FUNCTION: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    x = tl.load(x_ptr + at, mask=at < n, other=1)
    y = tl.load(y_ptr + at, mask=at < n, other=1)
    tl.store(out_ptr + at, FUNCTION(x, y), mask=at < n)


@triton.jit
def bits_of(x, y):
    return numbers.float_bits(x)


@triton.jit
def e2m1_of(x, y):
    return numbers.e2m1_of_quotient(x, y)


@triton.jit
def e4m3_of(x, y):
    return numbers.e4m3_of_magnitude(numbers.float_bits(x))


@triton.jit
def e4m3_of_sixth_of(x, y):
    return numbers.e4m3_of_sixth(numbers.float_bits(x))


@triton.jit
def e8m0_of(x, y):
    return numbers.e8m0_not_below(numbers.float_bits(x))


@triton.jit
def from_e2m1(x, y):
    return numbers.e2m1_to_float(x)


@triton.jit
def from_e4m3(x, y):
    return numbers.e4m3_to_float(x)


@triton.jit
def from_e8m0(x, y):
    return numbers.e8m0_to_float(x)


@triton.jit
def to_bf16(x, y):
    return numbers.bf16_of_float(x, EXACT=False)


@triton.jit
def cut_to_bf16(x, y):
    return numbers.bf16_of_float(x, EXACT=True)


@pytest.fixture
def apply(device):
    """apply(function, x, y=None, dtype) -> the function of every element, as a numpy array or a tensor of bf16."""

    def run(function, x, y=None, dtype=torch.int32):
        x = torch.as_tensor(x).to(device)
        y = x if y is None else torch.as_tensor(y).to(device)
        out = torch.empty(x.shape, dtype=dtype, device=device)
        grid = (triton.cdiv(x.numel(), TILE.value),)
        map_kernel[grid](x, y, out, x.numel(), FUNCTION=function, enable_fp_fusion=False)
        return out.cpu() if dtype == torch.bfloat16 else out.cpu().numpy()

    return run


def nearest(x: np.ndarray, table: np.ndarray, scale=1.0) -> np.ndarray:
    """Code of the number of ``table`` nearest to x / scale, ties to the even code, saturating."""
    midpoints = (table[1:] + table[:-1]) / 2
    codes = np.zeros(x.shape, dtype=np.int64)
    for code, midpoint in enumerate(midpoints):
        edge = midpoint * np.asarray(scale, dtype=np.float64)
        codes += np.where(code % 2 == 0, x.astype(np.float64) > edge, x.astype(np.float64) >= edge)
    return codes


def with_neighbours(values: np.ndarray, steps: int = 2) -> np.ndarray:
    """Each fp32 value with the ``steps`` next below and above it: [2 * steps + 1, ...]."""
    bits = values.astype(np.float32).view(np.int32)
    return np.stack([bits + step for step in range(-steps, steps + 1)]).view(np.float32)


def every_bf16() -> torch.Tensor:
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def finite_magnitudes() -> np.ndarray:
    values = every_bf16().float().numpy()
    return values[np.isfinite(values) & ~np.signbit(values)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_widening_keeps_every_number(apply, dtype):
    x = every_bf16().view(dtype)
    expected = x.float().numpy()
    bits = apply(bits_of, x)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(bits[number], expected.view(np.int32)[number])
    assert np.isnan(bits.view(np.float32)[~number]).all()


def test_e2m1_ties_and_their_neighbours_with_every_e4m3_scale(apply):
    scales = E4M3[1:].astype(np.float32)
    midpoints = ((E2M1[1:] + E2M1[:-1]) / 2).astype(np.float32)
    x = with_neighbours(np.multiply.outer(scales, midpoints)).ravel()
    scale = np.broadcast_to(scales[None, :, None], (5, len(scales), len(midpoints))).ravel()
    codes = apply(e2m1_of, x, scale.copy())
    np.testing.assert_array_equal(codes, nearest(x, E2M1, scale))
    # What "divide, then round" gives with a correctly rounded fp32 division.
    np.testing.assert_array_equal(codes, nearest(x / scale, E2M1))


@pytest.mark.parametrize("exponent", [-126, -125, -9, 0, 5, 120, 125, 126])
def test_e2m1_of_every_bf16_with_powers_of_two(apply, exponent):
    x = finite_magnitudes()
    scale = np.full_like(x, 2.0**exponent)
    np.testing.assert_array_equal(apply(e2m1_of, x, scale), nearest(x, E2M1, scale))


def test_e4m3_of_every_bf16_and_around_every_tie(apply):
    midpoints = (E4M3[1:] + E4M3[:-1]) / 2
    x = np.concatenate([finite_magnitudes(), with_neighbours(midpoints).ravel(), with_neighbours(E4M3[1:]).ravel()])
    np.testing.assert_array_equal(apply(e4m3_of, x), nearest(x, E4M3))


def test_e4m3_of_a_sixth_is_the_rounded_exact_quotient(apply):
    midpoints = (E4M3[1:] + E4M3[:-1]) / 2
    random = np.random.default_rng(0).uniform(2.0**-7, 3000, 20000).astype(np.float32)
    ties = with_neighbours(np.concatenate([6 * midpoints, 6 * E4M3[1:]])).ravel()
    bf16 = finite_magnitudes()
    x = np.concatenate([bf16[bf16 >= 2.0**-126], ties, random])
    np.testing.assert_array_equal(apply(e4m3_of_sixth_of, x), nearest(x, E4M3, 6))
    np.testing.assert_array_equal(apply(e4m3_of_sixth_of, x), nearest(x / np.float32(6), E4M3))


def test_e8m0_is_the_least_power_of_two_not_below(apply):
    powers = 2.0 ** np.arange(-125.0, 127)
    bf16 = finite_magnitudes()
    x = np.concatenate([with_neighbours(powers).ravel(), bf16[(bf16 >= 2.0**-126) & (bf16 <= 2.0**127)]])
    codes = apply(e8m0_of, x)
    scale = 2.0 ** (codes.astype(np.float64) - 127)
    assert (scale >= x).all()
    assert (scale / 2 < x).all()


def test_every_code_is_read_as_its_number(apply):
    codes = torch.arange(256, dtype=torch.int32)
    e2m1 = apply(from_e2m1, codes[:16], dtype=torch.float32)
    np.testing.assert_array_equal(e2m1.view(np.int32), np.concatenate([E2M1, -E2M1]).astype(np.float32).view(np.int32))
    e4m3 = apply(from_e4m3, codes, dtype=torch.float32)
    signed = np.concatenate([E4M3, [np.nan], -E4M3, [np.nan]]).astype(np.float32)
    np.testing.assert_array_equal(e4m3, signed)
    np.testing.assert_array_equal(np.signbit(e4m3[128:255]), True)
    e8m0 = apply(from_e8m0, codes, dtype=torch.float32)
    np.testing.assert_array_equal(e8m0, np.append(2.0 ** np.arange(-127.0, 128), np.nan).astype(np.float32))


def test_rounding_to_bf16_is_that_of_torch(apply):
    bits = np.random.default_rng(1).integers(-(2**31), 2**31, 40000).astype(np.int32)
    ties = (np.arange(65536, dtype=np.int64) << 16 | 0x8000).astype(np.uint32).view(np.int32)
    special = np.array([0, -(2**31), 1, 0x7F7FFFFF, 0x7F800000, 0x7FFFFFFF, -1, 0x7FC00000], dtype=np.int64)
    x = torch.from_numpy(np.concatenate([bits, ties, special.astype(np.int32)])).view(torch.float32)
    expected = x.to(torch.bfloat16)
    rounded = apply(to_bf16, x, dtype=torch.bfloat16)
    number = ~torch.isnan(x)
    assert torch.equal(rounded.view(torch.int16)[number], expected.view(torch.int16)[number])
    assert torch.isnan(rounded[~number]).all()


def test_cutting_to_bf16_is_exact_for_what_has_few_bits(apply):
    long_nan = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    x = torch.cat([every_bf16().float(), long_nan])
    cut = apply(cut_to_bf16, x, dtype=torch.bfloat16)
    number = ~torch.isnan(x)
    assert torch.equal(cut.float()[number].view(torch.int32), x[number].view(torch.int32))
    assert torch.isnan(cut[~number]).all()
