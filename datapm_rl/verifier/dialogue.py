"""One verification's conversation with a language model: what it says, runs, and is asked again.

All of it goes to `request.record` at once, so that a verification that fails leaves its trace.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from datapm_rl.chat import Chat, ChatReply, ChatSampling, Message
from datapm_rl.dialects.describe import error_text, failed, shown
from datapm_rl.dialects.escape import escape_tags, printable
from datapm_rl.errors import InfraError
from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.trajectory import StepStatus, Verdict
from datapm_rl.verifier.base import VerificationRequest
from datapm_rl.verifier.budget import Budget, Part
from datapm_rl.verifier.reply import RATIONALE_CHARS


class Dialogue:
    """See the module docstring. For one verification."""

    def __init__(
        self,
        request: VerificationRequest,
        chat: Chat,
        sampling: ChatSampling,
        budget: Budget,
        messages: Sequence[Message],
    ):
        """`messages`: the prompt, for `Budget.fit`. InfraError: as `check_step`."""
        check_step(request)
        self._request, self._chat, self._sampling, self._budget = request, chat, sampling, budget
        self._messages = list(messages)
        self._asked_again = False

    async def reply(self, *stop: str) -> ChatReply:
        """The next reply. InfraError: deadline, context_exceeded, what `Chat.complete` raises."""
        record = self._request.record
        left = record.started + self._request.deadline_s - time.monotonic()
        if left <= 0:
            raise InfraError("deadline", f"the verification took longer than {self._request.deadline_s:g} s")
        messages, record.cut = self._budget.fit(self._messages)
        record.prompt = record.prompt or messages
        reply = await self._chat.complete(messages, dataclasses.replace(self._sampling, stop=stop), left)
        record.turns.append(
            {
                "reply": reply.text,
                "code": None,
                "output": None,
                "status": None,
                "prompt_tokens": reply.prompt_tokens,
                "completion_tokens": reply.completion_tokens,
                "seconds": reply.seconds,
                "tool_calls": [],
            }
        )
        return reply

    def ran(self, code: str, result: ExecutionResult, calls: Sequence[dict[str, Any]] = ()) -> str:
        """What the code of the last reply gave, as the official interpreter words it: with the traceback if it failed.

        `calls`: of tools that it made. InfraError: the sandbox failed.
        """
        turn = self._request.record.turns[-1]
        turn.update(code=code, status=str(result.status), tool_calls=list(calls))
        if result.status is StepStatus.INFRA_ERROR:
            raise InfraError(result.cause or "sandbox_lost", result.error or "")
        parts = ("[Error]:", shown(result), error_text(result)) if failed(result) else (shown(result),)
        turn["output"] = "\n".join(part for part in parts if part)
        return turn["output"]

    def say(self, said: str, answer: Sequence[Part]) -> None:
        """Go on: what the model said stays in the conversation, without tokens of chat templates, and is answered."""
        self._messages.append({"role": "assistant", "content": escape_tags(printable(said), ())})
        self._messages.append({"role": "user", "content": list(answer)})

    def ask_again(self, said: str, problem: str | None, wanted: str) -> None:
        """Say why a reply cannot be used (`problem`, a clause) and what is wanted, once.

        InfraError "no_verdict": that was done before.
        """
        if self._asked_again:
            raise InfraError("no_verdict", problem or "")
        self._asked_again = True
        self.say(said[:RATIONALE_CHARS], [Part(f"Your reply cannot be used: {problem}. {wanted}")])

    def verdict(self, score: float, rationale: str, name: str) -> Verdict:
        """The verdict with the record of this conversation. Of a long rationale the end is kept."""
        record = self._request.record
        return Verdict(
            score=score,
            rationale=rationale.strip()[-RATIONALE_CHARS:],
            verifier=name,
            trace=record.turns,
            cost=record.cost(),
            cut=record.cut,
        )


def check_step(request: VerificationRequest) -> None:
    """InfraError: the step was lost by a failure of ours, so there is nothing to judge."""
    if request.step.status is StepStatus.INFRA_ERROR:
        raise InfraError(request.step.cause or "step_lost", "the step itself was lost")
