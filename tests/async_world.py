"""An asynchronous run without models: verl's dispatching and the project's trainer over a queue in a dict.

verl's own methods fetch, dispatch, restore and count prompts. In the place of rollouts, groups settle in an order that
is drawn at random; in the place of an update, a mini-batch is taken from the queue.
"""

from __future__ import annotations

import copy
import json
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from group_parts import member
from torchdata.stateful_dataloader import StatefulDataLoader
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import create_rl_sampler
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, _count_tq_prompt_groups
from verl.utils import tensordict_utils as tu

from datapm_rl.tracking.checkpoints import folder_of, point_to_newest
from datapm_rl.verl_plugin.async_trainer import AsyncTrainer
from datapm_rl.verl_plugin.groups import StepGroups
from datapm_rl.verl_plugin.run_state import TooManyMissing

GROUP = 2
PART = "train"


class Killed(Exception):
    """kill -9 of the driver."""


class Queue:
    """What the trainer uses of TransferQueue."""

    def __init__(self) -> None:
        self.tags: dict[str, dict] = {}
        self.rows: dict[str, Any] = {}

    def kv_batch_put(self, keys: list[str], partition_id: str, tags: list[dict], fields: Any = None) -> None:
        for index, key in enumerate(keys):
            self.tags.setdefault(key, {}).update(tags[index])
            if fields is not None:
                self.rows[key] = fields[index : index + 1].clone()

    def kv_list(self, partition_id: str | None = None) -> dict[str, dict]:
        return {PART: copy.deepcopy(self.tags)} if self.tags else {}

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str] | None = None) -> Any:
        if select_fields:
            return {name: [self.rows[key][name] for key in keys] for name in select_fields}
        rows = [self.rows[key] for key in keys]
        return tu.concat_tensordict(rows) if len(rows) > 1 else rows[0].clone()

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            self.tags.pop(key, None)
            self.rows.pop(key, None)

    def open(self, *states: str) -> list[str]:
        return [key for key, tag in self.tags.items() if tag.get("is_prompt") and tag["status"] in states]

    def settle(self, uid: str) -> None:
        task = json.loads(self.rows[uid]["extra_info"][0]["task"])["id"]
        for session in range(GROUP):
            self.tags[f"{uid}_{session}_0"] = {"status": "success", "seq_len": 2}
            extra = member(float(session), task)
            extra["trajectory"] |= {"weight_versions": None, "task": {"id": task, "question": "?", "files": []}}
            self.rows[f"{uid}_{session}_0"] = {"extra_fields": extra}
        self.tags[uid]["status"] = "finished"


class World(PPOTrainer):
    """What is left of verl's trainer when models, workers and Ray are taken away."""

    def __init__(self, config: Any):
        self.config, self.trainer_mode = config, config.trainer.v1.trainer_mode
        config.data.gen_batch_size = 1  # verl's `_init_dataloader`
        self.parameter_sync_step = config.trainer.v1[self.trainer_mode].parameter_sync_step
        tasks = [{"id": f"t{number}", "question": "?"} for number in range(config.tasks.train)]
        rows = [{"extra_info": {"task": json.dumps(task)}, "raw_prompt": task["id"]} for task in tasks]
        self.train_dataset = SimpleNamespace(rows=rows)
        self.train_dataloader = StatefulDataLoader(
            rows, batch_size=1, drop_last=True, collate_fn=_collate, sampler=create_rl_sampler(config.data, rows)
        )
        self.train_dataloader_it = None
        self._restored_tq_prompt_count = 0
        self.agent_loop_manager = SimpleNamespace(generate_sequences=self._dispatch)
        self.replay_buffer = SimpleNamespace(
            groups=StepGroups(), dispatched=lambda tasks: None, start_step=lambda step: None
        )
        self.tender = SimpleNamespace(metrics=dict)
        self.fault: tuple[str, int, int] | None = None  # what happens in which mini-batch of which step

    def _dispatch(self, batch: Any) -> None:
        for uid in batch["uid"]:
            self.queue.tags[uid]["status"] = "running"

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> KVBatchMeta:
        fault, step, number = self.fault or ("", 0, 0)
        hit = (step, number) == (self.global_steps, self.local_trigger_step)
        if hit and fault == "kill":
            raise Killed
        ages = {uid: self.queue.tags[uid]["global_steps"] for uid in self.queue.open("pending", "running", "finished")}
        running = self.queue.open("pending", "running")
        self.random.shuffle(running)
        for uid in sorted(running, key=ages.__getitem__):  # strategy `wait`: the oldest settle first
            enough = len(self.queue.open("finished")) > sample_batch_size
            if ages[uid] == min(ages.values()) or not enough or self.random.random() < 0.3:
                self.queue.settle(uid)
        settled = self.queue.open("finished")
        self.random.shuffle(settled)
        settled.sort(key=ages.__getitem__)
        if hit and fault == "outage":  # a failed group is replaced, and the batch that is left is no better
            failed = settled.pop()
            self.queue.kv_clear([failed, *_members(failed)], PART)
            self._add_prompts_to_generate(1)
        taken = settled[:sample_batch_size]
        self.queue.kv_clear(taken, PART)
        if hit and fault == "outage":
            raise TooManyMissing(self.global_steps, 1.0, {"unreachable": 1}, {})
        keys = [key for uid in taken for key in _members(uid)]
        return KVBatchMeta(partition_id=PART, keys=keys, tags=[{} for _ in keys])

    def _compute_metrics(self, *_: Any, **__: Any) -> None: ...
    def on_step_end(self) -> None: ...
    def on_sample_end(self) -> None: ...

    def _load_checkpoint(self) -> None:
        self.global_steps = point_to_newest(self.run_dir.checkpoints) or 0
        if self.global_steps:
            folder = folder_of(self.run_dir.checkpoints, self.global_steps)
            self.train_dataloader.load_state_dict(torch.load(folder / "data.pt", weights_only=False))
            saved = torch.load(folder / "queue.pt", weights_only=False)
            self.queue.tags, self.queue.rows = saved.tags, saved.rows
            self._restored_tq_prompt_count = _count_tq_prompt_groups()

    def _save_checkpoint(self) -> None:
        folder = folder_of(self.run_dir.checkpoints, self.global_steps)
        torch.save(self.queue, folder / "queue.pt")


class Run(AsyncTrainer, World):
    """One start of the command."""

    verl_mode = "separate_async"

    def __init__(self, config: Any, queue: Queue, seed: int):
        self.queue, self.random = queue, random.Random(seed)
        super().__init__(config)
        self._load_checkpoint()

    def go(self, until: int, fault: tuple[str, int, int] | None = None) -> None:
        """As verl's `fit`, and the end of the project's."""
        self.fault = fault
        self.global_steps += 1
        self._reissue_inflight_prompts()
        self._add_async_warmup_batches(self.config.trainer.v1[self.trainer_mode].num_warmup_batches)
        while self.global_steps <= until:
            self.on_step_begin()
            batch = self.step({}, {})
            self._compute_metrics(batch, {}, {})
            self.queue.kv_clear(batch.keys, PART)
            self.global_steps += 1
        self.loader_state = self.train_dataloader.state_dict()
        self._save_last_step()


def _collate(rows: list[dict]) -> dict[str, np.ndarray]:
    columns = {}
    for name in rows[0]:
        columns[name] = np.empty(len(rows), dtype=object)
        columns[name][:] = [row[name] for row in rows]
    return columns


def _members(uid: str) -> list[str]:
    return [f"{uid}_{session}_0" for session in range(GROUP)]
