"""A command that trains nothing says so, and does not exit 0 below its target (verl PR#5725, #7401)."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from datapm_rl import run
from datapm_rl.tracking.checkpoints import folder_of, seal
from datapm_rl.tracking.progress import Progress
from datapm_rl.tracking.run_dir import RunDir

pytestmark = pytest.mark.unit

CONFIG = OmegaConf.create({"trainer": {"total_training_steps": 4}})


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path / "run")


def checkpoint(run_dir, step):
    folder_of(run_dir.checkpoints, step).mkdir(parents=True)
    seal(folder_of(run_dir.checkpoints, step))


def reach(run_dir, monkeypatch, *, ends_at, code=0):
    """Exit code of a run whose training ends, with `code`, at a step (None: without a checkpoint), and its calls."""
    calls = []

    def train(*_):
        calls.append(1)
        if ends_at is not None:
            checkpoint(run_dir, ends_at)
        return code

    monkeypatch.setattr(run, "_train", train)
    return run._reach(CONFIG, run_dir, Progress(run_dir), "python -m ..."), len(calls)


def test_training_that_ends_at_its_target_is_a_success(run_dir, monkeypatch, capsys):
    checkpoint(run_dir, 2)
    assert reach(run_dir, monkeypatch, ends_at=4) == (0, 1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("ends_at", [None, 3])
def test_training_that_ends_below_its_target_is_exit_code_4(run_dir, monkeypatch, capsys, ends_at):
    checkpoint(run_dir, 2)
    assert reach(run_dir, monkeypatch, ends_at=ends_at) == (4, 1)
    error = capsys.readouterr().err
    assert f"the newest checkpoint is of step {ends_at or 2} and not of trainer.total_training_steps=4" in error
    assert "raise trainer.total_epochs" in error
    assert error.count("\n") == 1


def test_nothing_left_to_train_starts_no_training(run_dir, monkeypatch, capsys):
    """Killed between the last checkpoint and the summary: the export is all that is missing."""
    checkpoint(run_dir, 4)
    assert reach(run_dir, monkeypatch, ends_at=None) == (0, 0)
    assert "nothing left to train: step 4 has a checkpoint" in capsys.readouterr().out


def test_target_below_what_is_trained_is_exit_code_4(run_dir, monkeypatch, capsys):
    checkpoint(run_dir, 6)
    assert reach(run_dir, monkeypatch, ends_at=None) == (4, 0)
    assert "give trainer.total_training_steps=6" in capsys.readouterr().err


def test_training_that_was_stopped_keeps_its_exit_code(run_dir, monkeypatch, capsys):
    assert reach(run_dir, monkeypatch, ends_at=2, code=130) == (130, 1)
    assert capsys.readouterr().err == ""
