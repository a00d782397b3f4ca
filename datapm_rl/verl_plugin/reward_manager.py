"""verl's RewardLoop hook: the worker that verifies steps and forms rewards.

verl starts `reward.num_workers` RewardLoop workers, each with one `ProcessRewardManager`. Agent loops send it two kinds
of request (`reward_client.py`): `verify`, one per step, answered while the rollout goes on; and `reward`, one per
finished trajectory, which grades the answer (the only place that sees the gold) and applies eq. 10 and eq. 8.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from omegaconf import DictConfig
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from datapm_rl.benchmarks import grade
from datapm_rl.chat import Chat
from datapm_rl.chat.client import EndpointChat
from datapm_rl.errors import cause_of
from datapm_rl.reward.combine import step_rewards, trajectory_reward
from datapm_rl.sandbox.client import RemoteSession
from datapm_rl.trajectory import Outcome, step_from_json, task_from_json, to_json, verdict_from_json
from datapm_rl.verifier.base import CodeRunner, VerificationRequest
from datapm_rl.verifier.registry import endpoint_chat, make_verifier
from datapm_rl.verifier.scheduler import Scheduler
from datapm_rl.verifier.trust import CheckedBranches
from datapm_rl.verl_plugin.output import missing_info, reward_info
from datapm_rl.verl_plugin.policy_chat import PolicyChat
from datapm_rl.verl_plugin.sandbox_actor import sandbox_handle


class ProcessRewardManager(RewardManagerBase):
    """Verifies steps with the configured verifier and forms trajectory rewards."""

    def __init__(self, config: DictConfig, tokenizer: Any, compute_score: Any, **kwargs: Any):
        super().__init__(config, tokenizer, compute_score)
        self.prm = config.prm
        verifier = make_verifier(config.prm, lambda: self._chat(config, kwargs.get("reward_router_address")))
        self.scheduler = Scheduler(verifier, config.prm.concurrency) if verifier else None
        self.max_turns = config.agent.max_turns

    @staticmethod
    def _chat(config: DictConfig, router: str | None) -> Chat:
        """Who answers the verifier: endpoints of the configuration, verl's reward model pool, or the policy itself."""
        prm = config.prm
        if prm.verifier == "self_reward" and prm.endpoint is None:
            return PolicyChat(config.actor_rollout_ref.rollout.name)
        if prm.endpoint == "pool":
            return EndpointChat([f"http://{router}/v1"], model=config.reward.reward_model.model_path)
        return endpoint_chat(prm)

    async def run_single(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request; see the module docstring. Exceptions become missing values here or in the client.

        verl's worker hands over what it was given: a plain dict instead of a DataProto, which would be pickled anew
        for every step of every trajectory.
        """
        return await self._verify(request) if request["kind"] == "verify" else self._reward(request)

    async def _verify(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.scheduler is not None, "a verification was asked for although prm.verifier=none"
        task = task_from_json(request["task"])
        step = step_from_json(request["step"])

        actor = sandbox_handle(request["sandbox"])
        session = RemoteSession(actor, request["session_id"], self.prm.deadline_s)
        history = [step_from_json(row) for row in request["history"]]
        runs = sum(past.code is not None for past in [*history, step])  # a session counts runs, not turns

        branches = CheckedBranches(session, runs, self.prm.tamper_policy)

        @asynccontextmanager
        async def fresh() -> AsyncIterator[CodeRunner]:
            pristine = await RemoteSession.open(actor, task.data_dir, list(task.files), 0, self.prm.deadline_s)
            try:
                yield pristine
            finally:
                await pristine.close()

        verification = VerificationRequest(
            task=task,
            history=history,
            verdicts=[verdict_from_json(row) for row in request["verdicts"]],
            step=step,
            branch=branches.branch,
            probe=branches.probe,
            fresh=fresh,
            max_turns=self.max_turns,
            deadline_s=self.prm.deadline_s,
        )
        return to_json(branches.judged(await self.scheduler.verify(verification)))

    def _reward(self, request: dict[str, Any]) -> dict[str, Any]:
        row = request["trajectory"]
        outcome = grade_answer(row["task"]["grader"], row["answer"], request["gold"])
        verdicts = [verdict_from_json(verdict) for verdict in row["verdicts"]]
        beta = self.prm.beta if verdicts else 0.0  # validation, or no verifier: the outcome alone
        reward = trajectory_reward(outcome, verdicts, beta)
        if reward.total is None:
            return missing_info(reward.cause or "unknown")
        return reward_info(
            total=reward.total,
            outcome=outcome.score,
            process=reward.process,
            step_scores=reward.step_scores,
            step_rewards=step_rewards(reward, n_steps=len(row["steps"]), beta=beta),
            overridden=reward.overridden,
            cause=None,
        )


def grade_answer(grader: str, answer: str | None, gold: str) -> Outcome:
    """Outcome of a final answer. No answer is the agent's 0; a grader that fails is missing."""
    try:
        pairs = [(str(name), str(value)) for name, value in json.loads(gold)]
        return Outcome(grade(grader, answer or "", pairs).score, grader)
    except Exception as error:  # the boundary: a broken grader is missing data
        return Outcome(None, grader, cause=f"grader_{cause_of(error)}")
