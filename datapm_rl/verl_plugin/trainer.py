"""verl's trainer, watched: metrics and trajectories of each step, the missing-data rule, and a stop that can resume.

`prm_sync` is verl's synchronous v1 trainer. What this class adds hangs on verl's own per-step methods:

* `step`: a step that cannot be made saves the state before it and ends the run;
* `_balance_batch` (first thing after sampling): too many trajectories without a reward stop the run;
* `_compute_metrics` (last thing, before verl clears the batch): the project's metrics, one line per trajectory;
* `_validate`: accuracy per split over the scored tasks;
* `on_step_begin`: the checkpoint of the step before, when it is due. verl would save before validation and metrics,
  and in async modes with rows that are trained already. A requested stop (Ctrl-C in the driver) saves and ends the run.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.rollout.llm_server import LLMServerClient

from datapm_rl.tracking.checkpoints import drop_old, folder_of, seal
from datapm_rl.tracking.loggers import Tracker
from datapm_rl.tracking.run_dir import RunDir
from datapm_rl.verl_plugin import batch_metrics
from datapm_rl.verl_plugin.grouped_trainer import GroupedTrainer
from datapm_rl.verl_plugin.llm_client import cancelling
from datapm_rl.verl_plugin.run_state import NothingToTrain, RunStopped, StepFailed, TooManyMissing
from datapm_rl.verl_plugin.sandbox_actor import sandbox_metrics
from datapm_rl.verl_plugin.tending import Tender

VERL_METRICS = {
    "actor/entropy": "actor/entropy",
    "actor/grad_norm": "actor/grad_norm",
    "actor/pg_clipfrac": "actor/pg_clipfrac",
    "actor/pg_clipfrac_lower": "actor/pg_clipfrac_lower",
    "actor/ppo_kl": "actor/ppo_kl",
    "actor/kl_loss": "actor/kl_loss",
    "actor/reward_kl_penalty": "actor/reward_kl",
    "actor/lr": "actor/lr",
    "training/rollout_probs_diff_max": "actor/rollout_prob_diff_max",
    # over tokens; verl's values per sequence count masked rows as zeros
    "rollout_corr/kl": "rollout_corr/kl",
    "rollout_corr/k3_kl": "rollout_corr/k3_kl",
    "rollout_corr/rollout_is_mean": "rollout_corr/is_mean",
    "rollout_corr/rollout_is_max": "rollout_corr/is_max",
    "rollout_corr/rollout_is_eff_sample_size": "rollout_corr/is_eff_sample_size",
    "rollout_corr/rollout_is_ratio_fraction_high": "rollout_corr/is_truncated_share",
    "rollout_corr/rollout_rs_masked_fraction": "rollout_corr/rejected_share",
    "timing_s/step": "time/step_s",
    "timing_s/gen": "time/rollout_s",
    "timing_s/old_log_prob": "time/old_log_prob_s",
    "timing_s/update_actor": "time/update_s",
    "timing_s/update_weights": "time/weight_sync_s",
    "timing_s/testing": "time/validation_s",
}


class WatchedTrainer(GroupedTrainer):
    """Mixin over a verl v1 trainer; `verl_mode` is the verl trainer mode it extends."""

    verl_mode: str

    def __init__(self, config: DictConfig):
        self.save_freq = config.trainer.save_freq
        config.trainer.save_freq = -1  # saved by `on_step_begin` instead
        self.keep = config.trainer.max_actor_ckpt_to_keep
        config.trainer.max_actor_ckpt_to_keep = None  # verl drops an old one before the new one is whole
        # verl compares trainer_mode with its own literals in several places
        config.trainer.v1.trainer_mode = self.verl_mode
        super().__init__(config)
        self.run_dir = RunDir(Path(config.run.dir) / config.run.name)
        self.tracker: Tracker | None = None
        self.loader_state: dict[str, Any] | None = None
        self.saved_step: int | None = None

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        resumed = self.global_steps > 0
        self.saved_step = self.global_steps if resumed else None
        self.run_dir.truncate_after(self.global_steps if resumed else -1)
        if resumed:  # its validation row is there, from before the checkpoint
            self.config.trainer.val_before_train = False
        self.tracker = Tracker(self.run_dir, OmegaConf.to_container(self.config, resolve=True), resume=resumed)

    def fit(self, agent_loop_manager: Any) -> None:
        self.tender = Tender(agent_loop_manager, self.reward_loop_manager)
        self.replay_buffer.on_wait = self.tender.tend
        try:
            super().fit(agent_loop_manager)
            self.loader_state = self.train_dataloader.state_dict()
            self._save_last_step()
        finally:
            assert self.tracker is not None
            self.tracker.close()

    def _save_checkpoint(self) -> None:
        folder = folder_of(self.run_dir.checkpoints, self.global_steps)
        shutil.rmtree(folder, ignore_errors=True)  # what a kill has left
        super()._save_checkpoint()
        torch.save(self.loader_state, folder / "data.pt")
        seal(folder)
        self.saved_step = self.global_steps
        drop_old(self.run_dir.checkpoints, self.keep)

    def _save_last_step(self) -> None:
        """Save the state after the last finished step, with the prompts of an unfinished one still ahead."""
        last = self.global_steps - 1
        if self.saved_step == last:
            return
        self.global_steps = last
        self._save_checkpoint()
        self.global_steps = last + 1

    def on_step_begin(self) -> None:
        self.loader_state = self.train_dataloader.state_dict()
        last, stop = self.global_steps - 1, self.run_dir.stop_requested()
        if stop or (self.save_freq > 0 and last > 0 and last % self.save_freq == 0):
            self._save_last_step()
        if stop:
            raise RunStopped(f"stopped on request after step {last}")
        super().on_step_begin()

    def get_llm_client(self) -> LLMServerClient:
        return cancelling(super().get_llm_client())

    def step(self, metrics: dict[str, Any], timing_raw: Any) -> Any:
        try:
            return super().step(metrics, timing_raw)
        except StepFailed:
            self._save_last_step()
            raise

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        share = self.replay_buffer.groups.missing_share()
        if share > self.config.prm.max_missing_share or share == 1.0:
            # for whoever looks for the cause; dropped on resume, which makes this step again
            trajectories = batch_metrics.fetch(batch)
            self.run_dir.append_trajectories(batch_metrics.trajectory_rows(trajectories, self.global_steps))
            raise TooManyMissing.of(self.global_steps, self.replay_buffer.groups)
        if all(reward is None for group in self.replay_buffer.groups.used for reward in group.votes):
            raise NothingToTrain(self.global_steps)
        return super()._balance_batch(batch, metrics, *args, **kwargs)

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], timing_raw: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, **kwargs)
        trajectories = batch_metrics.fetch(batch)
        row = batch_metrics.reward_metrics(trajectories)
        row.update(self.end_groups())
        row.update({name: value for name, value in metrics.items() if name.startswith("async/")})
        row.update({ours: float(metrics[verls]) for verls, ours in VERL_METRICS.items() if verls in metrics})
        row.update(sandbox_metrics())
        row.update(self.tender.metrics())
        self.run_dir.append_trajectories(batch_metrics.trajectory_rows(trajectories, self.global_steps))
        self._track(row, kind="train")

    def _validate(self) -> dict[str, float]:
        metrics = super()._validate()
        self._track(metrics, kind="validation")
        return metrics

    def _val_metrics_update(
        self, data_sources: list[str], sample_uids: Any, infos: dict[str, list], turns: list[int], **_: Any
    ) -> dict[str, float]:
        main_split = next(iter(self.config.tasks.validation_splits), "")  # none: evaluation sets alone
        return batch_metrics.validation_metrics(data_sources, infos, turns, main_split)

    def _track(self, row: dict[str, Any], kind: str) -> None:
        assert self.tracker is not None
        self.tracker.log(row, step=self.global_steps, kind=kind)


@register_trainer("prm_sync")
class SyncTrainer(WatchedTrainer, PPOTrainerSync):
    """Rollout and update in turn: verl's `sync` mode."""

    verl_mode = "sync"
