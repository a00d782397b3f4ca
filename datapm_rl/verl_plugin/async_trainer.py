"""verl's asynchronous trainers, watched: rollout goes on while the policy is updated, with weights a little older.

`prm_colocate_async`: one set of accelerators for both, which takes turns; turns of an agent that are cut off by an
update go on with the new weights. `prm_separate_async`: rollout on accelerators of its own.

Prompts are dispatched ahead of training: `num_warmup_batches` batches are in flight when a step begins, and each step
tops them up by one batch. A checkpoint holds the data loader behind the last dispatched prompt and TransferQueue's
state, from which verl restores finished groups and dispatches the others again: no prompt is lost, none comes twice.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import transfer_queue as tq
from tensordict import NonTensorData, TensorDict
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.utils import tensordict_utils as tu

from datapm_rl.verl_plugin import batch_metrics
from datapm_rl.verl_plugin.rollout_manager import dense
from datapm_rl.verl_plugin.trainer import WatchedTrainer

PARTITION = "train"


class AsyncTrainer(WatchedTrainer):
    """Mixin over an asynchronous verl trainer."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.prompts: dict[str, TensorDict] = {}  # dispatched and not known to be gone, by uid: one row each
        self.trained: list[Any] = []  # mini-batches of the running step that have been trained on

    def _reissue_inflight_prompts(self, partition_id: str = PARTITION) -> int:
        if uids := _open_prompts():  # of a checkpoint
            self._remember(tq.kv_batch_get(keys=uids, partition_id=PARTITION))
        return super()._reissue_inflight_prompts(partition_id)

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        self._remember(batch)
        return super()._submit_batch_to_rollout(batch)

    def _remember(self, batch: TensorDict) -> None:
        rows = dense(batch.select(*[key for key, column in batch.items() if not isinstance(column, NonTensorData)]))
        self.prompts.update({uid: rows[index : index + 1] for index, uid in enumerate(batch["uid"])})

    def _add_batch_to_generate(self) -> None:
        """Top up what is in flight. A run that stopped within a step has dispatched that step's prompts already."""
        size = self.config.data.train_batch_size
        ahead = math.floor(self.config.trainer.v1[self.verl_mode].num_warmup_batches * size)
        if (count := ahead + size - len(_open_prompts())) > 0:
            self._add_prompts_to_generate(count)

    def _step_once(self, *args: Any, **kwargs: Any) -> Any:
        batch = super()._step_once(*args, **kwargs)
        self.trained.append(batch)
        return batch

    def _save_last_step(self) -> None:
        """Between two steps: all that is in flight is in TransferQueue. Within one, mini-batches that were trained on
        count for the step before; groups that the step has taken out, and not trained on, are dispatched again."""
        if self.saved_step == self.global_steps - 1:  # that checkpoint stands, and nothing of this step is in it
            return
        for batch in self.trained:
            rows = batch_metrics.trajectory_rows(batch_metrics.fetch(batch), self.global_steps - 1)
            self.run_dir.append_trajectories(rows)
            tq.kv_clear(keys=batch.keys, partition_id=PARTITION)
            for key in batch.keys:
                self.prompts.pop(_uid(key), None)
        self.trained = []
        self._put_back()
        self.loader_state = self.train_dataloader.state_dict()
        super()._save_last_step()

    def _put_back(self) -> None:
        lost = self.prompts.keys() - set(_open_prompts())
        if not lost:
            return
        if leftovers := [key for key in _keys() if _uid(key) in lost]:
            tq.kv_clear(keys=leftovers, partition_id=PARTITION)
        rows = [self.prompts[uid] for uid in self.prompts if uid in lost]
        fields = tu.concat_tensordict(rows) if len(rows) > 1 else rows[0]
        tags = [{"is_prompt": True, "status": "pending", "global_steps": self.global_steps} for _ in rows]
        tq.kv_batch_put(keys=list(fields["uid"]), partition_id=PARTITION, tags=tags, fields=fields)

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], timing_raw: Any, **kwargs: Any) -> None:
        metrics.update(staleness(batch_metrics.fetch(batch), self.global_steps))
        if "training/off_policy/evicted_samples" in metrics:
            metrics["async/evicted_groups"] = metrics["training/off_policy/evicted_samples"]
        super()._compute_metrics(batch, metrics, timing_raw, **kwargs)
        self.trained = []  # the step is done
        open_uids = set(_open_prompts())
        self.prompts = {uid: row for uid, row in self.prompts.items() if uid in open_uids}


def staleness(trajectories: list[batch_metrics.Extra], step: int) -> dict[str, float]:
    """Ages of a batch that is trained in `step`, in weight updates, over the trajectories with tokens.

    `async/staleness_*`: updates between the weights that sampled a trajectory's first token and those it is trained on
    (0 in sync). `async/span_*`: weight versions that sampled it (1 unless an update came in between).
    """
    versions = [extra["trajectory"]["weight_versions"] for extra in trajectories]
    known = np.array([pair for pair in versions if pair is not None], dtype=float).reshape(-1, 2)
    if not len(known):
        return {}
    first, last = known.T
    ages, spans = step - 1 - first, last - first + 1
    return {
        "async/staleness_mean": ages.mean(),
        "async/staleness_max": ages.max(),
        "async/span_mean": spans.mean(),
        "async/span_max": spans.max(),
    }


def _keys() -> dict[str, dict[str, Any]]:
    """Tags of all keys of the training partition: prompts under their uid, trajectories under `uid_session_index`."""
    return (tq.kv_list(PARTITION) or {}).get(PARTITION, {})


def _open_prompts() -> list[str]:
    """Uids of the prompts that are dispatched and were not taken for training or evicted."""
    return [key for key, tag in _keys().items() if tag.get("is_prompt", False)]


def _uid(key: str) -> str:
    return key.split("_", 1)[0]


@register_trainer("prm_colocate_async")
class ColocateAsyncTrainer(AsyncTrainer, PPOTrainerColocateAsync):
    """verl's `colocate_async` mode."""

    verl_mode = "colocate_async"


@register_trainer("prm_separate_async")
class SeparateAsyncTrainer(AsyncTrainer, PPOTrainerSeparateAsync):
    """verl's `separate_async` mode."""

    verl_mode = "separate_async"

    def _setup(self) -> None:
        # with hybrid_engine=false verl's `_setup` hands logger.info an argument that it does not take
        logging.getLogger(PPOTrainerSeparateAsync.__module__).setLevel(logging.WARNING)
        super()._setup()
