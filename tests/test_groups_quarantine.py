"""Tasks whose groups fail again and again: counted over checkpoints, written whole, released by hand."""

from __future__ import annotations

import json

import pytest

from datapm_rl.tracking.quarantine import Quarantine

pytestmark = pytest.mark.unit


def failing(quarantine: Quarantine, task: str, *steps: int) -> None:
    for step in steps:
        quarantine.add(task, f"{task}?", {"sandbox_lost": 3, "deadline": 1}, step)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "quarantine.jsonl"


def test_a_task_is_out_after_so_many_failed_groups_and_the_file_says_why(path):
    quarantine = Quarantine(path, after=2)
    failing(quarantine, "bad", 3)
    failing(quarantine, "once", 3)
    assert (quarantine.tasks, path.exists()) == (set(), False)
    failing(quarantine, "bad", 5)
    assert quarantine.tasks == {"bad"}
    [row] = [json.loads(line) for line in path.read_text().splitlines()]
    assert row == {
        "task_id": "bad",
        "question": "bad?",
        "step": 5,
        "steps": [3, 5],
        "causes": {"sandbox_lost": 6, "deadline": 2},
    }
    assert [file.name for file in path.parent.iterdir()] == [path.name], "a temporary file was left"


def test_counts_go_on_where_the_checkpoint_was(path, tmp_path):
    quarantine = Quarantine(path, after=2)
    failing(quarantine, "early", 1, 2)
    failing(quarantine, "half", 2)
    quarantine.save(tmp_path / "global_step_2")
    failing(quarantine, "late", 3, 4)  # made again after the resume
    resumed = Quarantine(path, after=2)
    resumed.load(tmp_path / "global_step_2")
    assert resumed.tasks == {"early"}
    assert "late" not in path.read_text()
    failing(resumed, "half", 3)
    assert resumed.tasks == {"early", "half"}


def test_a_task_whose_line_is_deleted_starts_anew(path, tmp_path):
    quarantine = Quarantine(path, after=1)
    failing(quarantine, "kept", 1)
    failing(quarantine, "mended", 1)
    quarantine.save(tmp_path / "global_step_1")
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "mended" not in line))
    resumed = Quarantine(path, after=1)
    resumed.load(tmp_path / "global_step_1")
    assert resumed.tasks == {"kept"}


def test_a_new_run_and_a_checkpoint_from_before_start_empty(path, tmp_path):
    path.write_text(json.dumps({"task_id": "old"}) + "\n")
    quarantine = Quarantine(path, after=1)
    quarantine.load(None)
    assert (quarantine.tasks, path.exists()) == (set(), False)
    quarantine.load(tmp_path)
    assert quarantine.tasks == set()
