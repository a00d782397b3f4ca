"""What can be known to be wrong with a trainer mode and its settings, one sentence each (`UserError`)."""

from __future__ import annotations

import math

from omegaconf import DictConfig

from datapm_rl.errors import UserError

MODES = ("sync", "colocate_async", "separate_async")


def check_mode(config: DictConfig) -> None:
    """An unknown mode, or one that would stop after a minute or throw every group away."""
    name = config.trainer.v1.trainer_mode
    mode = str(name).removeprefix("prm_")
    if name != f"prm_{mode}" or mode not in MODES:
        known = ", ".join(f"prm_{mode}" for mode in MODES)
        raise UserError(f"trainer.v1.trainer_mode={name} is none of {known}: add +mode=NAME (configs/mode) for async")
    if mode == "sync":
        return
    ahead, threshold = config.trainer.v1[mode].num_warmup_batches, config.trainer.v1.sampler.max_off_policy_threshold
    if threshold is not None and threshold < 1 + math.ceil(ahead):
        raise UserError(
            f"trainer.v1.sampler.max_off_policy_threshold={threshold} is too low for "
            f"trainer.v1.{mode}.num_warmup_batches={ahead}: prompts are trained on {math.ceil(ahead)} steps after they "
            f"are dispatched, so give {1 + math.ceil(ahead)} or more"
        )
    if mode == "separate_async":
        _check_separate(config)


def _check_separate(config: DictConfig) -> None:
    batch, mini_batch = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    updates = config.trainer.v1.separate_async.parameter_sync_step
    rollout = config.actor_rollout_ref.rollout
    if updates * mini_batch != batch:
        raise UserError(
            f"trainer.v1.separate_async.parameter_sync_step={updates}: it is the number of mini-batches of a step, "
            f"data.train_batch_size / actor_rollout_ref.actor.ppo_mini_batch_size = {batch} / {mini_batch}"
        )
    for key in ("nnodes", "n_gpus_per_node"):
        if not rollout[key] > 0:
            raise UserError(f"actor_rollout_ref.rollout.{key}={rollout[key]}: rollout of its own needs at least 1")
    if rollout.checkpoint_engine.backend == "naive":
        raise UserError(
            "actor_rollout_ref.rollout.checkpoint_engine.backend=naive keeps weights on one GPU: give nccl, or another "
            "of verl's checkpoint engines, for rollout on GPUs of its own"
        )
