"""What the compiler emits against what is published: no GPU takes an operand that its generation does not have."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ds41 import matrix_instructions
from ds41.matrix_instructions import GENERATIONS, OPERANDS, CompilerUnavailable, compiled

PUBLISHED = {generation.capability: generation.operands for generation in GENERATIONS}


@pytest.fixture(scope="module")
def emitted():
    return compiled((75, 90, 100))


def test_generations_only_gain_operands():
    assert list(PUBLISHED) == sorted(PUBLISHED)
    for before, after in pairwise(GENERATIONS):
        assert set(before.operands) <= set(after.operands) <= set(OPERANDS)


def test_turing_gets_no_matrix_instruction_and_no_fp8(emitted):
    assert emitted[75]["fp16"] == emitted[75]["bf16"] == emitted[75]["mxfp4"] == ""
    assert emitted[75]["fp8"] is None


def test_hopper_multiplies_fp4_as_bf16(emitted):
    assert emitted[90]["fp8"].startswith("wgmma.mma_async")
    assert emitted[90]["fp8"].endswith("e4m3.e4m3")
    assert emitted[90]["mxfp4"] == emitted[90]["bf16"]
    assert "nvfp4" not in emitted[90]


def test_blackwell_multiplies_fp4_with_the_block_of_the_main_kv(emitted):
    assert emitted[100].keys() == set(OPERANDS)
    assert "kind::f16" in emitted[100]["bf16"]
    assert "block_scale.scale_vec::2X" in emitted[100]["mxfp4"]
    assert "mxf4nvf4.block_scale.scale_vec::4X" in emitted[100]["nvfp4"]


def test_a_compiler_that_fails_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(matrix_instructions.sys, "executable", "/bin/false")
    with pytest.raises(CompilerUnavailable, match=r"compiling for \[80\] failed: exit status 1"):
        compiled((80,))
    # Python is replaced by a program that ends as an interpreter with an error does, and need not load a compiler.
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'Traceback:' >&2\necho \"ValueError: no GPU $3\" >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(matrix_instructions.sys, "executable", str(program))
    with pytest.raises(CompilerUnavailable, match=r"compiling for \[80\] failed: ValueError: no GPU 80$"):
        compiled((80,))
