"""``ds41 train``: what it refuses before it writes, and the model that it leaves."""

import pytest
import torch

from ds41.checkpoint import load_checkpoint
from ds41.cli import main
from ds41.training.run_log import LOG, read_log


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(40):
        (folder / f"m{number}.py").write_text("".join(f"value_{number}_{i} = {i}\n" for i in range(60)))
    return folder


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--save-every", "0"], "--save-every is 0"),
        (["--threads", "0"], "--threads is 0"),
        (["--steps", "4"], "steps is 4"),
        (["--seed", "65536"], "seed is 65536"),
        (["--set", "matrix_rate=0"], "matrix_rate is 0"),
        (["--set", "matrix_rate=fast"], "--set matrix_rate is 'fast'; expected a number"),
        (["--set", "rounds=1"], "--set rounds is '1'; expected true or false"),
        (["--set", "aligned=1.5"], "--set aligned is '1.5'; expected a whole number"),
        (["--set", "legal=all"], "legal is 'all'; expected 'visible' or 'selected'"),
        (["--set", "seed=3"], "--set is 'seed=3'; expected NAME=VALUE with one of aligned, alignment"),
        (["--set", "stages=1"], "--set is 'stages=1'"),
        (["--set", "clip"], "--set is 'clip'"),
        (["--text", "missing"], "missing is not a folder"),
    ],
)
def test_a_bad_setting_is_one_line_and_writes_nothing(tmp_path, monkeypatch, capsys, options, told):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "run", "--device", "cpu", *options]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("ds41: ")
    assert told in err
    assert err.count("\n") == 1
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path, capsys):
    (tmp_path / "run").write_text("mine")
    assert main(["train", str(tmp_path / "run")]) == 2
    assert "run', a file; expected a folder" in capsys.readouterr().err
    assert (tmp_path / "run").read_text() == "mine"


def test_a_run_leaves_a_model_that_loads(tmp_path, text, capsys):
    folder = tmp_path / "run"
    options = ["--steps", "5", "--seed", "1", "--threads", "1", "--device", "cpu", "--text", str(text)]
    options += ["--set", "aligned=8", "--set", "replayed=1"]
    assert main(["train", str(folder), *options]) == 0
    out, err = capsys.readouterr()
    assert "step 5/5 post-training" in err.splitlines()[-1]
    written = sorted(str(path) for path in (folder / "model").iterdir())
    assert sorted(out.split()) == written
    model = load_checkpoint(folder / "model", dtype=torch.float32)
    assert bool(model(torch.randint(16, 272, (1, 40)))[0].isfinite().all())
    assert [line["stage"] for line in read_log(folder / LOG)] == [
        "short", "longer", "long", "extended", "post-training",
    ]  # fmt: skip
    # Another seed is another run; its refusal leaves the model as it is.
    options[3] = "2"
    assert main(["train", str(folder), *options]) == 2
    assert "belongs to another run: its recipe differs" in capsys.readouterr().err
    assert sorted(str(path) for path in (folder / "model").iterdir()) == written
