"""The switches of docs/training.md: what a composed configuration means to verl, and which settings are refused."""

from __future__ import annotations

import json
from functools import cache

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

pytest.importorskip("verl")

from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
from verl.trainer.ppo.utils import need_reference_policy
from verl.utils.config import omega_conf_to_dataclass

import datapm_rl.verl_plugin.advantage
import datapm_rl.verl_plugin.policy_loss
from datapm_rl.compose import compose_config, recipes
from datapm_rl.errors import UserError
from datapm_rl.preflight_algorithm import check_algorithm, check_context

pytestmark = pytest.mark.unit

ACTOR, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"


@cache
def base(recipe: str) -> DictConfig:
    return compose_config([f"+recipe={recipe}"])


def composed(*overrides: str, recipe: str = "smoke") -> DictConfig:
    """A recipe with `key=value` overrides, checked. Composed once: that takes a second, and there are many cases."""
    config = base(recipe).copy()
    for key, value in (override.split("=") for override in overrides):
        OmegaConf.update(config, key, yaml.safe_load(value))
    check_algorithm(config)
    return config


@pytest.mark.parametrize("credit", ["trajectory", "step"])
def test_credit_chooses_a_registered_estimator(credit):
    name = composed(f"prm.credit={credit}").algorithm.adv_estimator
    assert get_adv_estimator_fn(name) is getattr(datapm_rl.verl_plugin.advantage, name)


@pytest.mark.parametrize("recipe", recipes())
def test_every_recipe_has_the_papers_loss_without_kl(recipe):
    config = composed(recipe=recipe)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c) == (0.2, 0.28, 3.0)
    assert actor.loss_agg_mode == "token-mean"
    assert get_policy_loss_fn(actor.policy_loss.loss_mode) is datapm_rl.verl_plugin.policy_loss.clipped_loss
    assert not actor.use_kl_loss
    assert not need_reference_policy(config)


def test_rollout_correction_is_on_where_the_engines_differ_and_off_where_they_are_one():
    apart, same = (composed(recipe=r).algorithm.rollout_correction for r in ("dabench", "smoke"))
    assert (apart.rollout_is, apart.rollout_is_threshold, apart.bypass_mode) == ("token", 2.0, False)
    assert same.rollout_is is None
    assert composed(f"{CORRECTION}.rollout_is=token").algorithm.rollout_correction.rollout_is == "token"


def test_kl_loss_is_one_switch_and_brings_the_reference_model():
    config = composed(f"{ACTOR}.use_kl_loss=true")
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert need_reference_policy(config)
    assert (actor.kl_loss_type, actor.kl_loss_coef) == ("low_var_kl", 0.001)


def test_kl_in_reward_is_possible_without_the_std():
    config = composed("algorithm.use_kl_in_reward=true", "algorithm.norm_adv_by_std_in_grpo=false")
    assert need_reference_policy(config)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["prm.credit=turn"], "trajectory, step"),
        (["algorithm.adv_estimator=grpo"], "does not know missing rewards"),
        (["algorithm.adv_estimator=prm_grpo_step"], "prm.credit=trajectory"),
        (["overlong.policy=filter"], "none, mask, shape"),
        (["overlong.policy=shape", "overlong.buffer_tokens=9000"], "at most data.max_response_length"),
        (["overlong.policy=shape", "overlong.buffer_tokens=0"], "at least 1"),
        (["overlong.policy=shape", "overlong.buffer_tokens=40", "overlong.penalty=-1"], "positive"),
        ([f"{ACTOR}.clip_ratio_low=1.5"], "between 0 and 1"),
        ([f"{ACTOR}.clip_ratio_high=wide"], "must be a number"),
        ([f"{ACTOR}.clip_ratio_c=1.1"], "above 1 + clip_ratio_high=1.28"),
        ([f"{ACTOR}.entropy_coeff=-0.1"], "bonus"),
        ([f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef=0"], "for nothing"),
        ([f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_type=full"], "low_var_kl"),
        (["algorithm.use_kl_in_reward=true"], "norm_adv_by_std_in_grpo=false"),
        ([f"{CORRECTION}.rollout_is=turn"], "null, token, sequence"),
        ([f"{CORRECTION}.rollout_rs=seq_mean_k3"], "rollout_rs_threshold"),
        (
            [f"{CORRECTION}.rollout_is=token", "actor_rollout_ref.rollout.calculate_log_probs=false"],
            "calculate_log_probs",
        ),
        ([f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.bypass_mode=true"], "applies none of the others"),
        (
            [f"{CORRECTION}.rollout_rs=token_k1", f"{CORRECTION}.rollout_rs_threshold=0.5_2", "prm.credit=step"],
            "part its step in two",
        ),
        (["actor_rollout_ref.rollout.max_model_len=100"], "cut turns without saying so"),
    ],
)
def test_impossible_option_is_one_sentence(overrides, said):
    with pytest.raises(UserError) as caught:
        composed(*overrides)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", [{"max_position_embeddings": 500}, {"text_config": {"max_position_embeddings": 500}}])
def test_policy_whose_context_is_too_short_is_refused(model, tmp_path):
    """verl#7823: a response cut by the model's length was not counted as cut."""
    (tmp_path / "config.json").write_text(json.dumps(model))
    with pytest.raises(UserError, match="context of 500 tokens"):
        check_context(composed(), tmp_path)
    check_context(OmegaConf.create({"data": {"max_prompt_length": 100, "max_response_length": 400}}), tmp_path)
