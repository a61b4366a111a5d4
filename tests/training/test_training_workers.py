"""Two workers do what one does, and either goes on from the other's checkpoint."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_run import tiny_corpus
from two_workers import RECIPE

from ds41.training.distributed import Workers
from ds41.training.run_log import LOG, read_log
from ds41.training.run_state import STATE
from ds41.training.trainer import train

SCRIPT = Path(__file__).with_name("two_workers.py")
has_gloo = torch.distributed.is_available() and torch.distributed.is_gloo_available()


@pytest.mark.skipif(not has_gloo, reason="this torch has no gloo")
def test_two_workers_do_what_one_does(tmp_path):
    alone, begun, continued = (tmp_path / name for name in ("alone", "begun", "continued"))
    train(RECIPE, tiny_corpus(), alone, stop_at=2)
    shutil.copytree(alone, continued)
    expected = train(RECIPE, tiny_corpus(), alone)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [*command, str(begun), str(continued)],
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    # The first half on two workers, the second here; and the other way round.
    train(RECIPE, tiny_corpus(), begun)
    for folder in (begun, continued):
        lines, others = read_log(folder / LOG), read_log(alone / LOG)
        assert [line["step"] for line in lines] == [0, 1, 2, 3]
        for line, other in zip(lines, others, strict=True):
            for name in ("text", "alignment", "balance", "total", "gradient_norm"):
                assert line[name] == pytest.approx(other[name], rel=1e-2), (folder.name, line["step"], name)
        assert lines[0]["text"] == pytest.approx(others[0]["text"], rel=1e-5)
    weights = torch.load(continued / STATE, weights_only=True)["model"]
    returned = torch.load(continued / "returned.pt", weights_only=True)
    assert weights.keys() == returned.keys() == expected.state_dict().keys()
    for name, value in expected.state_dict().items():
        assert torch.equal(weights[name], returned[name])
        assert weights[name].shape == value.shape


def test_one_worker_is_what_an_ordinary_process_has(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    workers = Workers.of_environment(torch.device("cpu"))
    assert (workers.rank, workers.count) == (0, 1)
    assert workers.rows(5) == (0, 5)
    value = torch.tensor([1.0, 2.0])
    assert torch.equal(workers.mean(value), value)


def test_rows_are_split_without_a_gap():
    parts = [Workers(rank, 3).rows(12) for rank in range(3)]
    assert parts == [(0, 4), (4, 4), (8, 4)]
    with pytest.raises(ValueError, match="a step has 4 rows for 3 workers"):
        Workers(1, 3).rows(4)
