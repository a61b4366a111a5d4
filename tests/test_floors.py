"""The floors of the design: a file imports from its own floor or a lower one, and never in a circle."""

from __future__ import annotations

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = (
    "config config_checks config_files small_floats formats comparison_formats rope norm linear precision step tokens "
    "tokenizer chat_format weight_formats environment agent_workspace agent_workload measured language kernels",
    "ops",
    "cache mhc_traffic kernel_floors records ledger reads weights roofline matrix_instructions matrix_probe systems "
    "economics candidates counterfactuals report window_persistence window_cone "
    "engine_logs engine_log_lines engine_storages engine_check engine_facts deployment",
    "attention hyper_connections moe packed_experts expert_balance topic_stream engram",
    "block decoder_tail model checkpoint flops",
    "sampling generation replay dspark vision trained",
    "serving training probes",
    "viz errata cli cli_model cli_generate cli_chat cli_train cli_evaluate cli_probe "
    "cli_draft cli_images cli_train_part cli_evaluate_part cli_check_log cli_serve cli_pools cli_tiers cli_sizes "
    "chat chat_turn cli_tables conversation exercises preflight cli_doctor __main__",
)
FLOOR = {name: floor for floor, names in enumerate(FLOORS, start=1) for name in names.split()}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, `ds41.kernels` among them."""
    found = {}
    for folder, package in ((ROOT / "src" / "ds41", "ds41"), (ROOT / "kernels", "ds41.kernels")):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return found


MODULES = modules()


def imports(name: str, path: Path) -> tuple[set[str], set[str]]:
    """What a module imports as full names: anywhere in it, and when it is itself imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    anywhere = {target for node in ast.walk(tree) for target in _targets(node, package)}
    at_import = {target for node in tree.body for target in _targets(node, package)}
    return anywhere, at_import


def _targets(node: ast.AST, package: str) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if not isinstance(node, ast.ImportFrom):
        return set()
    base = node.module or ""
    if node.level:
        anchor = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*anchor, *([base] if base else [])])
    # `from ds41 import ledger` imports a module, `from ds41.ledger import planes` a name of one.
    submodules = {f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in MODULES}
    return submodules or {base}


def part(module: str) -> str:
    """The file or folder of the package that a module belongs to, which is what stands on a floor."""
    return module.split(".")[1]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_go_down(name):
    if name == "ds41":
        return
    assert part(name) in FLOOR, f"{name} stands on no floor: give it one in FLOORS"
    anywhere, _ = imports(name, MODULES[name])
    for target in anywhere:
        if target.startswith("ds41."):
            assert FLOOR[part(target)] <= FLOOR[part(name)], f"{name} imports {target}, which is a floor above it"


def test_nothing_imports_in_a_circle():
    graph = {}
    for name, path in MODULES.items():
        _, at_import = imports(name, path)
        graph[name] = {target for target in at_import if target in MODULES} - {name, "ds41"}
    # The package itself only passes names on.
    graph["ds41"] = set()
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("name", sorted(name for name in MODULES if part(f"{name}.") == "kernels"))
def test_kernels_stand_alone(name):
    anywhere, _ = imports(name, MODULES[name])
    for target in anywhere:
        top = target.split(".")[0]
        allowed = top in {"torch", "triton", "numpy"} or top in sys.stdlib_module_names
        assert allowed or target.startswith("ds41.kernels"), f"{name} imports {target}"


def test_the_environment_needs_only_torch():
    anywhere, _ = imports("ds41.environment", MODULES["ds41.environment"])
    assert {target.split(".")[0] for target in anywhere} - set(sys.stdlib_module_names) <= {"torch", "triton"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from .launch import Launch", {"ds41.kernels.launch"}),
        ("from . import launch", {"ds41.kernels.launch"}),
        ("from ds41 import ops, __version__", {"ds41.ops"}),
        ("from ds41.formats import MAIN_KV", {"ds41.formats"}),
        ("import ds41.ops.backend", {"ds41.ops.backend"}),
    ],
)
def test_imports_are_read_right(source, expected):
    assert _targets(ast.parse(source).body[0], "ds41.kernels") == expected
