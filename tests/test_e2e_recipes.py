"""The CPU twin of each GPU recipe trains two steps through the same graph; the async one is killed and goes on.

The twin of dabench, which is that of tablebench too (tests/test_recipes_verl.py), trains in tests/test_e2e_chaos.py.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("verl")
from twin_runs import finish, rows, start, trained, wait_for_step

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    """Parent of all runs of this file: tasks, policy and stand-in PRM are built once."""
    return tmp_path_factory.mktemp("twins")


def check(run: Path, steps: int = 2) -> list[dict]:
    """What every run has; returns its trajectories."""
    metrics = trained(run)
    assert [row["step"] for row in metrics] == list(range(1, steps + 1))
    assert all(row["missing/share"] == 0 for row in metrics)
    of_its_own_weights = [row for row in metrics if row.get("async/staleness_max", 0) == 0]
    assert max(row["actor/rollout_prob_diff_max"] for row in of_its_own_weights) < 1e-3
    attempts = rows(run / "trajectories.jsonl")
    assert Counter(row["step"] for row in attempts) == dict.fromkeys(range(1, steps + 1), 16)
    return attempts


def test_two_node_twin_trains_two_steps_with_the_verifier_in_the_pool(run_dir):
    code, out, err = finish(start(run_dir, "dabench_14b"))
    assert code == 0, out + err
    check_verdicts(check(run_dir / "dabench_14b"))


def check_verdicts(attempts: list[dict]) -> None:
    """The stand-in in verl's pool has run its code on a branch and given its verdict; answers are skipped."""
    assert all([verdict["skipped"] for verdict in row["verdicts"]] == answers(row) for row in attempts)
    verdicts = [verdict for row in attempts for verdict in row["verdicts"] if not verdict["skipped"]]
    assert [verdict["cause"] for verdict in verdicts if verdict["score"] is None] == []
    assert verdicts
    assert all(len(verdict["trace"]) == 2 and verdict["trace"][0]["status"] == "ok" for verdict in verdicts)


def answers(row: dict) -> list[bool]:
    return [step["status"] == "answer" for step in row["steps"]]


def test_twin_of_the_outcome_baseline_trains_two_steps_without_a_verifier(run_dir):
    code, out, err = finish(start(run_dir, "dabench_outcome"))
    assert code == 0, out + err
    attempts = check(run_dir / "dabench_outcome")
    assert all(row["verdicts"] == [] for row in attempts)
    assert {row["reward"]["total"] for row in attempts} <= {0.0, 1.0}, "beta 0: the outcome alone"


def test_async_twin_killed_within_a_step_trains_every_prompt_once_with_bounded_staleness(run_dir):
    name, steps = "dabench_async", "trainer.total_training_steps=4"
    run = run_dir / name
    process = start(run_dir, name, steps)
    wait_for_step(process, run, 2)
    process.kill()
    process.communicate()
    code, out, err = finish(start(run_dir, name, steps))
    assert code == 0, out + err
    attempts = check(run, steps=4)
    check_verdicts(attempts)
    times = Counter(row["task_id"] for row in attempts)
    assert set(times.values()) == {4}, "16 prompts of 40 tasks, each with its group of 4"
    ages = [row["step"] - 1 - row["weight_versions"][0] for row in attempts]
    assert max(ages) <= 1, "trained on at most one update after the weights that began it"
    assert all(first <= last for first, last in (row["weight_versions"] for row in attempts))
    assert all(row["async/staleness_max"] == max(ages_of(attempts, row["step"])) for row in trained(run))


def ages_of(attempts: list[dict], step: int) -> list[int]:
    return [step - 1 - row["weight_versions"][0] for row in attempts if row["step"] == step]
