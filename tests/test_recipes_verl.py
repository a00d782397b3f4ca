"""Every recipe is accepted by verl's own schema: its dataclasses and its `validate_config`, GPU recipes included."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

pytest.importorskip("verl")

from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

from datapm_rl.compose import compose_config, recipes

pytestmark = pytest.mark.unit


@pytest.fixture(params=recipes())
def config(request):
    config = compose_config([f"+recipe={request.param}", "policy.path=some/model"])
    config.data.train_files, config.data.val_files = ["t.jsonl#train"], ["t.jsonl#heldout"]
    return OmegaConf.create(OmegaConf.to_container(config, resolve=True))


def test_recipe_passes_verls_validation(config):
    validate_config(config, need_reference_policy(config), need_critic(config))
    assert not need_critic(config)


def test_recipe_fits_verls_dataclasses(config):
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    omega_conf_to_dataclass(config.algorithm)
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.loss_agg_mode) == (0.2, 0.28, "token-mean")
    assert rollout.n >= 2
    assert rollout.calculate_log_probs


def test_dabench_is_the_papers_table_6():
    config = compose_config(["+recipe=dabench"])
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (actor.optim.lr, actor.optim.lr_warmup_steps, actor.optim.weight_decay) == (1e-6, 20, 0.1)
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size, config.trainer.total_epochs) == (32, 2, 3)
    assert (config.data.max_prompt_length, config.data.max_response_length) == (4096, 8192)
    assert (rollout.temperature, rollout.top_p, rollout.n, config.prm.beta) == (0.7, 1.0, 4, 0.5)
    assert config.agent.max_turns == 10


def test_tablebench_is_dabench_with_another_name():
    """So that one twin stands for both: they differ in the evaluation set, which the command names."""
    twins = [compose_config([f"+recipe={name}", "+scale=cpu", "run.name=twin"]) for name in ("dabench", "tablebench")]
    assert twins[0] == twins[1]


@pytest.mark.parametrize("name", [name for name in recipes() if name not in ("quickstart", "smoke")])
def test_twin_passes_verls_validation_and_keeps_the_recipes_graph(name):
    recipe, twin = (compose_config([f"+recipe={name}", *scale]) for scale in ([], ["+scale=cpu"]))
    for config in (recipe, twin):
        config.data.train_files, config.data.val_files = ["t.jsonl#train"], ["t.jsonl#heldout"]
    resolved = OmegaConf.create(OmegaConf.to_container(twin, resolve=True))
    validate_config(resolved, need_reference_policy(resolved), need_critic(resolved))
    for key in (
        "trainer.v1.trainer_mode",
        "trainer.nnodes",
        "actor_rollout_ref.hybrid_engine",
        "actor_rollout_ref.rollout.n",
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        "actor_rollout_ref.actor.policy_loss.loss_mode",
        "algorithm.adv_estimator",
        "algorithm.rollout_correction.rollout_is",
        "reward.reward_model.enable",
        "prm.verifier",
        "prm.beta",
        "prm.credit",
    ):
        assert OmegaConf.select(twin, key) == OmegaConf.select(recipe, key), key
