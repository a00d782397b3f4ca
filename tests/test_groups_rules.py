"""What a settled group is worth, and what a step's groups add up to: the missing-data rule without TransferQueue."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("verl")

from group_parts import member
from hypothesis import given
from hypothesis import strategies as st

from datapm_rl.verl_plugin.groups import Group, StepGroups
from datapm_rl.verl_plugin.output import missing_info
from datapm_rl.verl_plugin.run_state import AllQuarantined, TooManyMissing

pytestmark = pytest.mark.unit

rewards = st.lists(st.one_of(st.none(), st.sampled_from([0.0, 0.5, 0.7, 1.0])), min_size=2, max_size=8)


@given(rewards)
def test_a_group_is_failed_or_silent_or_worth_training_on(values):
    group = Group.of([member(value) for value in values], size=len(values))
    scored = [value for value in values if value is not None]
    assert group.failed == (len(scored) < 2)
    assert group.silent == (len(scored) >= 2 and len(set(scored)) == 1)


@given(rewards, st.integers(0, 3))
def test_members_without_a_row_are_missing(values, lost):
    group = Group.of([member(value) for value in values], size=len(values) + lost)
    assert len(group.votes) == len(values) + lost
    assert group.missing["session_failed"] == lost
    assert group.missing.total() == len(group.votes) - sum(value is not None for value in values)


@given(st.lists(rewards, min_size=1, max_size=5), st.lists(rewards, max_size=3))
def test_share_counts_evicted_groups_too(used, evicted):
    groups = StepGroups(used=[_group(values) for values in used], failed=[_group(values) for values in evicted])
    members = [value for values in [*used, *evicted] for value in values]
    assert groups.missing_share() == pytest.approx(members.count(None) / len(members))
    assert groups.metrics()["missing/share"] == groups.missing_share()


def test_float_noise_is_no_signal():
    assert _group([0.7 + noise for noise in (0.0, 1e-8, -1e-8, 0.0)]).silent


def test_a_group_left_out_by_choice_has_no_signal_but_has_not_failed():
    extras = [member(1.0), member(0.0), member(0.5), member(0.0)]
    for extra in extras:
        extra["reward_extra_info"]["excluded"] = "overlong"
    group = Group.of(extras, size=4)
    assert group.silent
    assert not group.failed
    assert group.missing == Counter()


def test_a_group_of_which_no_member_left_a_record_is_known_by_what_was_dispatched():
    group = Group.of([], size=4, task_id="poisoned")
    assert (group.task_id, group.failed, group.missing) == ("poisoned", True, Counter(session_failed=4))


def test_metrics_tell_what_was_evicted_and_why():
    right = Group.of([member(1.0) for _ in range(4)], size=4)
    wrong = Group.of([member(0.2, outcome=0.0) for _ in range(4)], size=4)
    used = _group([1.0, 0.0, None, 0.5])
    refilled = member(1.0)
    refilled["reward_extra_info"]["given_up"] = ["deadline"]
    groups = StepGroups(
        used=[used, Group.of([refilled, member(0.0), member(0.0), member(0.0)], size=4)],
        failed=[_group([None, None, None, 1.0])],
        silent=[right, wrong],
        refilled=5,
    )
    metrics = groups.metrics()
    assert metrics == {
        "missing/share": 4 / 20,
        "missing/sandbox_lost": 4.0,
        "group/failed": 1.0,
        "group/filtered": 2.0,
        "group/filtered_all_right": 1.0,
        "group/filtered_all_wrong": 1.0,
        "group/kept_silent": 0.0,
        "group/refilled": 5.0,
        "group/refilled_members": 1.0,
    }


def test_stop_names_causes_and_travels():
    import pickle

    groups = StepGroups(used=[_group([1.0, None])], failed=[Group.of([{**member(None)}] * 2, size=2)])
    error = pickle.loads(pickle.dumps(TooManyMissing.of(7, groups)))
    assert "step 7: 75% of the trajectories have no reward (3 x sandbox_lost)" in str(error)
    empty = pickle.loads(pickle.dumps(AllQuarantined(3, "runs/x/quarantine.jsonl")))
    assert "all 3 training tasks are quarantined, runs/x/quarantine.jsonl says why" in str(empty)


def test_all_infos_count_given_up_attempts():
    assert missing_info("x")["given_up"] == []


def _group(values) -> Group:
    return Group.of([member(value) for value in values], size=len(values))
