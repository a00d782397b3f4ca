"""One verification's conversation with a model that judges in words: what is said, and asked again.

Every reply goes to `request.record` at once, so that a verification that fails leaves its trace.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from datapm_rl.chat import Chat, ChatReply, ChatSampling, Message
from datapm_rl.dialects.escape import escape_tags, printable
from datapm_rl.errors import InfraError
from datapm_rl.trajectory import StepStatus, Verdict
from datapm_rl.verifier.base import VerificationRequest
from datapm_rl.verifier.budget import Budget, Part

_RATIONALE_CHARS = 500
_CUT_OFF_CHARS = 2000  # of a reply that was cut off, in the conversation


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

    @property
    def turn(self) -> dict[str, Any]:
        """The last reply's entry in the record."""
        return self._request.record.turns[-1]

    async def reply(self, *stop: str) -> ChatReply:
        """The next reply. InfraError: deadline, context_exceeded, what `Chat.complete` raises."""
        record = self._request.record
        left = record.started + self._request.deadline_s - time.monotonic()
        if left <= 0:
            raise InfraError("deadline", f"the verification took longer than {self._request.deadline_s:g} s")
        messages, record.cut = self._budget.fit(self._messages)
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

    def say(self, reply: ChatReply, *answer: Part) -> None:
        """Go on: the model's reply stays in the conversation, without tokens of chat templates, and is answered."""
        said = reply.text if reply.finish == "stop" else reply.text[:_CUT_OFF_CHARS]
        self._messages.append({"role": "assistant", "content": escape_tags(printable(said), ())})
        self._messages.append({"role": "user", "content": list(answer)})

    def ask_again(self, reply: ChatReply, problem: str | None, wanted: str) -> None:
        """Say what was wrong with a reply and what is wanted. InfraError "no_verdict": it was asked before."""
        if self._asked_again:
            raise InfraError("no_verdict", problem or "")
        self._asked_again = True
        self.say(reply, Part(f"Your reply cannot be used: {problem}. {wanted}"))

    def verdict(self, score: float, rationale: str, name: str) -> Verdict:
        """The verdict with the record of this conversation. Of a long rationale the end is kept."""
        record = self._request.record
        return Verdict(
            score=score,
            rationale=rationale.strip()[-_RATIONALE_CHARS:],
            verifier=name,
            trace=record.turns,
            cost=record.cost(),
            cut=record.cut,
        )


def check_step(request: VerificationRequest) -> None:
    """InfraError: the step was lost by a failure of ours, so there is nothing to judge."""
    if request.step.status is StepStatus.INFRA_ERROR:
        raise InfraError(request.step.cause or "step_lost", "the step itself was lost")
