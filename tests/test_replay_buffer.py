"""Which groups reach the trainer: failed ones and ones without signal are replaced, and never for ever."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

pytest.importorskip("verl")

import transfer_queue
from group_parts import FAILED, GOOD, SILENT, SIZE, FakeQueue, Rollouts, buffer, uids
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datapm_rl.verl_plugin import replay_buffer
from datapm_rl.verl_plugin.run_state import TooManyMissing

pytestmark = pytest.mark.unit

MODES = pytest.mark.parametrize("kind", ["sync", "async"])


@pytest.fixture
def queue(monkeypatch) -> FakeQueue:
    fake = FakeQueue()
    for name in ("kv_batch_put", "kv_list", "kv_batch_get", "kv_clear"):
        monkeypatch.setattr(transfer_queue, name, getattr(fake, name))
    monkeypatch.setattr(replay_buffer, "POLL_S", 0.0)
    return fake


def play(queue, kind, script, batch=2, **options):
    """A step over a script: (buffer, uids that were sampled, rollouts)."""
    rollouts = Rollouts(queue, script)
    made = buffer(kind, rollouts, batch, **options)
    rollouts(batch)
    sampled, _ = made.sample(global_steps=1, partition_id="train", batch_size=batch)
    return made, list(uids(sampled.keys)), rollouts


@MODES
def test_failed_group_is_replaced(queue, kind):
    made, sampled, rollouts = play(queue, kind, [FAILED, GOOD, GOOD])
    assert sampled == ["uid1", "uid2"]
    assert [group.missing for group in made.groups.failed] == [Counter(sandbox_lost=3)]
    assert (made.groups.refilled, len(rollouts.dispatched)) == (1, 3)
    assert made.groups.missing_share() == 3 / 12
    assert queue.kv_list()["train"].keys() == {f"{uid}_{n}_0" for uid in sampled for n in range(SIZE)}


@MODES
def test_group_with_two_members_left_is_trained_on(queue, kind):
    made, sampled, _ = play(queue, kind, [[None, 1.0, 0.0, None], [1.0, 0.0]])
    assert sampled == ["uid0", "uid1"], "the second one's other sessions raised"
    assert made.groups.missing() == Counter(sandbox_lost=2, session_failed=2)


@MODES
def test_outage_ends_in_a_batch_of_failures_and_not_in_endless_sampling(queue, kind):
    made, sampled, rollouts = play(queue, kind, itertools.repeat(FAILED))
    assert len(sampled) == 2
    assert len(rollouts.dispatched) == 4
    assert made.groups.missing_share() == 3 / 4


@MODES
def test_groups_without_any_row_stop_the_run_with_their_cause(queue, kind):
    rollouts = Rollouts(queue, itertools.repeat([]))
    made = buffer(kind, rollouts)
    made.dispatched({f"uid{n}": "poisoned" for n in range(9)})
    rollouts(2)
    with pytest.raises(TooManyMissing, match=r"step 1: 100% .*16 x session_failed"):
        made.sample(global_steps=1, partition_id="train", batch_size=2)
    assert {group.task_id for group in made.groups.failed} == {"poisoned"}


@MODES
def test_group_without_signal_is_replaced_by_dynamic_sampling_alone(queue, kind):
    _, sampled, _ = play(queue, kind, [SILENT, GOOD])
    assert sampled == ["uid0", "uid1"]
    made, sampled, _ = play(queue, kind, [SILENT, GOOD, *[GOOD] * 8], filtering=True)
    assert len(sampled) == 2
    assert "uid0" not in sampled
    assert (len(made.groups.silent), made.groups.kept_silent) == (1, 0)


@MODES
def test_tasks_without_signal_are_accepted_after_so_many_evictions(queue, kind, caplog):
    made, sampled, rollouts = play(queue, kind, itertools.repeat(SILENT), filtering=True)
    assert (len(sampled), len(made.groups.silent), made.groups.kept_silent) == (2, 4, 2)
    assert len(rollouts.dispatched) <= 2 + 2 * 4
    assert "2 groups without signal are trained on, after 4 were replaced" in caplog.text


@MODES
def test_each_step_counts_anew(queue, kind):
    made, _, rollouts = play(queue, kind, [FAILED, FAILED, GOOD, GOOD, FAILED, FAILED, GOOD, GOOD])
    made.start_step(2)
    rollouts.step = 2
    rollouts(2)
    sampled, _ = made.sample(global_steps=2, partition_id="train", batch_size=2)
    assert list(uids(sampled.keys)) == ["uid6", "uid7"]


def test_stale_group_is_dropped_also_if_a_session_raised(queue):
    rollouts = Rollouts(queue, [[1.0, 0.0], GOOD, GOOD, GOOD, GOOD])
    made = buffer("async", rollouts)
    rollouts(2)
    rollouts.step = 3
    sampled, metrics = made.sample(global_steps=3, partition_id="train", batch_size=2)
    assert list(uids(sampled.keys)) == ["uid2", "uid3"]
    assert metrics["training/off_policy/evicted_samples"] == 2
    assert made.groups.failed == [], "too old is not failed"


def test_asking_how_much_is_there_evicts_and_counts_nothing(queue):
    rollouts = Rollouts(queue, [FAILED, GOOD])
    made = buffer("async", rollouts)
    rollouts(2)
    assert [made.get_sampleable_count(1, "train") for _ in range(2)] == [1, 1]
    assert (made.groups.all, len(rollouts.dispatched)) == ([], 2)


@MODES
def test_validation_takes_all_groups_as_they_are(queue, kind):
    rollouts = Rollouts(queue, [FAILED, SILENT])
    made = buffer(kind, rollouts, filtering=True)
    rollouts(2, partition="val")
    sampled, _ = made.sample(global_steps=1, partition_id="val", batch_size=2)
    assert list(uids(sampled.keys)) == ["uid0", "uid1"]
    assert made.groups.all == []


@MODES
def test_whoever_looks_after_workers_learns_which_prompts_are_open(queue, kind, monkeypatch):
    monkeypatch.setattr(replay_buffer, "ASK_S", 0.0)
    rollouts = Rollouts(queue, [None, GOOD, None])
    made = buffer(kind, rollouts)
    rollouts(2)
    rollouts(1, partition="val")
    seen = []

    def tend(open_uids):
        seen.append(open_uids)
        if "uid0" in open_uids:
            rollouts.settle("uid0", GOOD)

    made.on_wait = tend
    made.sample(global_steps=1, partition_id="train", batch_size=2)
    assert seen[0] == {"uid0", "uid2"}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["sync", "async"]),
    st.booleans(),
    st.integers(1, 4),
    st.lists(st.sampled_from([GOOD, SILENT, FAILED, [], [1.0], [1.0, 0.0]]), max_size=40),
)
def test_a_step_always_ends_and_counts_every_group_once(queue, kind, filtering, batch, script):
    queue.tags.clear()
    rollouts = Rollouts(queue, [*script, *itertools.repeat(GOOD, 200)])
    made = buffer(kind, rollouts, batch, filtering=filtering)
    rollouts(batch)
    try:
        sampled, _ = made.sample(global_steps=1, partition_id="train", batch_size=batch)
    except TooManyMissing:
        assert all(group.missing.total() == SIZE for group in made.groups.used), "there was something to train on"
        return
    groups = made.groups
    assert len(groups.used) == batch
    assert len(groups.failed) <= batch
    assert len(groups.silent) <= (2 * batch if filtering else 0)
    if len(groups.failed) < batch:
        assert not any(group.failed for group in groups.used)
    assert made._settled == {} or kind == "async"
    assert set(uids(sampled.keys)) <= set(rollouts.dispatched)
