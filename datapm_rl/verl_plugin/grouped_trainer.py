"""The trainer's side of the rule for groups: which replay buffer, which prompts, and what the failed ones come to.

Data flow of a step: `on_step_begin` starts the buffer's count; prompts that are fetched skip quarantined tasks, and
each dispatched prompt is named to the buffer; `end_groups`, called when the step has passed the missing-data rule,
books its failed groups. So an outage, which stops the run instead, is no prompt's fault.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from datapm_rl.tracking.quarantine import Quarantine
from datapm_rl.verl_plugin.replay_buffer import AsyncReplayBuffer, SyncReplayBuffer
from datapm_rl.verl_plugin.run_state import AllQuarantined


class GroupedTrainer:
    """Mixin over a verl v1 trainer."""

    def __init__(self, config: DictConfig):
        super().__init__(config)
        path = Path(config.run.dir) / config.run.name / "quarantine.jsonl"
        self.quarantine = Quarantine(path, config.agent.quarantine_after)

    def _build_replay_buffer(self) -> SyncReplayBuffer | AsyncReplayBuffer:
        """In place of verl's own method, which gives a custom buffer none of the arguments for evictions."""
        sampler, filtering, batch = (
            self.config.trainer.v1.sampler,
            self.config.algorithm.filter_groups,
            self.config.data.train_batch_size,
        )
        buffer = SyncReplayBuffer if self.trainer_mode == "sync" else AsyncReplayBuffer
        return buffer(
            trainer_mode=self.trainer_mode,
            trainer_config=self.config.trainer.v1.get(self.trainer_mode, {}),
            max_off_policy_threshold=sampler.max_off_policy_threshold,
            max_off_policy_strategy=sampler.max_off_policy_strategy,
            sampler_kwargs=sampler.sampler_kwargs,
            refill_fn=self._add_prompts_to_generate,
            filter_groups_metric=filtering.metric if filtering.enable else None,
            train_batch_size=batch,
            gen_batch_size=1,
            max_inflight_gen_batches=filtering.max_inflight_gen_batches,
            sync_refill_failed_groups=True,
            group_size=self.config.actor_rollout_ref.rollout.n,
            max_failed=batch,
            max_silent=batch * filtering.max_num_gen_batches,
        )

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        self.quarantine.load(self._step_folder() if self.global_steps > 0 else None)

    def _save_checkpoint(self) -> None:
        self.quarantine.save(self._step_folder())
        super()._save_checkpoint()

    def _step_folder(self) -> Path:
        return Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"

    def on_step_begin(self) -> None:
        super().on_step_begin()
        self.replay_buffer.start_step(self.global_steps)

    def _fetch_one_gen_batch(self) -> Any:
        """The next prompt whose task is not quarantined. verl fetches one at a time where groups are refilled."""
        while True:
            batch = super()._fetch_one_gen_batch()
            quarantined = self.quarantine.tasks
            if quarantined.isdisjoint(_tasks(batch).values()):
                return batch
            if quarantined >= self._questions.keys():
                raise AllQuarantined(len(self._questions), str(self.quarantine.path))

    def _submit_batch_to_rollout(self, batch: Any) -> int:
        self.replay_buffer.dispatched(_tasks(batch))
        return super()._submit_batch_to_rollout(batch)

    def end_groups(self) -> dict[str, float]:
        """Book the step's failed groups against their tasks; returns the metrics of the step's groups."""
        groups = self.replay_buffer.groups
        for group in [*groups.failed, *(group for group in groups.used if group.failed)]:
            if group.task_id is not None:
                self.quarantine.add(
                    group.task_id, self._questions.get(group.task_id, ""), group.missing, self.global_steps
                )
        return {**groups.metrics(), "group/quarantined": float(len(self.quarantine.tasks))}

    @cached_property
    def _questions(self) -> dict[str, str]:
        """Question by task id, of all training tasks."""
        tasks = (json.loads(row["extra_info"]["task"]) for row in self.train_dataset.rows)
        return {task["id"]: task["question"] for task in tasks}


def _tasks(batch: Any) -> dict[str, str]:
    """Task id by prompt uid, of a batch of dataset rows."""
    infos = (getattr(info, "data", info) for info in batch["extra_info"])
    uids = (getattr(uid, "data", uid) for uid in batch["uid"])
    return {str(uid): json.loads(info["task"])["id"] for uid, info in zip(uids, infos, strict=True)}
