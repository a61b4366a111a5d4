"""The committed table of compiled kernels: it is whole, and what is worse than it is found."""

import copy
import json

import kernel_table
import pytest

from ds41.kernels import aot

VERSIONS = {"triton": "3.7.1", "torch": "2.13.0"}
RESULT = {
    "kernel": "a_kernel", "target": 90, "problems": [], "registers": 64, "shared_bytes": 1024, "spill_bytes": 0,
    "loads": {16: 4, 1: 1}, "stores": {16: 1}, "matrix": 2, "traps": 0, "num_warps": 4,
}  # fmt: skip


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.json"
    kernel_table.record([RESULT], VERSIONS, path)
    return path


def test_the_committed_table_holds_every_case_of_every_target_without_a_spill():
    kernels = json.loads(kernel_table.TABLE.read_text())["kernels"]
    expected = {case.name: {f"sm_{target}" for target in case.targets or aot.TARGETS} for case in aot.all_cases()}
    assert {name: set(targets) for name, targets in kernels.items()} == expected
    assert {row["spill_bytes"] for targets in kernels.values() for row in targets.values()} == {0}
    on_matrix_units = {case.name for case in aot.all_cases() if case.matrix}
    assert on_matrix_units
    assert all(row["matrix"] > 0 for name in on_matrix_units for row in kernels[name].values())


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"registers": 73}, "73 registers, 64 in table.json"),
        ({"shared_bytes": 1025}, "shared_bytes is 1025, 1024"),
        ({"spill_bytes": 8}, "spill_bytes is 8, 0"),
        ({"loads": {8: 4}}, "widest_load is 8, 16"),
        ({"stores": {}}, "widest_store is 0, 16"),
        ({"matrix": 0}, "no matrix instruction, 2"),
        ({"kernel": "another"}, "another for sm_90 is not in table.json"),
        ({"target": 75}, "a_kernel for sm_75 is not in table.json"),
    ],
)
def test_what_is_worse_is_found(table, change, finding):
    (found,) = kernel_table.regressions([copy.deepcopy(RESULT) | change], VERSIONS, table)
    assert finding in found


@pytest.mark.parametrize("change", [{}, {"registers": 72}, {"registers": 20, "shared_bytes": 0}, {"matrix": 1}])
def test_what_is_as_good_or_better_passes(table, change):
    assert kernel_table.regressions([RESULT | change], VERSIONS, table) == []


def test_another_compiler_is_not_compared_and_failures_are_left_out(table):
    assert kernel_table.regressions([RESULT | {"registers": 255}], VERSIONS | {"triton": "3.6.0"}, table) == []
    assert kernel_table.rows_of([{"kernel": "broken", "target": 75, "problems": ["no"]}]) == {}
