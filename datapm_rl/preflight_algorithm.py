"""What can be known to be wrong with the algorithm's settings (docs/training.md), one sentence each (`UserError`)."""

from __future__ import annotations

import json
import math
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from datapm_rl.errors import UserError
from datapm_rl.reward import overlong

CREDITS = ("trajectory", "step")
KL_ESTIMATES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
"""verl's names; a `+` behind one takes the gradient of k2."""
ACTOR = "actor_rollout_ref.actor"
CORRECTION = "algorithm.rollout_correction"


def check_algorithm(config: DictConfig) -> None:
    """Impossible values and combinations of credit, overlong policy, loss, KL terms and rollout correction."""
    _check_credit(config)
    _check_overlong(config)
    _check_loss(config)
    _check_kl(config)
    _check_rollout_correction(config)


def check_context(config: DictConfig, folder: Path) -> None:
    """Whether a trajectory fits the context of the policy in `folder`. The rollout server cuts a turn at its end, and
    the agent loop would take what it got for the turn that the policy chose."""
    model = json.loads((folder / "config.json").read_text())
    room = model.get("text_config", model).get("max_position_embeddings")
    whole = config.data.max_prompt_length + config.data.max_response_length
    if isinstance(room, int) and room < whole:
        raise UserError(
            f"{folder} has a context of {room} tokens, fewer than data.max_prompt_length + data.max_response_length="
            f"{whole}: lower them, or take a model with more"
        )


def _number(config: DictConfig, key: str) -> float:
    """verl's keys have no type."""
    value = OmegaConf.select(config, key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{key}={value} must be a number")
    return value


def _check_credit(config: DictConfig) -> None:
    credit, estimator = config.prm.credit, config.algorithm.adv_estimator
    if credit not in CREDITS:
        raise UserError(f"prm.credit={credit!r} is none of {', '.join(CREDITS)}")
    if estimator != f"prm_grpo_{credit}":
        raise UserError(
            f"algorithm.adv_estimator={estimator} does not know missing rewards, or contradicts prm.credit={credit}: "
            "leave it out and set prm.credit"
        )


def _check_overlong(config: DictConfig) -> None:
    policy, buffer, limit = config.overlong.policy, config.overlong.buffer_tokens, config.data.max_response_length
    room, whole = config.actor_rollout_ref.rollout.max_model_len, config.data.max_prompt_length + limit
    if room is not None and room < whole:
        raise UserError(
            f"actor_rollout_ref.rollout.max_model_len={room} is below data.max_prompt_length + data.max_response_length"
            f"={whole}: the rollout server would cut turns without saying so"
        )
    if policy not in overlong.POLICIES:
        raise UserError(f"overlong.policy={policy!r} is none of {', '.join(overlong.POLICIES)}")
    if policy != "shape":
        return
    if not 0 < buffer <= limit:
        raise UserError(
            f"overlong.buffer_tokens={buffer} must be at least 1 and at most data.max_response_length={limit}: the "
            "penalty grows over the last tokens of the response"
        )
    if _number(config, "overlong.penalty") <= 0:
        raise UserError(f"overlong.penalty={config.overlong.penalty} must be positive: it is taken off r_total")


def _check_loss(config: DictConfig) -> None:
    low, high = _number(config, f"{ACTOR}.clip_ratio_low"), _number(config, f"{ACTOR}.clip_ratio_high")
    if not 0 < low < 1 or high <= 0:
        raise UserError(
            f"{ACTOR}.clip_ratio_low={low} must lie between 0 and 1, and clip_ratio_high={high} above 0: they bound "
            "the ratio by [1 - low, 1 + high] (eq. 7)"
        )
    if _number(config, f"{ACTOR}.clip_ratio_c") <= 1 + high:
        raise UserError(
            f"{ACTOR}.clip_ratio_c={config.actor_rollout_ref.actor.clip_ratio_c} must be above 1 + clip_ratio_high="
            f"{1 + high:g}: dual clip bounds the ratios that the first clip lets through"
        )
    if _number(config, f"{ACTOR}.entropy_coeff") < 0:
        raise UserError(
            f"{ACTOR}.entropy_coeff={config.actor_rollout_ref.actor.entropy_coeff} would punish entropy: it weighs a "
            "bonus, from 0 on"
        )


def _check_kl(config: DictConfig) -> None:
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    if actor.use_kl_loss and _number(config, f"{ACTOR}.kl_loss_coef") <= 0:
        raise UserError(
            f"{ACTOR}.use_kl_loss=true with kl_loss_coef={actor.kl_loss_coef} runs a reference model for nothing: "
            "raise the coefficient, or set use_kl_loss=false"
        )
    for used, key, kind in (
        (actor.use_kl_loss, f"{ACTOR}.kl_loss_type", actor.kl_loss_type),
        (algorithm.use_kl_in_reward, "algorithm.kl_penalty", algorithm.kl_penalty),
    ):
        if used and str(kind).removesuffix("+") not in KL_ESTIMATES:
            raise UserError(f"{key}={kind} is none of {', '.join(KL_ESTIMATES)}")
    if algorithm.use_kl_in_reward and algorithm.norm_adv_by_std_in_grpo:
        raise UserError(
            "algorithm.use_kl_in_reward=true makes equal rewards differ a little, and their std would make that a "
            f"whole signal: set algorithm.norm_adv_by_std_in_grpo=false, or use {ACTOR}.use_kl_loss=true instead"
        )


def _check_rollout_correction(config: DictConfig) -> None:
    correction = config.algorithm.rollout_correction
    level, rejection, bypass = correction.rollout_is, correction.rollout_rs, correction.bypass_mode
    if level not in (None, "token", "sequence"):
        raise UserError(f"{CORRECTION}.rollout_is={level} is none of null, token, sequence")
    if rejection is not None and correction.rollout_rs_threshold is None:
        raise UserError(f"{CORRECTION}.rollout_rs={rejection} needs rollout_rs_threshold")
    if (level or rejection or bypass) and not config.actor_rollout_ref.rollout.calculate_log_probs:
        raise UserError(
            f"{CORRECTION} compares with the rollout's log-probs: set actor_rollout_ref.rollout.calculate_log_probs="
            f"true, or {CORRECTION}.rollout_is=null"
        )
    if bypass and (level or rejection or correction.loss_type != "ppo_clip"):
        raise UserError(
            f"{CORRECTION}.bypass_mode=true takes the rollout's log-probs for the old ones, and verl's v1 trainer then "
            "applies none of the others: set rollout_is=null, rollout_rs=null, loss_type=ppo_clip"
        )
    if rejection is not None and "token_" in str(rejection) and config.prm.credit == "step":
        raise UserError(
            f"{CORRECTION}.rollout_rs={rejection} rejects single tokens, each of which would part its step in two: "
            "with prm.credit=step use a seq_ option"
        )
