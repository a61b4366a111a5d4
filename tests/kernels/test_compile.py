"""Ahead-of-time compilation, in a process of its own: this one may run kernels under the interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import compile_kernels
import pytest
import torch

from ds41.kernels.aot import specialise
from ds41.kernels.encode import encode_launch
from ds41.kernels.resources import global_accesses, wide_share

REPOSITORY = Path(__file__).parents[2]

# Compiles four cases, and four that must be found at fault; prints what the tests below look at.
PROBE = """
import dataclasses, json, re, sys
sys.path.insert(0, "ci")
import compile_kernels
from ds41.kernels import aot, encode, launch

found = {}
for case in aot.all_cases():
    if case.name in ("encode_main_kv_bfloat16", "encode_window_kv_float32", "decode_index_key_float16",
                     "decode_window_kv_bfloat16"):
        asm = aot.compile_launch(case.launch, 75).asm
        offsets = re.findall(r"tt\\.addptr .*: tensor<.*>, tensor<.*x(i\\d+)>", asm["ttir"])
        found[case.name] = {"ptx": asm["ptx"], "offsets": offsets, "result": compile_kernels.compile_one(case.name, 75)}

case = next(aot.all_cases())
def only(launch, wide=True):
    aot.all_cases = lambda: iter([dataclasses.replace(case, launch=launch, wide=wide)])
    return compile_kernels.compile_one(case.name, 75)["problems"]

gaps = case.launch.arguments | {"x_row_stride": 513}
found["narrow"] = only(dataclasses.replace(case.launch, arguments=gaps))
found["broken"] = only(dataclasses.replace(case.launch, constants=case.launch.constants | {"TILE_ROWS": 3}))
crowded = case.launch.constants | {"TILE_ROWS": 16}
found["spill"] = only(dataclasses.replace(case.launch, constants=crowded, num_warps=1))
compile_kernels.SHARED_LIMIT[75] = 100
found["shared"] = only(case.launch)
print(json.dumps(found))
"""


def without_interpreter(*command: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def probe() -> dict:
    done = without_interpreter(sys.executable, "-c", PROBE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


CASES = ["encode_main_kv_bfloat16", "encode_window_kv_float32", "decode_index_key_float16", "decode_window_kv_bfloat16"]


@pytest.mark.parametrize("name", CASES)
def test_kernels_compile_for_the_oldest_gpu_without_spills(probe, name):
    result = probe[name]["result"]
    assert result["problems"] == []
    assert result["registers"] <= 128


@pytest.mark.parametrize("name", CASES)
def test_bulk_data_moves_16_bytes_at_a_time(probe, name):
    """All of a thread's share of the tile: the input and the codes of encode, the codes and the output of decode."""
    accesses = global_accesses(probe[name]["ptx"])
    operation, element_bytes = name.split("_")[0], {"float32": 4, "bfloat16": 2, "float16": 2}[name.split("_")[-1]]
    values = 4096 // 128 * element_bytes // 16
    codes = 4096 // 128 // (1 if "window" in name else 2) // 16
    loads, stores = (values, codes) if operation == "encode" else (codes, values)
    assert accesses["ld"].get(16) == loads
    assert accesses["st"].get(16) == stores


@pytest.mark.parametrize("name", CASES)
def test_all_offsets_have_64_bits(probe, name):
    assert probe[name]["offsets"]
    assert set(probe[name]["offsets"]) == {"i64"}


@pytest.mark.parametrize("name", CASES)
def test_no_instruction_flushes_subnormals_or_fuses_roundings(probe, name):
    assert ".ftz" not in probe[name]["ptx"]
    assert "fma." not in probe[name]["ptx"]


def test_saturation_lets_nan_pass_on_a_gpu(probe):
    """Plain minimum and maximum drop a NaN there; under the interpreter they keep it, so running cannot tell."""
    ptx = probe["decode_index_key_float16"]["ptx"].lower()
    assert "min." in ptx
    assert "nan" in ptx


def test_faults_are_found_and_named(probe):
    (narrow,) = probe["narrow"]
    assert "encode_main_kv_float32 for sm_75: loads by bytes a thread" in narrow
    (broken,) = probe["broken"]
    assert broken.startswith("encode_main_kv_float32 for sm_75: CompilationError")
    assert any(problem.startswith("encode_main_kv_float32 for sm_75: spills ") for problem in probe["spill"])
    (shared,) = probe["shared"]
    assert "2048 bytes of shared memory; the limit is 100" in shared


def test_the_command_writes_its_report_and_ignores_the_interpreter(tmp_path, monkeypatch):
    report = tmp_path / "kernels.json"
    command = [sys.executable, "ci/compile_kernels.py", "--kernels", "decode_main_kv_bfloat16", "--targets", "75,90"]
    command += ["--jobs", "1", "--report", str(report)]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(report.read_text())["kernels"]
    assert [(r["kernel"], r["target"]) for r in results] == [("decode_main_kv_bfloat16", t) for t in (75, 90)]
    assert all(r["spill_bytes"] == 0 and r["shared_bytes"] <= 65536 for r in results)
    assert "0 problems" in done.stdout


@pytest.mark.parametrize(
    ("option", "message"), [(["--targets", "75,99"], "unknown targets [99]"), (["--kernels", "nothing"], "nothing")]
)
def test_the_command_refuses_what_it_does_not_know(option, message, monkeypatch, capsys):
    # The command takes the variable away; this process gets it back.
    monkeypatch.setenv("TRITON_INTERPRET", os.environ.get("TRITON_INTERPRET", "0"))
    assert compile_kernels.main(option) == 2
    assert message in capsys.readouterr().err


def test_a_launch_is_specialised_as_triton_does():
    x = torch.empty(64, 513, dtype=torch.float16, device="meta")[:, :512]
    codes = torch.empty(64, 256, dtype=torch.uint8, device="meta")
    scales = torch.empty(64, 32, dtype=torch.uint8, device="meta")
    launch = encode_launch(x, codes, scales, None, element="e2m1", scale="e4m3", block=16, amax_floor=1e-4)
    signature, constants, attributes = specialise(launch)
    types = {name: kind for name, kind in signature.items() if name.islower()}
    assert types == {
        "x_ptr": "*fp16",
        "codes_ptr": "*u8",
        "scales_ptr": "*u8",
        "not_finite_ptr": "constexpr",
        "rows": "i32",
        "x_row_stride": "i32",
        "x_channel_stride": "constexpr",
    }
    assert constants["x_channel_stride"] == 1
    assert constants["not_finite_ptr"] is None
    divisible = {launch.kernel.arg_names[index] for (index,) in attributes}
    assert divisible == {"x_ptr", "codes_ptr", "scales_ptr", "rows"}


def test_large_integers_take_64_bits():
    x = torch.empty(1, dtype=torch.float16, device="meta").as_strided((3, 512), (0, 1))
    launch = encode_launch(
        x, x[:, :256].to(torch.uint8), x[:, :32].to(torch.uint8), None, element="e2m1", scale="e4m3", block=16,
        amax_floor=1e-4,
    )  # fmt: skip
    launch.arguments["x_row_stride"] = 2**31
    assert specialise(launch)[0]["x_row_stride"] == "i64"
    launch.arguments["x_row_stride"] = 1.5
    with pytest.raises(TypeError, match=r"x_row_stride is 1\.5"):
        specialise(launch)


def test_reading_accesses_from_ptx():
    ptx = """
    @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
    ld.global.b8 { %rs1 }, [ %rd2 + 0 ];
    ld.global.L1::evict_last.v2.b64 { %rd5, %rd6 }, [ %rd2 + 0 ];
    ld.shared.v4.b32 { %r1, %r2, %r3, %r4 }, [ %r9 ];
    st.global.v2.b16 [ %rd4 + 0 ], { %rs2, %rs3 };
    """
    accesses = global_accesses(ptx)
    assert accesses == {"ld": {16: 2, 1: 1}, "st": {4: 1}}
    assert wide_share(accesses["ld"]) == 32 / 33
    assert wide_share({}) == 1
