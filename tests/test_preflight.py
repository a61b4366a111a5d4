"""The checks before a workshop: each of them in good order, and each with what it looks for broken."""

import json
import os
import platform
import re
import shutil
import socket
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ds41 import cli
from ds41 import preflight as preflight_package
from ds41.kernels import norm
from ds41.preflight import finding as finding_module
from ds41.preflight import gpu, jupyter, machine, packages, programs, runs
from ds41.preflight.finding import ANSWER, Finding, Outcome, probe, readable

ROOT = Path(__file__).parents[1]
ON_CPU = {"torch": "2.13.0", "cuda": None, "available": False, "devices": [], "computes": "", "warnings": []}
T4 = {"name": "Tesla T4", "capability": [7, 5], "memory": 15_835_660_288}
ON_GPU = {**ON_CPU, "cuda": "12.8", "available": True, "devices": [T4]}
MODEL = {"tokens": 108, "finite": True, "difference": 1e-6, "next": [7, 7]}
Usage = namedtuple("Usage", "total used free")
Version = namedtuple("Version", "major minor micro")


def told(**values) -> Outcome:
    return Outcome((values,))


def answers(monkeypatch, module, outcome: Outcome) -> list:
    """Make `module` hear this instead of running a program; the list takes what it asked."""
    asked = []
    monkeypatch.setattr(module, "probe", lambda *arguments, **options: asked.append((arguments, options)) or outcome)
    return asked


def fake_module(folder: Path, monkeypatch, name: str, text: str) -> None:
    """A package that is found before the installed one in every Python from here on."""
    folder.joinpath(name).mkdir()
    folder.joinpath(name, "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def is_broken(finding: Finding, state: str, *words: str) -> None:
    assert finding.state == state, finding
    assert finding.mend
    for word in words:
        assert word in f"{finding.found} {finding.mend}", finding


# The machine


def test_this_machine_is_in_order():
    for check in (machine.python, machine.files, machine.loopback, machine.disk):
        assert check().state == "ok", check()
    assert sys.executable in machine.python().found
    assert machine.cores().found.startswith(str(len(os.sched_getaffinity(0))))


def test_an_old_python(monkeypatch):
    monkeypatch.setattr(sys, "version_info", Version(3, 10, 12))
    is_broken(machine.python(), "fail", "3.10.12", "3.11")


def test_a_python_of_32_bits(monkeypatch):
    monkeypatch.setattr(sys, "maxsize", 2**31 - 1)
    is_broken(machine.python(), "fail", "32-bit")


def test_one_core(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    is_broken(machine.cores(), "warn", "1 core")


@pytest.mark.parametrize(
    ("total", "free", "state"),
    [
        (machine.MEMORY - 1, None, "fail"),
        (machine.MEMORY, None, "warn"),
        (2 * machine.MEMORY, machine.MEMORY - 1, "warn"),
        (2 * machine.MEMORY, machine.MEMORY, "ok"),
        (None, None, "warn"),
    ],
)
def test_memory(monkeypatch, total, free, state):
    monkeypatch.setattr(machine, "_memory", lambda: (total, free))
    assert machine.memory().state == state


def test_memory_is_what_the_system_says():
    total, free = machine._memory()
    assert 0 < free < total <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_too_little_disk(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    room = machine._SPARE * machine.OUTPUTS
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(2 * room, room, room if folder == tmp_path else 0))
    found = machine.disk()
    is_broken(found, "fail", "0 B free in /")
    assert str(tmp_path) not in found.mend
    monkeypatch.setattr(
        shutil, "disk_usage", lambda folder: Usage(10**12, 0, room - 1 if folder == tmp_path else 10**12)
    )
    is_broken(machine.disk(), "fail", f"Make room in {tmp_path}")


def test_a_folder_that_takes_no_files(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "below"))
    assert str(tmp_path) in machine.files().found
    # Root may write anywhere but into the process table.
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", "/proc")
    is_broken(machine.files(), "fail", "/proc")


def test_no_connections_to_itself(monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    is_broken(machine.loopback(), "fail", "Network is unreachable")


def test_sizes_are_readable(monkeypatch):
    assert [readable(size) for size in (0, 999, 49_000_000, 2_104_971_264)] == ["0 B", "999 B", "49 MB", "2.1 GB"]
    monkeypatch.setattr(finding_module, "current", lambda: "de")
    assert readable(2_104_971_264) == "2,1 GB"


# The GPU


@pytest.mark.parametrize("check", [gpu.gpu, gpu.driver, gpu.compiler, gpu.gpu_kernel])
def test_a_torch_that_does_not_answer(check):
    is_broken(check(Outcome((), "ImportError: libtorch")), "warn", "not known")


@pytest.mark.parametrize("check", [gpu.gpu, gpu.driver, gpu.compiler, gpu.gpu_kernel])
def test_no_gpu_is_fine(monkeypatch, check):
    monkeypatch.setattr(gpu, "_nvidia_smi", str)
    monkeypatch.setattr(gpu, "_nvidia_hardware", lambda: False)
    assert check(told(**ON_CPU)).state == "ok"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"computes": "CUDA error: no kernel image is available"}, "no kernel image"),
        ({"devices": []}, "cannot name it"),
        ({"devices": [{**T4, "capability": [6, 1]}]}, 'DEVICE = "cpu"'),
        ({"devices": [{**T4, "memory": 8 * 10**9}]}, 'SCALE = "small"'),
    ],
)
def test_gpus(change, words):
    found = gpu.gpu(told(**ON_GPU | change))
    assert "Tesla T4" in found.found or not (ON_GPU | change)["devices"]
    if words:
        is_broken(found, "warn", words)
    else:
        assert (found.state, found.found) == ("ok", "Tesla T4, sm_75, 15.8 GB")


SMI = "Tesla T4, 450.1"
TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040)"


@pytest.mark.parametrize(
    ("answer", "seen", "hardware", "state", "words"),
    [
        (ON_GPU, SMI, True, "ok", SMI),
        ({**ON_CPU, "cuda": "12.8"}, "", False, "ok", "no driver is needed"),
        ({**ON_CPU, "cuda": "12.8"}, "", True, "warn", "Install the NVIDIA driver"),
        ({**ON_CPU, "cuda": "12.8", "warnings": [TOO_OLD]}, SMI, True, "warn", "too old (found version 11040)"),
        (ON_CPU, SMI, True, "warn", "without CUDA, although there is Tesla T4, 450.1"),
    ],
)
def test_driver_and_torch(monkeypatch, answer, seen, hardware, state, words):
    monkeypatch.setattr(gpu, "_nvidia_smi", lambda: seen)
    monkeypatch.setattr(gpu, "_nvidia_hardware", lambda: hardware)
    found = gpu.driver(told(**answer))
    assert found.state == state
    assert words in f"{found.found} {found.mend}"


@pytest.mark.parametrize(
    ("program", "expected"), [("echo 'Tesla T4, 550.54'", "Tesla T4, 550.54"), ("echo failed; exit 9", "")]
)
def test_nvidia_smi(monkeypatch, tmp_path, program, expected):
    tmp_path.joinpath("nvidia-smi").write_text(f"#!/bin/sh\n{program}\n")
    tmp_path.joinpath("nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert gpu._nvidia_smi() == expected
    monkeypatch.setenv("PATH", "/nowhere")
    assert gpu._nvidia_smi() == ""


def test_a_gpu_needs_a_compiler(monkeypatch, tmp_path):
    monkeypatch.delenv("CC", raising=False)
    tmp_path.joinpath("Python.h").touch()
    monkeypatch.setattr(gpu.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name == "clang" else None)
    assert gpu.compiler(told(**ON_GPU)).found.startswith("/bin/clang")
    monkeypatch.setenv("CC", "icc -O2")
    is_broken(gpu.compiler(told(**ON_GPU)), "fail", "no C compiler")
    monkeypatch.setenv("CC", "clang")
    tmp_path.joinpath("Python.h").unlink()
    is_broken(gpu.compiler(told(**ON_GPU)), "fail", "Python.h")


@pytest.mark.parametrize(
    ("outcome", "state"),
    [(told(error=1e-7), "ok"), (told(error=0.5), "warn"), (Outcome((), "CompilationError"), "warn")],
)
def test_a_kernel_on_the_gpu(monkeypatch, outcome, state):
    asked = answers(monkeypatch, gpu, outcome)
    assert gpu.gpu_kernel(told(**ON_GPU)).state == state
    assert asked[0][0] == ("kernel", "cuda")
    assert asked[0][1]["environment"] == {"TRITON_INTERPRET": "0"}


FAKE_TORCH = """
import types
__version__, float32 = "2.13.0", None
version = types.SimpleNamespace(cuda="12.8")
properties = types.SimpleNamespace(name="Tesla T4", major=7, minor=5, total_memory=15_835_660_288)
cuda = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 1,
                             get_device_properties=lambda index: properties)
def arange(*arguments, **options):
    return types.SimpleNamespace(sum=lambda: {sum})
"""


@pytest.mark.parametrize(
    ("sum_", "computes"),
    [("500500.0", ""), ("0.0", "1000 = 0"), ("exec(\"raise RuntimeError('no image')\")", "no image")],
)
def test_a_torch_that_lies_of_its_gpu(monkeypatch, tmp_path, sum_, computes):
    fake_module(tmp_path, monkeypatch, "torch", FAKE_TORCH.replace("{sum}", sum_))
    outcome = probe("gpu")
    assert outcome.answer["devices"] == [T4], outcome
    assert computes in outcome.answer["computes"]
    assert gpu.gpu(outcome).state == ("warn" if computes else "ok")


# Packages and data


def test_oldest_versions_are_those_that_the_chapters_ran_with():
    pins = {}
    # Colab's come last: they count where both have a package.
    for path in (ROOT / "requirements.txt", ROOT / "ci" / "colab.txt"):
        pins |= dict(re.findall(r"^([A-Za-z0-9_-]+)==([\w.]+)", path.read_text(), re.MULTILINE))
    assert {name: oldest for name, (_, oldest) in packages.PACKAGES.items()} == {
        name: pins[name] for name in packages.PACKAGES
    }


def test_packages_that_cannot_be_imported(monkeypatch, tmp_path):
    monkeypatch.setattr(
        packages, "PACKAGES", {name: (f"fake_{name}", "0.1") for name in ("numpy", "torch", "rich", "no-such-package")}
    )
    fake_module(tmp_path, monkeypatch, "fake_numpy", 'print("hello"); print({})')
    fake_module(tmp_path, monkeypatch, "fake_torch", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    fake_module(tmp_path, monkeypatch, "fake_rich", 'raise SystemExit("licence ended")')
    numpy, torch_, rich, missing = packages.packages()
    assert numpy.state == "ok"
    is_broken(torch_, "fail", "ended by SIGKILL", "--force-reinstall")
    is_broken(rich, "fail", "SystemExit: licence ended")
    is_broken(missing, "fail", "not installed", "no-such-package")


def test_an_import_that_hangs(monkeypatch, tmp_path):
    fake_module(tmp_path, monkeypatch, "fake_slow", "import time; time.sleep(60)")
    outcome = probe("imports", "json", "fake_slow", seconds=1.5)
    assert [answer["module"] for answer in outcome.answers] == ["json"]
    assert "1.5 s" in outcome.trouble


@pytest.mark.parametrize(("version", "state"), [("2.9.1+cpu", "warn"), ("2.11.0", "ok"), ("2.11.0a0+git1", "ok")])
def test_old_packages(monkeypatch, version, state):
    monkeypatch.setattr(packages.metadata, "version", lambda name: version)
    assert packages.package("torch", "2.11.0", "").state == state


def test_triton_is_for_linux(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(packages.metadata, "version", lambda name: packages.metadata.distribution("no-such").version)
    is_broken(packages.package("triton", "3.6.0", "ModuleNotFoundError"), "warn", "Darwin", "chapter 12")
    is_broken(runs.interpreter(), "warn", "Darwin")
    assert gpu.compiler(told(**ON_GPU)).state == "ok"


def test_all_data_are_looked_for():
    folder = ROOT / "src" / "ds41" / "data"
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert there - {"nano/README.md"} == set(packages.DATA)
    assert packages.data().state == "ok"


def test_data_that_are_missing_or_torn(monkeypatch, tmp_path):
    shutil.copytree(ROOT / "src" / "ds41" / "data", tmp_path / "data")
    monkeypatch.setattr(packages.resources, "files", lambda name: tmp_path)
    assert packages.data().state == "ok"
    tmp_path.joinpath("data/systems.json").write_text('{"systems": [')
    tmp_path.joinpath("data/nano/model.safetensors").unlink()
    is_broken(packages.data(), "fail", "systems.json is not whole", "model.safetensors is missing", "wheel/ds41-*.whl")


def test_an_installed_file_that_was_changed(monkeypatch, tmp_path):
    installed = tmp_path / "ds41-9.dist-info"
    installed.mkdir()
    tmp_path.joinpath("ds41").mkdir()
    digest = packages.base64.urlsafe_b64encode(packages.hashlib.sha256(b"one").digest()).decode().rstrip("=")
    installed.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: ds41\nVersion: 9\n")
    installed.joinpath("RECORD").write_text(f"ds41/a.js,sha256={digest},3\nds41/b.js,sha256={digest},3\nbin/ds41,,\n")
    monkeypatch.setattr(packages.metadata, "files", lambda name: packages.metadata.Distribution.at(installed).files)
    tmp_path.joinpath("ds41/a.js").write_bytes(b"one")
    is_broken(packages.data(), "fail", "ds41/b.js is not what was installed")
    tmp_path.joinpath("ds41/b.js").write_bytes(b"two")
    is_broken(packages.data(), "fail", "ds41/b.js")
    tmp_path.joinpath("ds41/b.js").write_bytes(b"one")
    assert packages.data().found.startswith("2 files")


# What runs


def spoken(capsys) -> dict:
    return json.loads(capsys.readouterr().out.split(ANSWER)[1])


def test_a_kernel_in_the_interpreter(monkeypatch, capsys):
    programs.kernel("cpu")
    assert answers_state(monkeypatch, runs.interpreter, spoken(capsys)) == "ok"
    monkeypatch.setattr(norm, "rms_norm_rows", lambda x, weight, eps: x * weight)
    programs.kernel("cpu")
    assert answers_state(monkeypatch, runs.interpreter, spoken(capsys)) == "fail"
    answers(monkeypatch, runs, Outcome((), "ImportError: triton"))
    is_broken(runs.interpreter(), "fail", "ImportError: triton")


def answers_state(monkeypatch, check, answer: dict) -> str:
    answers(monkeypatch, runs, told(**answer))
    return check().state


def test_the_small_model_and_a_cache_that_forgets(monkeypatch, capsys):
    programs.model()
    assert torch.is_grad_enabled()
    answer = spoken(capsys)
    assert answers_state(monkeypatch, runs.model, answer) == "ok"
    assert answer["tokens"] > 3 * 32

    from ds41.model import Model

    monkeypatch.setattr(programs, "DECODED", 1)
    decode = Model.decode
    monkeypatch.setattr(Model, "decode", lambda self, token, cache: decode(self, 0, cache))
    programs.model()
    assert answers_state(monkeypatch, runs.model, spoken(capsys)) == "fail"
    monkeypatch.setattr(Model, "decode", lambda self, token, cache: decode(self, token, cache) * torch.inf)
    programs.model()
    assert not spoken(capsys)["finite"]


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome((), "Python was ended by SIGILL"), "SIGILL"),
        (told(**MODEL | {"finite": False}), "not finite"),
        (told(**MODEL | {"next": [7, 8]}), "next token 7 with a cache, 8 without"),
        (told(**MODEL | {"difference": float("nan")}), "differ by nan"),
        (told(**MODEL | {"difference": 0.1}), "differ by 1e-01"),
    ],
)
def test_a_model_that_computes_wrongly(monkeypatch, outcome, words):
    answers(monkeypatch, runs, outcome)
    is_broken(runs.model(), "fail", words)


# Jupyter


def test_a_kernel_of_another_python(monkeypatch, tmp_path):
    folder = tmp_path / "kernels" / "python3"
    folder.mkdir(parents=True)
    python = tmp_path / "python-of-old"
    python.write_text("#!/bin/sh\necho /opt/old\n")
    python.chmod(0o755)
    spec = {"argv": [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "old"}
    folder.joinpath("kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    is_broken(jupyter.kernelspec(), "fail", "/opt/old", "ipykernel install --sys-prefix")


def test_the_kernel_of_this_python_computes(monkeypatch):
    assert jupyter.kernelspec().state == "ok", jupyter.kernelspec()
    found = jupyter.notebook()
    assert found.state == "ok", found


def test_no_kernel(monkeypatch):
    monkeypatch.setattr(jupyter, "KERNEL", "no-such-kernel")
    is_broken(jupyter.kernelspec(), "fail", "no-such-kernel")
    is_broken(jupyter.notebook(), "fail", "no-such-kernel")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"results": []}, "1+1 gave nothing"),
        ({"results": ["3"]}, "1+1 gave 3"),
        ({"status": "error"}, "1+1 gave 2"),
        ({"told": {"version": "No module named 'ds41'", "prefix": "/opt"}}, "No module named 'ds41'"),
    ],
)
def test_a_kernel_that_computes_wrongly(monkeypatch, change, words):
    right = {"status": "ok", "results": ["2"], "told": {"version": jupyter.__version__, "prefix": sys.prefix}}
    answers(monkeypatch, jupyter, told(**right | change))
    is_broken(jupyter.notebook(), "fail", words)


def test_nothing_to_open_notebooks_in(monkeypatch):
    monkeypatch.setattr(jupyter, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    is_broken(jupyter.interface(), "warn", "pip install jupyterlab")
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert jupyter.interface().found == "VS Code"


# The command


def test_a_fault_needs_a_remedy():
    with pytest.raises(ValueError, match="a fault has a remedy"):
        Finding("disk", "disk", "fail", "full", "room")


GOOD = Finding("package rich", "package rich", "ok", "rich 14", "rich 13 or newer")
REMARK = Finding("cores", "processor", "warn", "1 core", "2 cores", "Give it more.")
FAULT = Finding("disk", "free disk", "fail", "0 B free", "room", "rm -r trash")


@pytest.mark.parametrize(
    ("findings", "status", "last"),
    [
        ([GOOD, GOOD], 0, "ready"),
        ([GOOD, REMARK], 0, "ready, with 1 remark"),
        ([REMARK, GOOD, REMARK], 0, "ready, with 2 remarks"),
        ([GOOD, REMARK, FAULT], 1, "not ready: 1 to mend"),
    ],
)
def test_the_command(monkeypatch, capsys, findings, status, last):
    monkeypatch.setattr(preflight_package, "preflight", lambda: iter(findings))
    assert cli.main(["doctor", "--workshop"]) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == last
    for finding in findings:
        assert any(finding.found in line for line in lines)
        assert any(line.strip() == f"> {finding.mend}" for line in lines) or finding.state == "ok"
    assert cli.main(["doctor", "--workshop", "--json"]) == status
    report = json.loads(capsys.readouterr().out)
    assert report["ready"] == (status == 0)
    assert [Finding(**one) for one in report["findings"]] == findings


@pytest.mark.parametrize("arguments", [["--json"], ["--language", "en"], ["--workshop", "--language", "xx"]])
def test_arguments_that_cannot_be_used(capsys, arguments):
    assert cli.main(["doctor", *arguments]) == 2
    assert capsys.readouterr().err.startswith("ds41: ")


def test_a_machine_whose_torch_is_broken(monkeypatch, tmp_path, capsys):
    fake_module(tmp_path, monkeypatch, "torch", 'raise ImportError("libtorch.so: wrong ELF class")')
    monkeypatch.setattr(packages, "PACKAGES", {name: packages.PACKAGES[name] for name in ("torch", "rich")})
    monkeypatch.setattr(machine, "disk", lambda: shutil.disk_usage(tmp_path / "gone"))
    for check in ("kernelspec", "notebook"):
        monkeypatch.setattr(jupyter, check, lambda check=check: replace(GOOD, check=check))
    assert cli.main(["doctor", "--workshop", "--json"]) == 1
    findings = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    states = {check: finding["state"] for check, finding in findings.items()}
    broken = {check for check, state in states.items() if state == "fail"}
    assert broken == {"package torch", "interpreter", "model", "disk"}
    assert findings["disk"]["found"].startswith("FileNotFoundError")
    assert [states[check] for check in ("gpu", "driver", "compiler", "gpu_kernel")] == ["warn"] * 4
    assert states["package rich"] == "ok"
    assert len(states) == 2 + 16
