"""The log of a run: what a kill leaves is mended, what a resumed run does again is dropped."""

import json

import pytest

from ds41.training.run_log import LOG, RunLog, read_log


def line(step):
    return {"step": step, "stage": "pre", "total": 1.5 / (step + 1)}


def written(folder, steps, start=0):
    with RunLog(folder, start) as log:
        for step in steps:
            log.write(line(step))


def test_lines_come_back(tmp_path):
    written(tmp_path, range(3))
    assert read_log(tmp_path / LOG) == [line(step) for step in range(3)]


def test_a_line_is_on_disk_as_soon_as_it_is_written(tmp_path):
    with RunLog(tmp_path, 0) as log:
        log.write(line(0))
        assert read_log(tmp_path / LOG) == [line(0)]


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_last_line_that_was_cut_off_is_left_out(tmp_path, cut):
    written(tmp_path, range(3))
    path = tmp_path / LOG
    path.write_text(path.read_text() + json.dumps(line(3))[:cut])
    assert read_log(path) == [line(step) for step in range(3)]
    written(tmp_path, [3, 4], start=3)
    assert read_log(path) == [line(step) for step in range(5)]


def test_a_resumed_run_replaces_the_lines_that_it_does_again(tmp_path):
    written(tmp_path, range(5))
    with RunLog(tmp_path, 2) as log:
        log.write(line(2) | {"total": 9.0})
    assert read_log(tmp_path / LOG) == [line(0), line(1), line(2) | {"total": 9.0}]


def test_other_workers_write_nothing(tmp_path):
    with RunLog(tmp_path, 0, writes=False) as log:
        log.write(line(0))
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_files_hold_the_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written(tmp_path, range(3))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["total"]
    found = {event.step: event.value for event in events.Scalars("total")}
    assert found == pytest.approx({step: line(step)["total"] for step in range(3)})
