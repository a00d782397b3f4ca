"""DataPRM's verification loop: think, run code on a branch of the agent's state, look, and judge (eq. 3-6).

    h_{t,0} = h_t + f_t + tau_t      the prompt (`prompt.render`)                                          eq. 3, 6
    h_{t,k+1} = h_{t,k} + kappa_k    a reply of the model, its code's output                               eq. 4
    (z_K, r_t, c_t)                  the reply that holds a score and a rationale instead of code          eq. 5

At most `rounds` replies are taken, the last one with the verdict; a reply that is neither code nor verdict is asked for
again once. Everything that is said and run goes to `request.record`, so that it is kept when the verification fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from typing import Any

from datapm_rl.chat import Chat, ChatReply, ChatSampling, Message
from datapm_rl.dialects.describe import error_text, failed, shown
from datapm_rl.errors import InfraError
from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.trajectory import StepStatus, Verdict
from datapm_rl.verifier.base import CodeRunner, VerificationRequest
from datapm_rl.verifier.budget import Budget, Part
from datapm_rl.verifier.prompt import LAST_ROUND, THINK_ON, PromptForm, re_ask, render, wrap_interpreter
from datapm_rl.verifier.reply import NO_SCORE, Reply, read_reply
from datapm_rl.verifier.tools import ToolBox


class GenerativeVerifier:
    """See the module docstring. Safe for many verifications at a time in one event loop."""

    aggregation = "mean"

    def __init__(
        self,
        chat: Chat,
        sampling: ChatSampling,
        budget: Budget,
        tools: ToolBox,
        form: PromptForm | None = None,
        rounds: int = 10,
        name: str = "generative",
    ):
        """`form`: the variant of Table 3. `rounds`: K, replies of one verification."""
        self.name = name
        self._chat, self._budget, self._tools = chat, budget, tools
        self._form = form or PromptForm()
        self._sampling = dataclasses.replace(sampling, stop=("</code>",) if self._form.environment else ())
        if self._form.multi_turn:
            self._exchanges = rounds - 1
        else:
            self._exchanges = 1 if self._form.environment else 0

    async def verify(self, request: VerificationRequest) -> Verdict:
        """The verdict of one step.

        InfraError: no_verdict (unreadable after the re-ask), context_exceeded, endpoint_... (`Chat.complete`),
        deadline, or the cause of a sandbox failure.
        """
        if request.step.status is StepStatus.INFRA_ERROR:
            raise InfraError(request.step.cause or "step_lost", "the step itself was lost")
        messages = render(request, tools=self._tools.signatures, form=self._form)
        exchanges, asked_again = 0, False
        async with contextlib.AsyncExitStack() as places:
            place: CodeRunner | None = None
            while True:
                reply = await self._reply(messages, request)
                said = read_reply(reply.text, reply.finish, self._form.scores, runs_code=self._form.environment)
                turn = _turn(reply, said)
                request.record.turns.append(turn)
                if said.score is not None:
                    return self._verdict(said, request)
                if self._goes_on(said) and exchanges < self._exchanges:
                    exchanges += 1
                    if said.code is not None:
                        place = place or await places.enter_async_context(request.branch())
                        answer = wrap_interpreter(await self._run(said.code, place, turn), exchanges)
                    else:
                        answer = [Part(THINK_ON)]
                    if exchanges == self._exchanges:
                        answer.append(Part(f"\n{LAST_ROUND}"))
                elif asked_again:
                    raise InfraError("no_verdict", said.problem or "code although no round is left")
                else:
                    asked_again, answer = True, [Part(re_ask(said.problem, self._form))]
                messages += [{"role": "assistant", "content": said.used_text}, {"role": "user", "content": answer}]

    def _goes_on(self, said: Reply) -> bool:
        """Whether a reply without a verdict is a step of the verification: code, or a thought where code cannot run."""
        return said.code is not None or said.problem == NO_SCORE

    async def _reply(self, messages: list[Message], request: VerificationRequest) -> ChatReply:
        left = request.record.started + request.deadline_s - time.monotonic()
        if left <= 0:
            raise InfraError("deadline", f"the verification took longer than {request.deadline_s:g} s")
        fitted, request.record.cut = self._budget.fit(messages)
        return await self._chat.complete(fitted, self._sampling, left)

    async def _run(self, code: str, place: CodeRunner, turn: dict[str, Any]) -> str:
        """What the model sees of its code. InfraError: the sandbox failed."""
        calls: list[dict[str, Any]] = []
        result = await place.run(code, functools.partial(self._tools.answer, calls=calls))
        turn["status"], turn["tool_calls"] = str(result.status), calls
        if result.status is StepStatus.INFRA_ERROR:
            raise InfraError(result.cause or "sandbox_lost", result.error or "")
        turn["output"] = _output(result)
        return turn["output"]

    def _verdict(self, said: Reply, request: VerificationRequest) -> Verdict:
        record = request.record
        return Verdict(
            score=said.score,
            rationale=said.rationale,
            verifier=self.name,
            trace=record.turns,
            cost=record.cost(),
            cut=record.cut,
        )


def _turn(reply: ChatReply, said: Reply) -> dict[str, Any]:
    return {
        "reply": reply.text,
        "code": said.code,
        "output": None,
        "status": None,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "seconds": reply.seconds,
        "tool_calls": [],
    }


def _output(result: ExecutionResult) -> str:
    """As the official interpreter words it: what was printed; if the code failed, with the traceback behind it."""
    if not failed(result):
        return shown(result)
    return "\n".join(part for part in ("[Error]:", shown(result), error_text(result)) if part)
