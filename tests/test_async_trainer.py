"""An asynchronous run that is killed, stopped or ended by an outage anywhere loses no prompt and repeats none."""

from __future__ import annotations

import copy
import json
from collections import Counter

import pytest

pytest.importorskip("verl")

import transfer_queue
from async_world import GROUP, Killed, Queue, Run
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from verl.trainer.ppo.utils import create_rl_sampler

from datapm_rl.compose import compose_config
from datapm_rl.tracking.checkpoints import whole_steps
from datapm_rl.tracking.jsonl import read_rows
from datapm_rl.tracking.run_dir import RunDir
from datapm_rl.verl_plugin import trainer as trainer_module
from datapm_rl.verl_plugin.async_trainer import staleness
from datapm_rl.verl_plugin.run_state import RunStopped, TooManyMissing

pytestmark = [pytest.mark.unit, pytest.mark.filterwarnings("ignore:'set_vital'")]

BATCH, AHEAD, STEPS = 4, 4, 6
OVERRIDES = [
    "+recipe=smoke",
    "+mode=separate_async",
    "tasks.train=120",
    "trainer.v1.separate_async.parameter_sync_step=2",
]


class NoTracker:
    def __init__(self, *_, **__): ...
    def log(self, *_, **__): ...


@pytest.fixture
def world(monkeypatch, tmp_path_factory):
    """Starts of one run, one after the other, each with a queue of its own as after a kill."""
    monkeypatch.setattr(trainer_module, "Tracker", NoTracker)
    monkeypatch.setattr(trainer_module, "sandbox_metrics", dict)

    config = compose_config(OVERRIDES)

    class Starts:
        def __init__(self, save_freq=1):
            folder = tmp_path_factory.mktemp("run")
            self.run_dir = RunDir(folder / "smoke")
            self.config = copy.deepcopy(config)
            self.config.run.dir, self.config.trainer.save_freq = str(folder), save_freq

        def start(self, seed=0):
            queue = Queue()
            for name in ("kv_batch_put", "kv_list", "kv_batch_get", "kv_clear"):
                monkeypatch.setattr(transfer_queue, name, getattr(queue, name))
            self.run = Run(copy.deepcopy(self.config), queue, seed)
            return self.run

        def trained(self):
            return Counter(row["task_id"] for row in read_rows(self.run_dir.trajectories_path))

        def check(self):
            """What was dispatched, in the order of an uninterrupted run, is trained on once or in flight."""
            run, trained = self.run, self.trained()
            assert set(trained.values()) == {GROUP}
            rows = [run.queue.rows[uid]["extra_info"][0] for uid in run.queue.open("pending", "running", "finished")]
            in_flight = [json.loads(row["task"])["id"] for row in rows]
            assert AHEAD <= len(in_flight) <= AHEAD + 1, "one more when an outage in the last step had replaced a group"
            order = [f"t{index}" for index in create_rl_sampler(run.config.data, run.train_dataset.rows)]
            assert sorted([*trained, *in_flight]) == sorted(order[: len(trained) + len(in_flight)])

    return Starts


def test_uninterrupted_run_trains_batch_after_batch(world):
    starts = world()
    starts.start().go(STEPS)
    assert len(starts.trained()) == STEPS * BATCH
    starts.check()


FAULTS = st.lists(
    st.tuples(st.sampled_from(["kill", "outage", "stop"]), st.integers(1, STEPS), st.integers(0, 1)), max_size=4
)


@settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(faults=FAULTS, save_freq=st.sampled_from([1, 2, 100]), seed=st.integers(0, 1000))
def test_prompts_survive_any_ends(world, faults, save_freq, seed):
    starts = world(save_freq)
    for number, (what, step, mini_batch) in enumerate(faults):
        run = starts.start(seed + number)
        if what == "stop":
            run.go(step)
            run.run_dir.request_stop()
            if run.global_steps <= STEPS:
                with pytest.raises(RunStopped):
                    run.on_step_begin()
            run.run_dir.clear_stop()
            continue
        if step <= run.global_steps:
            continue
        with pytest.raises(Killed if what == "kill" else TooManyMissing):
            run.go(STEPS, fault=(what, step, mini_batch))
        if what == "outage":
            assert whole_steps(run.run_dir.checkpoints)[-1:] == [step - 1] or step == 1
    starts.start(seed - 1).go(STEPS)
    starts.check()
    mini_batches, rest = divmod(len(starts.trained()) - STEPS * BATCH, BATCH // 2)
    assert 0 <= mini_batches <= len(faults)
    assert rest == 0, "a step that an outage cut short leaves whole mini-batches"


@pytest.mark.parametrize("seed", [0, 1])
def test_outage_soon_after_a_resume_takes_out_groups_of_the_checkpoint(world, seed):
    starts = world(2)
    with pytest.raises(Killed):
        starts.start(seed).go(STEPS, fault=("kill", 3, 1))
    with pytest.raises(TooManyMissing):
        starts.start(seed + 1).go(STEPS, fault=("outage", 4, 1))
    starts.start(seed - 1).go(STEPS)
    starts.check()


@pytest.mark.parametrize(("save_freq", "extra"), [(1, 0), (100, BATCH // 2)])
def test_outage_after_a_trained_mini_batch(world, save_freq, extra):
    """With a checkpoint of the step before, that one stands. Without, what was trained on counts for that step."""
    starts = world(save_freq)
    with pytest.raises(TooManyMissing):
        starts.start().go(STEPS, fault=("outage", 3, 1))
    assert whole_steps(starts.run_dir.checkpoints)[-1] == 2
    assert len(starts.trained()) == 2 * BATCH + extra
    starts.start(seed=1).go(STEPS)
    assert len(starts.trained()) == STEPS * BATCH + extra
    starts.check()


def test_staleness_counts_updates_and_leaves_out_what_has_no_token():
    def extra(versions):
        return {"trajectory": {"weight_versions": versions}}

    assert staleness([extra((6, 6)), extra((5, 6)), extra(None)], step=7) == {
        "async/staleness_mean": 0.5,
        "async/staleness_max": 1.0,
        "async/span_mean": 1.5,
        "async/span_max": 2.0,
    }
    assert staleness([extra(None)], step=7) == {}
