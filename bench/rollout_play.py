"""One trajectory of `bench.rollout`: the real agent loop, sandbox and verifier, over simulated engines, in an order.

What differs between orders is when a step is handed to `VerdictStream`, which verifies the steps of a trajectory one
after another, since each needs the verdicts before it (eq. 6). All else is the same: also where verification comes
later, the session is still open and has the state after each step.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from bench.rollout_clock import running_loop
from bench.rollout_engine import Engine
from bench.rollout_plan import CHARS_PER_TOKEN, MAX_TURNS, PREFIX_TOKENS, Plan, reply_to, tokenizer
from bench.rollout_session import Sessions
from datapm_rl.agent import AgentLimits, ChatTokens, Generation, run_agent
from datapm_rl.chat import ChatReply, ChatSampling, Message
from datapm_rl.dialects import get_dialect
from datapm_rl.reward.combine import trajectory_reward
from datapm_rl.trajectory import Outcome, Step, Verdict
from datapm_rl.verifier.base import VerificationRequest
from datapm_rl.verifier.budget import Budget, estimate_tokens
from datapm_rl.verifier.react import GenerativeVerifier
from datapm_rl.verifier.scheduler import Scheduler
from datapm_rl.verifier.stream import VerdictStream
from datapm_rl.verifier.tools import ToolBox
from datapm_rl.verifier.trust import CheckedBranches

STOCK, COLOCATED, OURS = "stock", "colocated", "ours"
"""When steps are handed over: at the end of their trajectory (verl with the reward model in a pool of its own), of all
trajectories of the batch (verl with the reward model on the trainer's GPUs), or as soon as they are done."""

CONCURRENCY = 256  # of verifications: prm.concurrency 32 in each of 8 reward workers
_DEADLINE_S = 36_000.0


@dataclass(frozen=True)
class Played:
    """What the trainer and the table need to know of a trajectory. Times are the loop's."""

    tokens: int  # prompt and response
    steps: int
    ended: float  # the last turn is finished
    rewarded: float
    verified_s: list[float]  # of each verification
    verifier_tokens: float


class SimulatedChat:
    """The verifier's endpoint: says what `rollout_plan` wants and takes as long as the engine does."""

    def __init__(self, engine: Engine):
        self._engine = engine

    async def complete(self, messages: list[Message], sampling: ChatSampling, deadline_s: float) -> ChatReply:
        start = running_loop().time()
        prompt = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        text = reply_to(messages)
        cut, stop, _ = text.partition("</code>") if "</code>" in sampling.stop else (text, "", "")
        tokens = (len(prompt) / CHARS_PER_TOKEN, len(text) / CHARS_PER_TOKEN)
        await self._engine.serve(f"{prompt}<assistant>{cut}{stop}", CHARS_PER_TOKEN, *tokens)
        counts = (round(tokens[0]) + PREFIX_TOKENS, round(tokens[1]))
        return ChatReply(cut, "stop", *counts, seconds=running_loop().time() - start, stopped_at=stop or None)


class Player:
    """Plays the trajectories of one run."""

    def __init__(self, sessions: Sessions, policy: Engine, prm: Engine, order: str, batch: int, final: bool | None):
        """`batch`: trajectories of one. `final`: whether final answers are verified; None: as the order does."""
        self._sessions, self._policy, self._order = sessions, policy, order
        self._final = order != OURS if final is None else final
        verifier = GenerativeVerifier(SimulatedChat(prm), ChatSampling(), Budget(24_000, estimate_tokens), ToolBox({}))
        self._scheduler = Scheduler(verifier, CONCURRENCY)
        self._tokens, self._dialect = ChatTokens(tokenizer()), get_dialect("datamind")
        self._all_ended = asyncio.Barrier(batch)
        self.version = 0

    async def play(self, plan: Plan) -> Played:
        """One trajectory with its reward."""
        task, loop, turns = plan.task, running_loop(), iter(plan.turns)
        session = await self._sessions.open(task)
        verified_s: list[float] = []

        async def generate(ids: list[int], limit: int) -> Generation:
            turn = next(turns)[-limit:]
            await self._policy.serve(ids + turn, 1, len(ids), len(turn), session=task.id)
            return Generation(turn, [0.0] * len(turn), "stop", (self.version, self.version))

        async def verify(history: list[Step], verdicts: list[Verdict], step: Step) -> Verdict:
            began = loop.time()
            runs = sum(past.code is not None for past in [*history, step])
            branches = CheckedBranches(session, runs, "clean_room")
            places = (branches.branch, branches.probe, branches.branch)
            request = VerificationRequest(task.public(), history, verdicts, step, *places, MAX_TURNS, _DEADLINE_S)
            verdict = branches.judged(await self._scheduler.verify(request))
            verified_s.append(loop.time() - began)
            return verdict

        stream = VerdictStream(verify)

        def hand_over(step: Step) -> None:
            if self._final or step.answer is None:
                stream.submit(step)

        rollout = await run_agent(
            task,
            dialect=self._dialect,
            tokens=self._tokens,
            generate=generate,
            session=session,
            limits=AgentLimits(MAX_TURNS, 2048, 8192, 2048),
            on_step=hand_over if self._order == OURS else lambda step: None,
        )
        steps, ended = rollout.trajectory.steps, loop.time()
        if self._order == COLOCATED:
            await self._all_ended.wait()
        if self._order != OURS:
            for step in steps:
                hand_over(step)
        verdicts = await stream.finish(_DEADLINE_S)
        missing = [verdict.cause for verdict in verdicts if verdict.score is None]
        assert not missing, missing
        reward = trajectory_reward(Outcome(1.0, "exact"), [*verdicts, Verdict(0.0)][: len(steps)], beta=0.5)
        assert reward.total == 1.0, reward
        rewarded = loop.time()
        await session.close()
        spent = sum(verdict.cost["prompt_tokens"] + verdict.cost["completion_tokens"] for verdict in verdicts)
        tokens = len(rollout.prompt_ids) + len(rollout.response_ids)
        return Played(tokens, len(steps), ended, rewarded, verified_s, spent)
