"""Rules that hold for the source of every kernel, read from its syntax."""

import ast
import sys
from pathlib import Path

import pytest

from ds41.kernels import aot

FOLDER = Path(aot.__file__).parent
SOURCES = sorted(FOLDER.glob("*.py"))
each_source = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)


def calls(tree: ast.AST, name: str) -> list[ast.Call]:
    """Calls of ``tl.<name>``."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "tl"
    ]


def masked_loads_without_other(tree: ast.AST) -> list[int]:
    """Lines of loads whose masked lanes are undefined on a GPU, while the interpreter fills them with zeros."""
    return [
        call.lineno
        for call in calls(tree, "load")
        if (len(call.args) > 1 or any(k.arg == "mask" for k in call.keywords))
        and not any(k.arg == "other" for k in call.keywords)
    ]


def is_jit(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator).startswith("triton.jit") for decorator in function.decorator_list)


@each_source
def test_masked_loads_name_what_masked_lanes_hold(path):
    assert masked_loads_without_other(ast.parse(path.read_text())) == []


def test_the_check_of_masked_loads_sees_one():
    tree = ast.parse("tl.load(p)\ntl.load(p, mask=m)\ntl.load(p, m)\ntl.load(p, mask=m, other=0)")
    assert masked_loads_without_other(tree) == [2, 3]


@each_source
def test_no_fp8_type_no_float_atomics_no_autotuning(path):
    """fp8 types fail to compile below sm_89; atomics and autotuning make results depend on the run."""
    text = path.read_text()
    for banned in ("float8", "tl.atomic_", "triton.autotune", "inline_asm"):
        assert banned not in text


@each_source
def test_imports_only_torch_triton_and_its_own_folder(path):
    allowed = {"torch", "triton"} | sys.stdlib_module_names
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= allowed
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1 or (node.level == 0 and node.module.split(".")[0] in allowed)


def test_every_module_with_a_kernel_is_compiled_ahead_of_time():
    with_kernels = set()
    for path in SOURCES:
        functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        if any(is_jit(function) and function.name.endswith("_kernel") for function in functions):
            with_kernels.add(path.stem)
    assert with_kernels == set(aot.MODULES)


def test_compile_cases_have_names_of_their_own():
    names = [case.name for case in aot.all_cases()]
    assert len(names) == len(set(names))
