"""One agent trajectory: generate -> parse -> run code -> observe, until an answer or a limit.

Tokens in, tokens out: the loop keeps the ids, mask (1 on the model's tokens, 0 on observations) and log-probs of the
response side by side with the structured steps. It knows no engine and no trainer: `generate` is any coroutine from
ids to a `Generation`, and `session` any place to run code in. It never raises for what an agent or a sandbox does: the
stop reason says what happened (docs/architecture.md, "Error model").
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from datapm_rl.agent.tokens import ChatTokens
from datapm_rl.dialects import Dialect
from datapm_rl.trajectory import Step, StepStatus, StopReason, Task, Trajectory
from datapm_rl.verifier.base import CodeRunner


@dataclass
class Generation:
    """One sampled turn. `finish` is "stop", "length" or "aborted"; `weight_versions`: trainer steps of the weights that
    produced its first and its last token."""

    token_ids: list[int]
    logprobs: list[float]
    finish: str
    weight_versions: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class AgentLimits:
    """Budgets of one trajectory, in turns, tokens and characters."""

    max_turns: int = 10
    turn_tokens: int = 2048
    response_tokens: int = 8192
    observation_chars: int = 2048


@dataclass
class Rollout:
    """A trajectory with its tokens. The lists below have equal length and end with a model token."""

    trajectory: Trajectory
    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)
    response_logprobs: list[float] = field(default_factory=list)

    def extend(self, ids: list[int], mask: int, logprobs: list[float]) -> None:
        """Append tokens of the model (`mask` 1) or of an observation (`mask` 0)."""
        self.response_ids += ids
        self.response_mask += [mask] * len(ids)
        self.response_logprobs += logprobs

    def drop_trailing_observation(self) -> None:
        """An observation that no turn followed is not part of what is trained on."""
        while self.response_mask and self.response_mask[-1] == 0:
            self.response_ids.pop(), self.response_mask.pop(), self.response_logprobs.pop()


Generate = Callable[[list[int], int], Awaitable[Generation]]
"""From ids of the whole conversation and a token limit to one turn."""


async def run_agent(
    task: Task,
    *,
    dialect: Dialect,
    tokens: ChatTokens,
    generate: Generate,
    session: CodeRunner,
    limits: AgentLimits,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Rollout:
    """Run one trajectory of `task`. `on_step` is called as soon as a step is finished, before the next turn starts."""
    trajectory = Trajectory(task=task)
    rollout = Rollout(trajectory, tokens.prompt(dialect.system_prompt, dialect.user_message(task)))
    stop: StopReason | None = None
    while stop is None:
        room = limits.response_tokens - len(rollout.response_ids)
        if room <= 0:
            stop = StopReason.CONTEXT
            break
        turn_limit = min(limits.turn_tokens, room)
        turn = await generate(rollout.prompt_ids + rollout.response_ids, turn_limit)
        start = len(rollout.response_ids)
        rollout.extend(turn.token_ids, 1, turn.logprobs)
        first, last = trajectory.weight_versions or turn.weight_versions
        trajectory.weight_versions = (min(first, turn.weight_versions[0]), max(last, turn.weight_versions[1]))
        if turn.finish == "aborted":
            stop, trajectory.cause = StopReason.ABORTED, "generation_aborted"
            break
        step = _parse(dialect, tokens.decode(turn.token_ids), len(trajectory.steps) + 1)
        step.span = (start, len(rollout.response_ids))
        trajectory.steps.append(step)
        if step.code is not None:
            await _execute(step, session, dialect, limits.observation_chars)
        on_step(step)
        stop = _stop_reason(step, turn.finish, room, limits)
        if step.answer is not None:
            trajectory.answer = step.answer
        if step.status is StepStatus.INFRA_ERROR:
            trajectory.cause = step.cause
        if stop is None and step.observation is not None:
            ids = tokens.after_turn(turn.token_ids, dialect.wrap_observation(step.observation))
            if len(rollout.response_ids) + len(ids) > limits.response_tokens:
                stop = StopReason.CONTEXT
            else:
                rollout.extend(ids, 0, [0.0] * len(ids))
    trajectory.stop_reason = stop
    rollout.drop_trailing_observation()
    return rollout


def _parse(dialect: Dialect, text: str, index: int) -> Step:
    turn = dialect.parse(text)
    step = Step(index=index, text=text, thought=turn.thought, code=turn.code, answer=turn.answer)
    if turn.code is None and turn.answer is None:
        step.status, step.cause = StepStatus.MALFORMED, turn.problem
    elif turn.code is None:
        step.status = StepStatus.ANSWER
    return step


async def _execute(step: Step, session: CodeRunner, dialect: Dialect, max_chars: int) -> None:
    result = await session.run(step.code or "")
    step.status, step.cause, step.wall_s = result.status, result.cause, result.wall_s
    step.observation = dialect.observation_body(result, max_chars)


def _stop_reason(step: Step, finish: str, room: int, limits: AgentLimits) -> StopReason | None:
    if step.status is StepStatus.ANSWER:
        return StopReason.ANSWERED
    if step.status is StepStatus.INFRA_ERROR:
        return StopReason.INFRA_ERROR
    if step.status is StepStatus.MALFORMED:
        if finish == "length":
            return StopReason.CONTEXT if room <= limits.turn_tokens else StopReason.LENGTH
        return StopReason.AGENT_ERROR
    return StopReason.MAX_TURNS if step.index >= limits.max_turns else None
