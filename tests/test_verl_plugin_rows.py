"""What a trajectory becomes in verl's batch: step rewards at step ends, a mask of zeros when the reward is missing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("verl")

from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, get_adv_estimator_fn

import datapm_rl.verl_plugin.advantage  # noqa: F401
from datapm_rl.verl_plugin.output import RewardedOutput, missing_info, reward_info
from datapm_rl.verl_plugin.run_state import TooManyMissing

pytestmark = pytest.mark.unit


def output(info, spans=((0, 2), (4, 6))) -> RewardedOutput:
    steps = [{"span": span} for span in spans]
    return RewardedOutput(
        prompt_ids=[1, 2],
        response_ids=[3, 4, 5, 6, 7, 8],
        response_mask=[1, 1, 0, 0, 1, 1],
        response_logprobs=[-0.5] * 6,
        reward_score=info["total"] or 0.0,
        num_turns=len(steps),
        metrics={},
        extra_fields={"trajectory": {"steps": steps}, "reward_extra_info": info},
    )


def scored(total, step_rewards):
    return reward_info(
        total=total,
        outcome=1.0,
        process=0.5,
        step_scores=[0.0, 1.0],
        step_rewards=step_rewards,
        overridden=True,
        cause=None,
    )


def test_step_rewards_lie_on_step_ends_and_sum_to_the_total():
    row = output(scored(0.875, [0.125, 0.75])).as_dict()
    assert row["rm_scores"].tolist() == [0, 0.125, 0, 0, 0, 0.75]
    assert row["response_mask"].tolist() == [1, 1, 0, 0, 1, 1]


def test_missing_reward_is_masked_not_zero():
    row = output(missing_info("sandbox_lost")).as_dict()
    assert row["response_mask"].sum() == 0
    assert row["rm_scores"].sum() == 0


def test_all_infos_have_the_same_keys():
    assert scored(1.0, []).keys() == missing_info("x").keys()


def test_masked_member_does_not_vote():
    rewards = torch.zeros(4, 3)
    rewards[:, 2] = torch.tensor([1.0, 1.0, 0.0, 0.0])
    mask = torch.ones(4, 3)
    mask[1] = 0
    advantage, _ = get_adv_estimator_fn("prm_grpo_trajectory")(
        token_level_rewards=rewards, response_mask=mask, config={"norm_adv_by_std_in_grpo": False}, index=["g"] * 4
    )
    np.testing.assert_allclose(advantage[:, 2], [2 / 3, 0, -1 / 3, -1 / 3], atol=1e-6)


def test_outcome_only_equals_verls_grpo():
    torch.manual_seed(0)
    rewards = torch.zeros(8, 5)
    rewards[:, 4] = torch.bernoulli(torch.full((8,), 0.5))
    mask = torch.ones(8, 5)
    mask[:, 2] = 0
    groups = np.array(["a"] * 4 + ["b"] * 4, dtype=object)
    ours, _ = get_adv_estimator_fn("prm_grpo_trajectory")(
        token_level_rewards=rewards, response_mask=mask, config={"norm_adv_by_std_in_grpo": True}, index=groups
    )
    verls, _ = compute_grpo_outcome_advantage(rewards, mask, groups)
    torch.testing.assert_close(ours, verls, atol=1e-5, rtol=1e-5)


def test_stop_message_lists_causes():
    import pickle

    error = pickle.loads(pickle.dumps(TooManyMissing(3, 0.75, {"deadline": 6}, {"endpoint_down": 20, "no_verdict": 1})))
    assert "step 3: 75%" in str(error)
    assert "6 x deadline; verdicts: 20 x endpoint_down, 1 x no_verdict" in str(error)
