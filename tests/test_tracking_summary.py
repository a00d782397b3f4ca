"""The final table, its intervals and the curves: what they claim must follow from the run's files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from datapm_rl.tracking.curves import draw_curves
from datapm_rl.tracking.intervals import wilson
from datapm_rl.tracking.run_dir import RunDir
from datapm_rl.tracking.summary import UNSEEN_NOTE, summarise

pytestmark = pytest.mark.unit

CONFIG = """
prm: {verifier: reference}
policy: {path: null}
actor_rollout_ref: {rollout: {val_kwargs: {do_sample: false}}}
"""


@pytest.fixture
def run_dir(tmp_path):
    run_dir = RunDir(tmp_path / "quickstart")
    run_dir.write_text("config.yaml", CONFIG)
    for step, accuracy in ((0, 0.35), (10, 0.70), (20, 0.68)):
        row = {
            "heldout/accuracy": accuracy,
            "heldout/n": 200.0,
            "unseen_tables/accuracy": 0.02,
            "unseen_tables/n": 50.0,
        }
        run_dir.append_metrics(row, step, "validation")
    for step in range(1, 21):
        row = {
            "reward/total_mean": step / 20,
            "reward/outcome_mean": step / 25,
            "actor/entropy": 1 / step,
            "agent/turns_mean": 3.0,
            "missing/share": 0.1,
            "missing/deadline": 1.0,
            "missing/sandbox_lost": 2.0,
        }
        run_dir.append_metrics(row, step, "train")
    return run_dir


@given(n=st.integers(1, 5000), data=st.data())
def test_wilson_agrees_with_statsmodels(n, data):
    count = data.draw(st.integers(0, n))
    assert wilson(count / n, n) == pytest.approx(proportion_confint(count, n, method="wilson"), abs=1e-9)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_interval_is_not_empty_at_the_ends(share):
    low, high = wilson(share, 20)
    assert 0.0 <= low < high <= 1.0
    assert high - low > 0.1


def test_no_tasks_means_nothing_is_known():
    assert wilson(0.0, 0) == (0.0, 1.0)


def test_table_gives_before_after_interval_and_change(run_dir):
    text = summarise(run_dir)
    (line,) = [line for line in text.splitlines() if line.strip().startswith("held-out")]
    assert line.split(maxsplit=2)[:2] == ["held-out,", "greedy"]
    assert "35.0 % (28.7 to 41.8)" in line
    assert "68.0 % (61.2 to 74.1)" in line
    assert line.endswith("+33.0 points")
    assert "before training" in text
    assert "n scored     held-out 200, unseen tables 50" in text


def test_best_step_is_not_the_last_one(run_dir):
    assert "best step    10 (held-out 70.0 %" in summarise(run_dir)


def test_missing_is_listed_by_cause(run_dir):
    assert "40 x sandbox_lost, 20 x deadline" in summarise(run_dir)


def test_reference_verifier_is_not_passed_off_as_a_trained_one(run_dir):
    assert "stands in for a trained PRM" in summarise(run_dir)


def test_unseen_tables_are_explained_for_the_small_policy_only(run_dir):
    assert UNSEEN_NOTE in summarise(run_dir)
    run_dir.write_text("config.yaml", CONFIG.replace("null", "/models/mine"))
    assert UNSEEN_NOTE not in summarise(run_dir)


def test_sampled_accuracy_has_its_own_line(run_dir):
    run_dir.append_metrics({"heldout/accuracy": 0.7, "heldout/sampled_accuracy": 0.6}, 30, "validation")
    assert "held-out, sampled" in summarise(run_dir)


def test_run_without_validation_config_or_steps_is_still_summarised(tmp_path):
    text = summarise(RunDir(tmp_path))
    assert "no validation was made" in text
    assert str(tmp_path) in text


def test_validation_that_scored_nothing_is_not_a_crash(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.append_metrics({"heldout/n": 0.0}, 0, "validation")
    assert "no validation was made" in summarise(run_dir)


def test_curves_are_a_picture_also_of_several_runs(run_dir, tmp_path):
    other = RunDir(tmp_path / "other")
    other.append_metrics({"reward/total_mean": None, "actor/entropy": 0.5}, 1, "train")
    path = draw_curves(run_dir, [other])
    assert path == run_dir.path / "curves.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert not list(run_dir.path.glob(".*"))


def test_curves_of_an_empty_run(tmp_path):
    assert draw_curves(RunDir(tmp_path)).stat().st_size > 1000
