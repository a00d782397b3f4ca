"""The trainer's side of the rule for groups, over a verl trainer that is nothing but a data loader."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("verl")

import numpy as np
from group_parts import FAILED, GOOD, member
from verl.utils import tensordict_utils as tu

from datapm_rl.compose import compose_config
from datapm_rl.verl_plugin.grouped_trainer import GroupedTrainer
from datapm_rl.verl_plugin.groups import Group
from datapm_rl.verl_plugin.replay_buffer import AsyncReplayBuffer, SyncReplayBuffer
from datapm_rl.verl_plugin.run_state import AllQuarantined

pytestmark = pytest.mark.unit

TASKS = ("a", "b", "c")


def row(task_id: str) -> dict:
    return {"extra_info": {"task": json.dumps({"id": task_id, "question": f"{task_id}?"})}}


class Loader:
    """What the mixin uses of verl's trainer."""

    def __init__(self, config):
        self.config, self.trainer_mode = config, config.trainer.v1.trainer_mode
        self.replay_buffer = self._build_replay_buffer()
        self.train_dataset = type("Tasks", (), {"rows": [row(task) for task in TASKS]})()
        self.global_steps, self.fetched, self.saved = 1, 0, []

    def _add_prompts_to_generate(self, count):
        return count

    def _fetch_one_gen_batch(self):
        task = TASKS[self.fetched % len(TASKS)]
        self.fetched += 1
        return tu.get_tensordict(
            {
                "uid": np.array([f"uid{self.fetched}"], dtype=object),
                "extra_info": np.array([row(task)["extra_info"]], dtype=object),
            }
        )

    def _submit_batch_to_rollout(self, batch):
        return len(batch)

    def _load_checkpoint(self): ...

    def _save_checkpoint(self):
        self.saved.append(self.global_steps)

    def on_step_begin(self): ...


class Trainer(GroupedTrainer, Loader):
    pass


@pytest.fixture
def trainer(tmp_path):
    config = compose_config(["+recipe=smoke", f"run.dir={tmp_path}", "agent.quarantine_after=2"])
    config.trainer.v1.trainer_mode = "sync"
    (tmp_path / "smoke").mkdir()
    return Trainer(config)


def group(values, task="a") -> Group:
    return Group.of([member(value, task) for value in values], size=4)


def fail(trainer, *tasks) -> dict[str, float]:
    """A step in which a group of each of the tasks failed."""
    trainer.on_step_begin()
    trainer.replay_buffer.groups.failed += [group(FAILED, task) for task in tasks]
    metrics = trainer.end_groups()
    trainer.global_steps += 1
    return metrics


def fetched(trainer, count: int) -> list[str]:
    batches = [trainer._fetch_one_gen_batch() for _ in range(count)]
    return [json.loads(dict(next(iter(batch["extra_info"])))["task"])["id"] for batch in batches]


def test_each_mode_has_its_buffer_with_all_the_rules(tmp_path):
    for mode, cls in (("sync", SyncReplayBuffer), ("colocate_async", AsyncReplayBuffer)):
        config = compose_config(["+recipe=smoke", f"run.dir={tmp_path}", "algorithm.filter_groups.enable=true"])
        config.trainer.v1.trainer_mode = mode
        made = Trainer(config).replay_buffer
        assert type(made) is cls
        assert (made.group_size, made.max_failed, made.max_silent) == (4, 4, 40)
        assert made.filter_groups_metric == "reward"


def test_task_that_fails_again_and_again_is_not_fetched_any_more(trainer):
    assert fail(trainer, "b")["group/quarantined"] == 0
    assert fetched(trainer, 3) == ["a", "b", "c"]
    assert fail(trainer, "b")["group/quarantined"] == 1
    assert fetched(trainer, 4) == ["a", "c", "a", "c"]
    [line] = (trainer.quarantine.path).read_text().splitlines()
    assert json.loads(line)["question"] == "b?"


def test_failed_group_that_was_trained_on_counts_too(trainer):
    for _ in range(2):
        trainer.on_step_begin()
        trainer.replay_buffer.groups.used += [group(FAILED, "c"), group(GOOD, "a")]
        trainer.end_groups()
    assert trainer.quarantine.tasks == {"c"}


def test_step_that_is_not_finished_is_no_prompts_fault(trainer):
    for _ in range(5):
        trainer.on_step_begin()
        trainer.replay_buffer.groups.failed += [group(FAILED, task) for task in TASKS]
    assert trainer.quarantine.tasks == set()


def test_when_all_tasks_are_quarantined_the_run_says_so(trainer):
    fail(trainer, *TASKS)
    fail(trainer, *TASKS)
    with pytest.raises(AllQuarantined, match=r"all 3 training tasks are quarantined, .*quarantine.jsonl says why"):
        trainer._fetch_one_gen_batch()


def test_counts_are_saved_before_verl_calls_the_checkpoint_done_and_loaded_again(trainer):
    fail(trainer, "a")
    fail(trainer, "a", "b")
    trainer._save_checkpoint()
    assert trainer.saved == [3]
    again = Trainer(trainer.config)
    again.global_steps = 3
    again._load_checkpoint()
    assert again.quarantine.tasks == {"a"}
    assert fail(again, "b")["group/quarantined"] == 2


def test_dispatched_prompts_are_known_by_task(trainer):
    trainer._submit_batch_to_rollout(trainer._fetch_one_gen_batch())
    assert trainer.replay_buffer._task_of == {"uid1": "a"}
