"""The interpreter of the tests against Triton's own: the same bits, the same errors, nothing left behind."""

import pytest
import torch
import triton
import triton.language as tl

from ds41.environment import interpreting

if not interpreting():
    pytest.skip("kernels run on the device here", allow_module_level=True)

import quick_interpreter
from triton.runtime import interpreter

TYPES = [torch.float32, torch.float16, torch.int32, torch.int64, torch.uint8]


@triton.jit
def scaled(x, factor):
    return x * factor + tl.zeros_like(x)


@triton.jit
def summed(x, SIZE: tl.constexpr):
    return tl.sum(scaled(x, 3), axis=0) + tl.cdiv(SIZE, 2)


@triton.jit
def nested_kernel(x_ptr, out_ptr, length, SIZE: tl.constexpr):
    offsets = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    x = tl.load(x_ptr + offsets, mask=offsets < length, other=0)
    total = summed(x.to(tl.float32), SIZE)
    if length > 5:
        total = total + tl.max(x.to(tl.float32))
    tl.store(out_ptr + offsets, scaled(x, 2).to(out_ptr.dtype.element_ty), mask=offsets < length)
    tl.store(out_ptr + length + tl.program_id(0), total.to(out_ptr.dtype.element_ty))


@triton.jit
def misused_kernel(x_ptr):
    tl.store(x_ptr, scaled(tl.arange(0, 3), 2))


@pytest.fixture
def plain():
    """Call a function on Triton's own interpreter."""

    def call(function, *arguments):
        quick_interpreter.uninstall()
        try:
            return function(*arguments)
        finally:
            quick_interpreter.install()

    return call


def launched(dtype, length):
    x = (torch.arange(length) % 7).to(dtype)
    out = torch.zeros(length + 8, dtype=dtype)
    nested_kernel[(-(-length // 4),)](x, out, length, SIZE=4)
    return out


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("length", [3, 9])
def test_nested_functions_give_the_same_bits(plain, dtype, length):
    got = launched(dtype, length)
    assert bool(got.any())
    assert torch.equal(got, plain(launched, dtype, length))


def test_the_language_is_as_before_after_a_launch(plain):
    before = {name: value for name, value in vars(tl).items() if tl.core.is_builtin(value)}
    methods = {name: value for name, value in vars(tl.tensor).items() if tl.core.is_builtin(value)}
    launched(torch.float32, 9)
    assert {name: getattr(tl, name) for name in before} == before
    assert {name: getattr(tl.tensor, name) for name in methods} == methods
    assert len(before) > 50
    assert torch.equal(plain(launched, torch.float32, 9), launched(torch.float32, 9))


def test_the_language_is_as_before_after_an_error(plain):
    with pytest.raises(interpreter.InterpreterError) as quick:
        misused_kernel[(1,)](torch.zeros(4))
    assert tl.core.is_builtin(tl.load)
    with pytest.raises(interpreter.InterpreterError) as own:
        plain(misused_kernel[(1,)], torch.zeros(4))
    assert str(quick.value) == str(own.value)
    assert launched(torch.float32, 9).any()


def test_a_launch_patches_the_language_once(monkeypatch):
    plain_patch, calls = quick_interpreter.PLAIN["_patch_lang"], []
    monkeypatch.setitem(quick_interpreter.PLAIN, "_patch_lang", lambda fn: calls.append(fn) or plain_patch(fn))
    launched(torch.float32, 9)
    # Triton's own library sees its language under another name, which is patched at its first call in a process.
    assert 1 <= len(calls) <= 2


@pytest.mark.parametrize(
    "dtype", [tl.int1, tl.bfloat16, tl.float8e4nv, tl.pointer_type(tl.int8), tl.block_type(tl.int64, [4])], ids=str
)
def test_types_of_numpy(dtype):
    assert interpreter._get_np_dtype(dtype) == quick_interpreter.PLAIN["_get_np_dtype"](dtype)


def test_an_unknown_type_is_refused_as_before():
    for look_up in (interpreter._get_np_dtype, quick_interpreter.PLAIN["_get_np_dtype"]):
        with pytest.raises(KeyError):
            look_up(tl.void)
