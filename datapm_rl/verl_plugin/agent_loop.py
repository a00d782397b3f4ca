"""verl's AgentLoop hook: one trajectory of the project's agent, verified step by step while it is generated.

Data flow of `DataAgentLoop.run`, once per session of a group:

    sandbox actor: open a session over the task's files
    agent loop:    generate (verl's LLM client) -> parse -> run in the session -> observe -> ...
    each step:     -> RewardLoop worker, which verifies it on a branch of the session, while the next turn is sampled
    the end:       -> RewardLoop worker, which grades the answer and forms the reward (eq. 8, 10)

Nothing here raises for a failed part: the trajectory is sampled again (`agent.refills`), or comes back masked, its
reward missing with a cause, so that verl trains on the others (docs/architecture.md, "Error model").
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from dataclasses import replace
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from datapm_rl.agent import AgentLimits, ChatTokens, Generation, Rollout, run_agent
from datapm_rl.dialects import get_dialect
from datapm_rl.errors import InfraError, cause_of
from datapm_rl.sandbox.client import RemoteSession
from datapm_rl.trajectory import Step, StepStatus, StopReason, Task, Trajectory, Verdict, task_from_json
from datapm_rl.verifier.stream import VerdictStream
from datapm_rl.verl_plugin.output import Info, missing_info, rewarded_output, with_overlong
from datapm_rl.verl_plugin.reward_client import RewardClient
from datapm_rl.verl_plugin.sandbox_actor import local_sandbox_name, sandbox_handle

logger = logging.getLogger(__name__)

CLOSE_S = 10.0
"""Seconds that a member waits for the end of its session."""
GROUP_DEADLINE = "group_deadline"
"""Cause of a member that was not ready when its group's time was up."""


class DataAgentLoop(AgentLoopBase):
    """The agent loop that `agent_loops.yaml` names `data_agent`."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """One member of a group: sampled again when its reward is missing, given up at the group's deadline.

        All members of a group start together, so each keeps the deadline for itself. Validation rows likewise.
        """
        agent = self.config.agent
        deadline = asyncio.get_running_loop().time() + agent.group_deadline_s
        if "temperature" in kwargs["extra_info"]:  # a validation row that is sampled among greedy ones
            sampling_params = {**sampling_params, "temperature": kwargs["extra_info"]["temperature"]}
        given_up: list[str] = []
        while True:
            rollout, info = await self._attempt(sampling_params, deadline, attempt=len(given_up), row=kwargs)
            cause = info["missing_cause"]
            if cause is None or len(given_up) >= agent.refills or not _mends(cause):
                return rewarded_output(rollout, {**info, "given_up": given_up}, filler=self.tokenizer.eos_token_id)
            given_up.append(cause)

    async def _attempt(
        self, sampling_params: dict[str, Any], deadline: float, attempt: int, row: dict[str, Any]
    ) -> tuple[Rollout, Info]:
        """One trajectory and its reward, or what is known of them at `deadline` (of the event loop's clock)."""
        task = task_from_json(json.loads(row["extra_info"]["task"]))
        seed = _seed(self.config.run.seed, row["global_steps"], task.id, int(row["session_id"]), attempt)
        tokens = ChatTokens(self.tokenizer)
        rollout = Rollout(Trajectory(task), tokens.prompt("", task.question))
        try:
            async with asyncio.timeout_at(deadline) as limit:
                rollout = await self._rollout(task, tokens, sampling_params, seed, group=str(row["uid"]))
                info = await self._reward(rollout.trajectory, row["reward_model"]["ground_truth"])
        except Exception as error:  # the boundary: a failed part masks the trajectory, it never stops the group
            cause = GROUP_DEADLINE if limit.expired() else cause_of(error)
            logger.warning("trajectory of task %s lost: %s: %r", task.id, cause, error)
            if not rollout.response_ids:
                rollout.trajectory.stop_reason, rollout.trajectory.cause = StopReason.INFRA_ERROR, cause
            return rollout, missing_info(cause)
        if task.split == "train":  # validation measures answers, not lengths
            info = with_overlong(info, rollout, self.config.overlong, self.rollout_config.response_length)
        return rollout, info

    async def _rollout(
        self, task: Task, tokens: ChatTokens, sampling_params: dict[str, Any], seed: int, group: str
    ) -> Rollout:
        """Run the agent in its own sandbox session; verdicts are in the trajectory when this returns."""
        agent, prm = self.config.agent, self.config.prm
        dialect = get_dialect(agent.dialect)
        session = await self._open_session(task, seed)
        stream = None
        try:
            rewards = RewardClient(self.config.reward.num_workers, key=task.id, deadline_s=prm.trajectory_deadline_s)
            if prm.verifier != "none" and task.split == "train":
                # only the reference verifier may know the reference program, and how the task was made
                shown = task if prm.verifier == "reference" else replace(task, reference="", meta={})

                async def verify(history: list[Step], verdicts: list[Verdict], step: Step) -> Verdict:
                    if step.status is StepStatus.ANSWER and not prm.verify_answers:
                        return Verdict(score=None, skipped=True)
                    return await rewards.verify(shown, local_sandbox_name(), session.id, history, verdicts, step)

                stream = VerdictStream(verify)
            rollout = await run_agent(
                task,
                dialect=dialect,
                tokens=tokens,
                generate=self._generator(sampling_params, dialect.stop, seed, request=f"{group}/{seed}"),
                session=session,
                limits=AgentLimits(
                    max_turns=agent.max_turns,
                    turn_tokens=agent.turn_tokens,
                    response_tokens=self.rollout_config.response_length,
                    observation_chars=agent.observation_chars,
                ),
                on_step=stream.submit if stream else lambda step: None,
            )
            if stream:
                rollout.trajectory.verdicts = await stream.finish(prm.trajectory_deadline_s)
            return rollout
        finally:
            if stream:
                stream.cancel()
            with contextlib.suppress(TimeoutError):  # a session that hangs is left to its lease
                await asyncio.wait_for(session.close(), CLOSE_S)

    async def _open_session(self, task: Task, seed: int) -> RemoteSession:
        actor = sandbox_handle(local_sandbox_name())
        return await RemoteSession.open(actor, task.data_dir, list(task.files), seed, self.config.prm.deadline_s)

    def _generator(self, sampling_params: dict[str, Any], stop: tuple[str, ...], seed: int, request: str) -> Any:
        """`Generate` over verl's LLM client. Each turn has its own sampling seed, the same after a resume."""

        async def generate(ids: list[int], max_tokens: int) -> Generation:
            params = {
                **sampling_params,
                "max_tokens": max_tokens,
                "stop": list(stop),
                "include_stop_str_in_output": True,
                "seed": (seed + len(ids)) % 2**31,
            }
            output = await asyncio.wait_for(
                self.server_manager.generate(request_id=request, prompt_ids=ids, sampling_params=params),
                self.config.agent.turn_deadline_s,
            )
            ids_out = list(output.token_ids)
            if not ids_out:
                raise InfraError("empty_generation", "the rollout server returned no token")
            finish = "aborted" if output.stop_reason == "aborted" else "stop"
            if finish == "stop" and len(ids_out) >= max_tokens:
                finish = "length"
            logprobs = output.log_probs if output.log_probs is not None else [0.0] * len(ids_out)
            first, last = (int(output.extra_fields.get(f"{end}_global_steps") or 0) for end in ("min", "max"))
            return Generation(ids_out, list(logprobs), finish, (first, last))

        return generate

    async def _reward(self, trajectory: Trajectory, gold: str) -> dict[str, Any]:
        """Ask a RewardLoop worker for outcome and reward; a failure is a missing reward with its cause."""
        if trajectory.stop_reason in (StopReason.INFRA_ERROR, StopReason.ABORTED):
            return missing_info(trajectory.cause or str(trajectory.stop_reason))
        client = RewardClient(self.config.reward.num_workers, key=trajectory.task.id, deadline_s=60.0)
        try:
            return await client.reward(trajectory, gold)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # the boundary, as above
            logger.warning("reward of task %s lost: %r", trajectory.task.id, error)
            return missing_info(cause_of(error))


def _mends(cause: str) -> bool:
    """Whether another attempt may go better: not without time, nor before a grader that fails."""
    return cause != GROUP_DEADLINE and not cause.startswith("grader_")


def _seed(run_seed: int, global_step: Any, task_id: str, session_id: int, attempt: int) -> int:
    """A seed per attempt that does not depend on timing, so that a resumed run samples as the first one would."""
    again = f"/{attempt}" if attempt else ""
    text = f"{run_seed}/{int(global_step)}/{task_id}/{session_id}{again}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 2**31
