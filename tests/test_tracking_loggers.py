"""Trackers: a viewer's failure is a warning; the record is written whatever happens; a resume goes on in place."""

from __future__ import annotations

import pytest

from datapm_rl.tracking.loggers import Tracker, _wandb_id
from datapm_rl.tracking.run_dir import RunDir

pytestmark = pytest.mark.unit


class Recorder:
    fails_on = ""

    def __init__(self, run_dir, config, resume):
        if self.fails_on == "init":
            raise OSError("no network")
        self.rows, self.closed = [], False

    def log(self, row, step):
        if self.fails_on == "log":
            raise RuntimeError("server said no\nwith a long story")
        self.rows.append((step, row))

    def close(self):
        if self.fails_on == "close":
            raise RuntimeError("cannot close")
        self.closed = True


class Good(Recorder):
    pass


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path)


@pytest.fixture
def tracker_with(monkeypatch, run_dir):
    def make(fails_on):
        bad = type("Bad", (Recorder,), {"fails_on": fails_on})
        monkeypatch.setattr(Tracker, "views", (bad, Good))
        return Tracker(run_dir, {}, resume=False)

    return make


@pytest.mark.parametrize("fails_on", ["init", "log", "close"])
def test_failing_view_is_one_warning_and_the_others_go_on(tracker_with, run_dir, caplog, fails_on):
    tracker = tracker_with(fails_on)
    good = tracker._open[-1]
    for step in (1, 2, 3):
        tracker.log({"a": 1.0}, step, "train")
    tracker.close()
    assert [record.getMessage().count("Bad is off") for record in caplog.records] == [1]
    assert "\n" not in caplog.records[0].getMessage()
    assert [step for step, _ in good.rows] == [1, 2, 3]
    assert good.closed
    assert [row["step"] for row in run_dir.metrics("train")] == [1, 2, 3]


def test_views_get_finite_numbers_only(tracker_with):
    tracker = tracker_with("")
    tracker.log({"a": 1, "b": float("nan"), "c": "text", "d": None, "e": True}, 1, "train")
    assert tracker._open[-1].rows == [(1, {"a": 1.0, "e": 1.0})]


def test_resumed_run_keeps_its_wandb_id_and_a_fresh_one_gets_another(run_dir):
    first = _wandb_id(run_dir, resume=False)
    assert _wandb_id(run_dir, resume=True) == first
    assert _wandb_id(run_dir, resume=False) != first


def test_real_views_write_offline_and_resume_replaces_lost_steps(run_dir, monkeypatch, caplog):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    tracker = Tracker(run_dir, {"run": {"seed": 1}}, resume=False)
    for step in range(4):
        tracker.log({"reward/total_mean": float(step)}, step, "train")
    tracker.close()
    run_dir.truncate_after(1)
    tracker = Tracker(run_dir, {"run": {"seed": 1}}, resume=True)
    tracker.log({"reward/total_mean": 20.0}, 2, "train")
    tracker.close()
    assert caplog.records == []
    assert list((run_dir.path / "wandb").glob("offline-run-*"))
    assert scalars(run_dir) == [(0, 0.0), (1, 1.0), (2, 20.0)]


def scalars(run_dir) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir.tensorboard)).Reload()
    return [(event.step, event.value) for event in events.Scalars("reward/total_mean")]
