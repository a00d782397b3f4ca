"""The run directory: what a kill, a resume or a NaN must not do to a run's record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapm_rl.errors import UserError
from datapm_rl.tracking.jsonl import append_rows, read_rows
from datapm_rl.tracking.run_dir import RunDir, versions

pytestmark = pytest.mark.unit


def test_killed_writer_leaves_only_whole_rows(tmp_path):
    code = (
        "import sys; from datapm_rl.tracking.run_dir import RunDir\n"
        "run = RunDir(sys.argv[1])\n"
        "for step in range(10**9): run.append_metrics({'x': 'y' * 2000}, step, 'train')\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")])
    run_dir = RunDir(tmp_path / "run")
    while len(run_dir.metrics()) < 20:
        assert writer.poll() is None
        time.sleep(0.01)
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    steps = [row["step"] for row in run_dir.metrics()]
    assert steps == list(range(len(steps)))
    run_dir.append_metrics({}, steps[-1] + 1, "train")
    assert run_dir.metrics()[-1]["step"] == steps[-1] + 1


@given(
    rows=st.lists(st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4)), max_size=5), cut=st.data()
)
def test_torn_line_is_dropped_on_read_and_cut_off_before_the_next_append(rows, cut, tmp_path_factory):
    path = tmp_path_factory.mktemp("torn") / "rows.jsonl"
    append_rows(path, rows)
    whole = path.read_bytes()
    kept = cut.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:kept])
    survivors = rows[: whole[:kept].count(b"\n")]
    assert read_rows(path) == survivors
    append_rows(path, [{"next": 1}])
    assert read_rows(path) == [*survivors, {"next": 1}]


def test_broken_line_in_the_middle_is_named_not_skipped(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\nnonsense\n{"a": 2}\n')
    with pytest.raises(UserError, match="line 2"):
        read_rows(path)


def test_line_separator_inside_a_text_does_not_split_a_row(tmp_path):
    rows = [{"step": 0, "text": "a\u2028b\x85c\rd\x0ce"}]
    append_rows(tmp_path / "rows.jsonl", rows)
    assert read_rows(tmp_path / "rows.jsonl") == rows


def test_text_that_utf8_cannot_hold_does_not_end_the_run(tmp_path):
    run_dir = RunDir(tmp_path)
    rows = [{"step": step, "observation": "\udc80 caf\xe9 \\udc80"} for step in (1, 2)]
    run_dir.append_trajectories(rows)
    run_dir.truncate_after(1)
    assert read_rows(run_dir.trajectories_path) == rows[:1]


def test_nan_and_numpy_numbers_stay_valid_json(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.append_metrics({"a": float("nan"), "b": np.float32(0.5), "c": np.int64(3), "d": float("inf")}, 1, "train")
    (row,) = [json.loads(line, parse_constant=pytest.fail) for line in run_dir.metrics_path.read_text().splitlines()]
    assert (row["a"], row["b"], row["c"], row["d"]) == (None, 0.5, 3, None)


def test_resume_drops_the_rows_of_lost_steps_in_both_files(tmp_path):
    run_dir = RunDir(tmp_path)
    for step in range(6):
        run_dir.append_metrics({}, step, "train")
        run_dir.append_trajectories([{"step": step, "n": n} for n in range(2)])
    assert run_dir.truncate_after(3) == 2 + 4
    assert [row["step"] for row in run_dir.metrics()] == [0, 1, 2, 3]
    assert [row["step"] for row in read_rows(run_dir.trajectories_path)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert run_dir.truncate_after(3) == 0


def test_fresh_start_drops_everything(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.append_metrics({}, 0, "validation")
    run_dir.truncate_after(-1)
    assert run_dir.metrics() == []


def test_stop_flag_goes_between_processes_and_can_be_cleared(tmp_path):
    driver, trainer = RunDir(tmp_path), RunDir(tmp_path)
    driver.clear_stop()
    assert not trainer.stop_requested()
    driver.request_stop()
    assert trainer.stop_requested()
    driver.clear_stop()
    assert not trainer.stop_requested()


def test_failed_write_leaves_the_old_file(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.write_json("summary.json", {"steps": 1})
    with pytest.raises(TypeError):
        run_dir.write_json("summary.json", {"steps": object()})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"steps": 1}
    assert not list(tmp_path.glob(".*.tmp"))


def test_directory_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot make the run's directory .* set run\.dir"):
        RunDir(tmp_path / "file" / "run")


def test_versions_are_json_and_name_what_computed_the_run():
    facts = json.loads(json.dumps(versions()))
    assert facts["python"].startswith("3.11")
    assert facts["torch"]
    assert facts["cores"] >= 1
    assert {"verl", "ray", "transformers", "datapm_rl", "git_commit", "platform"} <= set(facts)
