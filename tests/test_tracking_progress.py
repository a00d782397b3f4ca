"""Progress lines: each step once, with its validation, over kills and resumes of the writing process."""

from __future__ import annotations

import pytest

from datapm_rl.tracking.jsonl import append_rows
from datapm_rl.tracking.progress import Progress, accuracy_text, clock, step_line
from datapm_rl.tracking.run_dir import RunDir

pytestmark = pytest.mark.unit

TRAIN = {"reward/total_mean": 0.4125, "reward/outcome_mean": 0.35, "agent/turns_mean": 3.21, "time/step_s": 12.3}


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path)


def add(run_dir, step, kind="train", time=0.0, **row):
    append_rows(run_dir.metrics_path, [{"step": step, "kind": kind, "time": time, **row}])


def printed(capsys) -> list[str]:
    return [line.split("] ", 1)[1] for line in capsys.readouterr().out.splitlines()]


def test_line_holds_what_was_measured_and_nothing_else():
    line = step_line({"step": 3, **TRAIN, "missing/share": 0.0}, None, 40, 490.0)
    assert line == "step  3/40  reward 0.412  outcome 0.350  turns 3.2  12.3 s  ETA 8:10"


def test_missing_share_and_accuracy_are_shown_when_there(run_dir):
    validation = {"heldout/accuracy": 0.415, "heldout/n": 200.0, "heldout/turns_mean": 2.0}
    line = step_line({"step": 3, **TRAIN, "missing/share": 0.021}, validation, 0, None)
    assert line.startswith("step 3  ")
    assert line.endswith("missing 2.1 %  held-out 41.5 % (n 200)")


def test_step_is_printed_once(run_dir, capsys):
    progress = Progress(run_dir, 10)
    add(run_dir, 1, **TRAIN)
    progress.update()
    progress.update()
    assert len(printed(capsys)) == 1


def test_half_written_row_waits_for_its_other_half(run_dir, capsys):
    progress = Progress(run_dir, 10)
    add(run_dir, 1, **TRAIN)
    whole = run_dir.metrics_path.read_bytes()
    run_dir.metrics_path.write_bytes(whole[:-9])
    progress.update()
    assert printed(capsys) == []
    with open(run_dir.metrics_path, "ab") as handle:
        handle.write(whole[-9:])
    progress.update()
    assert len(printed(capsys)) == 1


@pytest.mark.parametrize("order", [("validation", "train"), ("train", "validation")])
def test_validation_is_shown_whichever_row_comes_first(run_dir, capsys, order):
    progress = Progress(run_dir, 10)
    for kind in order:
        add(run_dir, 2, kind, **(TRAIN if kind == "train" else {"heldout/accuracy": 0.5}))
        progress.update()
    text = "\n".join(printed(capsys))
    assert text.count("held-out 50.0 %") == 1
    assert text.count("step  2/10") == 1


def test_validation_before_training_has_its_own_line(run_dir, capsys):
    progress = Progress(run_dir, 10)
    add(run_dir, 0, "validation", **{"heldout/accuracy": 0.35, "heldout/n": 200})
    progress.update()
    assert printed(capsys) == ["before training: held-out 35.0 % (n 200)"]


def test_resume_shows_the_steps_made_again_and_not_the_old_ones(run_dir, capsys):
    for step in range(1, 6):
        add(run_dir, step, time=step)
    progress = Progress(run_dir, 10)
    run_dir.truncate_after(3)  # by the trainer, after the driver began to look
    for step in range(4, 7):
        add(run_dir, step, time=100 + step)
    progress.update()
    assert [line.split()[1] for line in printed(capsys)] == ["4/10", "5/10", "6/10"]


def test_time_left_counts_validations_and_checkpoints(run_dir, capsys):
    progress = Progress(run_dir, 12)
    add(run_dir, 1, time=100.0, **{"time/step_s": 5.0})
    add(run_dir, 2, time=120.0, **{"time/step_s": 5.0})  # 15 s of it are no step
    progress.update()
    first, second = printed(capsys)
    assert first.endswith("ETA 0:55")
    assert second.endswith("ETA 3:20")


def test_counting_phase_does_not_flood_the_screen(run_dir, capsys):
    progress = Progress(run_dir, 10)
    for done in range(1000):
        progress.phase(f"validation {done}/1000")
    progress.phase("exporting the final model")
    assert printed(capsys) == ["validation 0/1000", "exporting the final model"]


def test_all_splits_are_named():
    row = {"heldout/accuracy": 0.5, "heldout/sampled_accuracy": 0.4, "unseen_tables/accuracy": 0.0, "heldout/n": 8}
    assert accuracy_text(row) == "held-out 50.0 % (n 8), held-out, sampled 40.0 %, unseen tables 0.0 %"


def test_validation_without_a_scored_task_says_so():
    assert accuracy_text({"heldout/n": 0.0, "heldout/missing": 8.0}) == "validation: no task was scored"


def test_clock():
    assert [clock(seconds) for seconds in (0, 59.6, 490, 3600, 7265)] == ["0:00", "1:00", "8:10", "1:00:00", "2:01:05"]
