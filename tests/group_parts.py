"""Groups without agents: records of members, and prompts whose groups settle at once as a script says."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from omegaconf import OmegaConf
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from datapm_rl.verl_plugin.output import missing_info, reward_info
from datapm_rl.verl_plugin.replay_buffer import AsyncReplayBuffer, SyncReplayBuffer

SIZE = 4
GOOD = [1.0, 0.0, 0.5, 0.0]
SILENT = [0.5, 0.5, 0.5, 0.5]
FAILED = [None, 1.0, None, None]

Rewards = list[float | None]


def member(reward: float | None, task: str = "t", outcome: float = 1.0, cause: str = "sandbox_lost") -> dict[str, Any]:
    """The record of one member, `AgentLoopOutput.extra_fields`; `reward` None is missing with `cause`."""
    if reward is None:
        info = missing_info(cause)
    else:
        info = reward_info(
            total=reward,
            outcome=outcome,
            process=None,
            step_scores=[],
            step_rewards=[reward],
            overridden=False,
            cause=None,
        )
    attempt = {"task": {"id": task, "question": "?"}, "steps": [], "verdicts": [], "stop_reason": "answered"}
    return {"trajectory": attempt, "reward_extra_info": info}


class Rollouts:
    """In the place of data loader and agent loops: `refill_fn` of a replay buffer.

    `script` has the rewards of each prompt's members. Fewer than SIZE of them: the other sessions raised. None: the
    group does not settle before `settle` is called.
    """

    def __init__(self, queue: Any, script: Iterable[Rewards | None]):
        self.queue, self.script, self.step = queue, iter(script), 1
        self.dispatched: list[str] = []
        self.open: list[str] = []
        self.numbers = itertools.count()

    def __call__(self, count: int, partition: str = "train") -> int:
        for _ in range(count):
            uid = f"uid{next(self.numbers)}"
            self.dispatched.append(uid)
            self._tag(uid, partition, is_prompt=True, status="pending", global_steps=self.step)
            rewards = next(self.script)
            if rewards is None:
                self.open.append(uid)
            else:
                self.settle(uid, rewards, partition)
        return count

    def settle(self, uid: str, rewards: Rewards, partition: str = "train") -> None:
        """Write the members' rows and end the group."""
        rows = [{"extra_fields": member(value), "response_mask": torch.ones(1)} for value in rewards]
        if rows:
            self.queue.kv_batch_put(
                keys=[f"{uid}_{session}_0" for session in range(len(rows))],
                partition_id=partition,
                fields=list_of_dict_to_tensordict(rows),
                tags=[{"status": "success", "seq_len": 2}] * len(rows),
            )
        self._tag(uid, partition, status="finished" if len(rewards) == SIZE else "failure")

    def _tag(self, uid: str, partition: str, **tag: Any) -> None:
        self.queue.kv_batch_put(keys=[uid], partition_id=partition, tags=[tag])


def buffer(kind: str, rollouts: Rollouts, batch: int = 2, filtering: bool = False, **settings: Any):
    """A replay buffer of `kind` sync or async, as the trainer builds it."""
    cls = SyncReplayBuffer if kind == "sync" else AsyncReplayBuffer
    arguments = {
        "trainer_mode": "sync" if kind == "sync" else "colocate_async",
        "trainer_config": OmegaConf.create({}),
        "max_off_policy_threshold": 2,
        "max_off_policy_strategy": "drop",
        "sampler_kwargs": OmegaConf.create({}),
        "refill_fn": rollouts,
        "filter_groups_metric": "reward" if filtering else None,
        "train_batch_size": batch,
        "gen_batch_size": 1,
        "sync_refill_failed_groups": True,
        "group_size": SIZE,
        "max_failed": batch,
        "max_silent": 2 * batch,
    }
    made = cls(**{**arguments, **settings})
    made.start_step(1)
    return made


def uids(keys: Iterable[str]) -> Iterator[str]:
    """Groups of a batch's keys, in order."""
    return iter(dict.fromkeys(key.split("_")[0] for key in keys))


class FakeQueue:
    """What the replay buffer uses of TransferQueue, in a dict."""

    def __init__(self) -> None:
        self.tags: dict[str, dict[str, dict]] = {}
        self.rows: dict[tuple[str, str], dict] = {}

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> None:
        for index, key in enumerate(keys):
            self.tags.setdefault(partition_id, {}).setdefault(key, {}).update(tags[index])
            if fields is not None:
                self.rows[partition_id, key] = fields["extra_fields"][index]

    def kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, dict]]:
        return {name: dict(tags) for name, tags in self.tags.items()}

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, list]:
        assert select_fields == ["extra_fields"]
        return {"extra_fields": [self.rows[partition_id, key] for key in keys]}

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            self.tags[partition_id].pop(key, None)
            self.rows.pop((partition_id, key), None)
