"""Overlong trajectories in a batch: left out by choice is not missing, and a penalty is part of the reward's terms."""

from __future__ import annotations

import pytest

pytest.importorskip("verl")

import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

import datapm_rl.verl_plugin.advantage  # noqa: F401
from datapm_rl.agent import Rollout
from datapm_rl.trajectory import StopReason, Task, Trajectory
from datapm_rl.verl_plugin.batch_metrics import reward_metrics
from datapm_rl.verl_plugin.groups import Group
from datapm_rl.verl_plugin.output import RewardedOutput, missing_info, reward_info, vote, with_overlong
from datapm_rl.verl_plugin.run_state import NothingToTrain

pytestmark = pytest.mark.unit

MASK = [1, 1, 0, 0, 1, 1]


def info(total: float = 0.75) -> dict:
    return reward_info(
        total=total,
        outcome=1.0,
        process=0.5,
        step_scores=[0.0, 1.0],
        step_rewards=[0.125, total - 0.125],
        overridden=False,
        cause=None,
    )


def rollout(stop_reason=StopReason.CONTEXT, tokens: int = 6) -> Rollout:
    trajectory = Trajectory(Task("t", "?", "", "/d", (), ()), stop_reason=stop_reason)
    return Rollout(trajectory, [1], list(range(tokens)), [1] * tokens, [0.0] * tokens)


def overlong(policy: str, penalty: float = 0.5):
    return OmegaConf.create({"policy": policy, "buffer_tokens": 4, "penalty": penalty})


def row(info: dict) -> dict:
    output = RewardedOutput(
        prompt_ids=[1],
        response_ids=[3, 4, 5, 6, 7, 8],
        response_mask=MASK,
        response_logprobs=[-0.5] * 6,
        reward_score=info["total"] or 0.0,
        num_turns=2,
        metrics={},
        extra_fields={"trajectory": {"steps": [{"span": (0, 2)}, {"span": (4, 6)}]}, "reward_extra_info": info},
    )
    return output.as_dict()


def extra(info: dict, stop_reason: str = "answered", task: str = "t") -> dict:
    attempt = {"task": {"id": task}, "steps": [], "verdicts": [], "stop_reason": stop_reason}
    return {"trajectory": attempt, "reward_extra_info": info}


def test_no_policy_leaves_the_reward_alone():
    assert with_overlong(info(), rollout(), overlong("none"), limit=8) == info()


def test_cut_off_is_masked_and_still_has_its_reward():
    masked = with_overlong(info(), rollout(), overlong("mask"), limit=8)
    assert (masked["excluded"], masked["total"], masked["missing_cause"]) == ("overlong", 0.75, None)
    assert vote(masked) is None
    assert row(masked)["response_mask"].sum() == 0
    assert row(masked)["rm_scores"].sum() == 0


@pytest.mark.parametrize("reason", [StopReason.ANSWERED, StopReason.MAX_TURNS, StopReason.AGENT_ERROR])
def test_only_a_token_budget_masks(reason):
    assert with_overlong(info(), rollout(reason), overlong("mask"), limit=6) == info()


def test_penalty_grows_in_the_buffer_and_terms_still_sum_to_the_total():
    shaped = with_overlong(info(), rollout(StopReason.ANSWERED, tokens=6), overlong("shape"), limit=8)
    assert shaped["overlong_penalty"] == 0.25  # half of the buffer of 4 is used
    assert shaped["total"] == sum(shaped["step_rewards"]) == 0.5
    assert shaped["step_rewards"][0] == 0.125, "earlier steps keep what they earned"
    assert row(shaped)["rm_scores"].sum() == 0.5
    assert row(shaped)["response_mask"].tolist() == MASK


@pytest.mark.parametrize("policy", ["none", "mask", "shape"])
def test_missing_reward_stays_missing_under_every_policy(policy):
    lost = missing_info("sandbox_lost")
    assert with_overlong(lost, rollout(), overlong(policy), limit=6) == lost
    assert vote(lost) is None


def test_all_infos_have_the_same_keys():
    """verl takes the keys of the first row for all (peers.md C 49)."""
    infos = [missing_info("x"), *(with_overlong(info(), rollout(), overlong(p), limit=8) for p in ("mask", "shape"))]
    assert all(one.keys() == info().keys() for one in infos)


def test_left_out_by_choice_is_not_missing_data():
    masked = with_overlong(info(), rollout(), overlong("mask"), limit=8)
    batch = [extra(info()), extra(masked, "context"), extra(masked, "length"), extra(missing_info("deadline"))]
    group = Group.of(batch)
    assert group.missing == {"deadline": 1}
    assert (group.failed, group.silent) == (False, True), "its rewards are there, and one voter teaches nothing"
    assert reward_metrics(batch)["reward/overlong_share"] == pytest.approx(2 / 3)
    assert reward_metrics(batch)["reward/overlong_penalty_mean"] == 0.0


def test_left_out_member_does_not_make_a_group_vary():
    masked = with_overlong(info(0.0), rollout(), overlong("mask"), limit=8)
    assert reward_metrics([extra(info()), extra(info()), extra(masked)])["group/zero_variance_share"] == 1.0


@pytest.mark.parametrize("estimator", ["prm_grpo_trajectory", "prm_grpo_step"])
def test_left_out_member_does_not_vote(estimator):
    masked = with_overlong(info(0.0), rollout(), overlong("mask"), limit=8)
    rows = [row(info(1.0)), row(info(0.5)), row(masked)]
    rewards, mask = (torch.stack([r[name] for r in rows]) for name in ("rm_scores", "response_mask"))
    estimate = get_adv_estimator_fn(estimator)
    everyone, _ = estimate(token_level_rewards=rewards, response_mask=mask, config={}, index=["g"] * 3)
    others, _ = estimate(token_level_rewards=rewards[:2], response_mask=mask[:2], config={}, index=["g"] * 2)
    assert torch.equal(everyone[:2], others)
    assert (everyone[2] == 0).all()


def test_stop_because_all_are_left_out_says_what_to_change_and_travels():
    import pickle

    error = pickle.loads(pickle.dumps(NothingToTrain(3)))
    assert "step 3: overlong.policy=mask leaves no trajectory" in str(error)
    assert "overlong.policy=shape" in str(error)
