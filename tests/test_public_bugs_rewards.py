"""Public bugs of trainers in rewards and judges, tried on ours. All of them: docs/training.md."""

from __future__ import annotations

import json

import pytest
from omegaconf import OmegaConf

pytest.importorskip("verl")

from datapm_rl.compose import compose_config
from datapm_rl.reward import trajectory_reward
from datapm_rl.trajectory import Outcome, Verdict
from datapm_rl.verl_plugin.output import RewardedOutput, reward_info
from datapm_rl.verl_plugin.reward_manager import ProcessRewardManager, grade_answer

pytestmark = pytest.mark.unit

GOLD = json.dumps([["n", "3"]])


@pytest.mark.parametrize(
    ("grader", "gold", "cause"),
    [
        ("dabench", "not json", "grader_"),
        ("dabench", json.dumps([]), "grader_"),  # nothing to compare with
        ("no_such_grader", GOLD, "grader_"),
    ],
)
def test_grader_that_fails_is_missing_and_not_zero(grader, gold, cause):
    """Gym PR#2015, NeMo-RL PR#2479, verl's limited.py: any exception while grading was a reward of 0.0."""
    outcome = grade_answer(grader, "@n[3]", gold)
    assert outcome.score is None
    assert outcome.cause.startswith(cause)


def test_wrong_and_absent_answers_are_zero_and_not_missing():
    """The other way round: what is the agent's must train."""
    assert [grade_answer("dabench", answer, GOLD).score for answer in ("@n[4]", "", None)] == [0.0, 0.0, 0.0]


def test_training_and_validation_grade_the_same_answer_by_the_same_code():
    """verl PR#5091: rewards took another path in validation. Here it lacks the verdicts, and nothing else differs."""
    manager = ProcessRewardManager.__new__(ProcessRewardManager)
    manager.prm = OmegaConf.create({"beta": 0.5})
    trajectory = {"task": {"grader": "dabench"}, "answer": "@n[3]", "steps": [{}, {}], "verdicts": []}
    validated = manager._reward({"trajectory": trajectory, "gold": GOLD})
    judged = [{**vars(Verdict(0.0)), "trace": [], "cut": []} for _ in range(2)]
    trained = manager._reward({"trajectory": {**trajectory, "verdicts": judged}, "gold": GOLD})
    assert validated["acc"] == trained["acc"] == validated["total"] == 1.0
    assert trained["total"] == 0.75  # 0.5 * outcome + 0.5 * mean(0, 1)


def test_one_reward_is_not_spread_over_several_steps():
    """trl PR#6534: a function that returned a single value had it given to all."""
    info = reward_info(
        total=1.0,
        outcome=1.0,
        process=1.0,
        step_scores=[1.0, 1.0],
        step_rewards=[1.0],
        overridden=False,
        cause=None,
    )
    steps = {"trajectory": {"steps": [{"span": (0, 1)}, {"span": (1, 2)}]}, "reward_extra_info": info}
    output = RewardedOutput(
        prompt_ids=[1], response_ids=[1, 2], response_mask=[1, 1], num_turns=2, metrics={}, extra_fields=steps
    )
    with pytest.raises(ValueError, match="zip"):
        output.as_dict()


def test_missing_value_of_one_member_does_not_reach_another():
    """ms-swift#8123: None from one function made the batch NaN, the loss 0.0, and training 'completed'."""
    missing = trajectory_reward(Outcome(1.0, "g"), [Verdict(None, cause="x"), Verdict(None, cause="x")], 0.5)
    whole = trajectory_reward(Outcome(1.0, "g"), [Verdict(1.0), Verdict(None, cause="x")], 0.5)
    assert (missing.total, whole.total) == (None, 1.0)


def test_rollout_correction_leaves_the_settings_as_they_are():
    """verl#4157: it wrote a key into a configuration that takes none, and the step died."""
    import torch
    from verl.protocol import DataProto
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch

    config = compose_config(["+recipe=dabench"]).algorithm.rollout_correction
    OmegaConf.set_struct(config, True)
    before = OmegaConf.to_container(config)
    columns = {"old_log_probs": torch.full((1, 3), -1.0), "rollout_log_probs": torch.full((1, 3), -3.0)}
    batch = DataProto.from_dict({**columns, "response_mask": torch.tensor([[1, 0, 1]])})
    batch, metrics = compute_rollout_correction_and_add_to_batch(batch, config)
    assert batch.batch["rollout_is_weights"].tolist() == [[2.0, 0.0, 2.0]], "exp(2) is truncated"
    assert batch.batch["response_mask"].tolist() == [[1, 0, 1]]
    assert OmegaConf.to_container(config) == before
    assert metrics["rollout_corr/rollout_is_ratio_fraction_high"] == pytest.approx(1.0)
