"""Metrics of a batch: missing values are counted and never averaged in."""

from __future__ import annotations

import pytest

pytest.importorskip("verl")

from datapm_rl.verl_plugin.batch_metrics import reward_metrics, trajectory_rows, validation_metrics
from datapm_rl.verl_plugin.groups import Group, StepGroups
from datapm_rl.verl_plugin.output import missing_info, reward_info

pytestmark = pytest.mark.unit


def extra(info, task="t", verdicts=()):
    steps = [{"status": "ok"}, {"status": "error"}, {"status": "answer"}]
    attempt = {
        "task": {"id": task, "question": "?", "files": ["a.csv"], "gold": []},
        "steps": steps,
        "verdicts": [verdict(score) for score in verdicts],
        "stop_reason": "answered",
    }
    return {"trajectory": attempt, "reward_extra_info": info}


def verdict(score):
    """A missing one cost less: its endpoint was down."""
    cost = {"seconds": 4.0, "turns": 3.0} if score is not None else {"seconds": 1.0}
    cause = "endpoint_down" if score is None else None
    return {"score": score, "cause": cause, "tampered": [], "cut": [], "cost": cost, "skipped": False}


def scored(total, acc=1.0, overridden=False):
    return reward_info(
        total=total, outcome=acc, process=0.5, step_scores=[], step_rewards=[], overridden=overridden, cause=None
    )


def test_missing_is_counted_by_cause_and_left_out_of_means():
    batch = [extra(scored(0.8)), extra(scored(0.4, overridden=True)), extra(missing_info("deadline"))]
    groups = StepGroups(used=[Group.of(batch)])
    assert (groups.missing_share(), groups.missing()) == (pytest.approx(1 / 3), {"deadline": 1})
    metrics = reward_metrics(batch)
    assert metrics["reward/total_mean"] == pytest.approx(0.6)
    assert metrics["reward/override_rate"] == 0.5
    assert metrics["agent/error_steps_mean"] == 1.0


def test_skipped_verdicts_are_counted_and_in_no_other_metric():
    row = extra(scored(1.0, overridden=None), verdicts=(1.0, None))
    metrics = reward_metrics([row])
    row["trajectory"]["verdicts"].append({**verdict(None), "cause": None, "skipped": True})
    with_one = reward_metrics([row])
    assert (metrics.pop("verifier/skipped"), with_one.pop("verifier/skipped")) == (0.0, 1.0)
    assert with_one == metrics
    assert "reward/override_rate" not in metrics


def test_batch_without_a_single_score_has_no_means():
    metrics = reward_metrics([extra(missing_info("x"))])
    assert "reward/total_mean" not in metrics


def test_missing_verdicts_are_a_share_and_not_zeros():
    metrics = reward_metrics([extra(scored(1.0), verdicts=(1.0, None, 0.5, 1.0))])
    assert (metrics["verifier/missing_share"], metrics["verifier/score_1"], metrics["verifier/score_0"]) == (
        0.25,
        0.5,
        0.0,
    )


def test_costs_of_verifications_are_means_and_missing_verdicts_are_counted_by_cause():
    metrics = reward_metrics([extra(scored(1.0), verdicts=(1.0, None, 0.5, 1.0))])
    assert metrics["verifier/seconds_mean"] == pytest.approx(13 / 4)
    assert metrics["verifier/turns_mean"] == 3.0, "over those that counted turns"
    assert metrics["verifier/missing_endpoint_down"] == 1.0
    assert "verifier/queued_s_mean" not in metrics, "not measured is not zero"


def test_last_verdict_is_compared_with_the_outcome_where_both_are_known():
    batch = [
        extra(scored(1.0, acc=1.0), verdicts=(0.0, 1.0)),
        extra(scored(0.5, acc=0.0), verdicts=(1.0, 1.0)),
        extra(scored(0.5, acc=0.0), verdicts=(1.0, None)),
        extra(missing_info("x"), verdicts=(1.0, 1.0)),
    ]
    assert reward_metrics(batch)["verifier/outcome_agreement"] == 0.5


def test_group_with_equal_rewards_has_no_signal():
    batch = [extra(scored(0.7)), extra(scored(0.7)), extra(scored(0.7), "u"), extra(scored(0.1), "u")]
    assert reward_metrics(batch)["group/zero_variance_share"] == 0.5


def test_validation_counts_scored_tasks_and_keeps_sampled_apart():
    sources = ["easy", "easy", "easy", "other", "easy@sampled", "easy@sampled"]
    infos = {"acc": [1.0, 0.0, None, 1.0, 1.0, 1.0]}
    metrics = validation_metrics(sources, infos, [2, 2, 2, 4, 1, 1], main_split="easy")
    assert metrics["heldout/accuracy"] == 0.5
    assert (metrics["heldout/n"], metrics["heldout/missing"]) == (2.0, 1.0)
    assert metrics["heldout/sampled_accuracy"] == 1.0
    assert metrics["other/accuracy"] == 1.0
    assert "other/sampled_accuracy" not in metrics


def test_trajectory_records_hold_no_gold():
    [row] = trajectory_rows([extra(scored(1.0))], step=3)
    assert "gold" not in row
    assert (row["step"], row["task_id"]) == (3, "t")
