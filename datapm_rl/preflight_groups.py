"""What can be known to be wrong with the settings for groups (docs/training.md), one sentence each (`UserError`)."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from datapm_rl.errors import UserError

SAMPLER = "trainer.v1.sampler"
FILTER = "algorithm.filter_groups"


def check_groups(config: DictConfig) -> None:
    """Impossible values of refills, deadlines and quarantine, and of dynamic sampling."""
    agent, sampler, filtering = config.agent, config.trainer.v1.sampler, config.algorithm.filter_groups
    if agent.group_deadline_s <= 0:
        raise UserError(f"agent.group_deadline_s={agent.group_deadline_s} must be positive: seconds for a whole group")
    if agent.refills < 0:
        raise UserError(f"agent.refills={agent.refills} must be 0 (never sample a member again) or more")
    for key in ("agent.quarantine_after", f"{FILTER}.max_num_gen_batches", f"{FILTER}.max_inflight_gen_batches"):
        value = OmegaConf.select(config, key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{key}={value} must be a whole number, at least 1")
    if filtering.enable and filtering.metric != "reward":
        raise UserError(
            f"{FILTER}.metric={filtering.metric}: groups are compared by the reward that they are trained on: set it "
            "to reward"
        )
    if not sampler.sync_refill_failed_groups:
        raise UserError(
            f"{SAMPLER}.sync_refill_failed_groups=false: a failed group is replaced in all modes: leave the setting out"
        )
    if config.data.gen_batch_size not in (None, 1):
        raise UserError(
            f"data.gen_batch_size={config.data.gen_batch_size}: prompts are fetched one by one: leave it out"
        )
    if sampler.custom_sampler.path is not None or sampler.custom_sampler.name is not None:
        raise UserError(
            f"{SAMPLER}.custom_sampler would take the place of the replay buffer that knows missing rewards: "
            "leave it out"
        )
