"""DataPRM's verification loop: think, run code on a branch of the agent's state, look, and judge (eq. 3-6).

    h_{t,0} = h_t + f_t + tau_t      the prompt (`prompt.render`)                                          eq. 3, 6
    h_{t,k+1} = h_{t,k} + kappa_k    a reply of the model, its code's output (`dialogue.Dialogue`)         eq. 4
    (z_K, r_t, c_t)                  the reply that holds a score and a rationale instead of code          eq. 5

At most `rounds` replies are taken, the last one with the verdict; a reply that is neither code nor verdict is asked for
again once.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from datapm_rl.chat import Chat, ChatSampling
from datapm_rl.trajectory import Verdict
from datapm_rl.verifier.base import CodeRunner, VerificationRequest
from datapm_rl.verifier.budget import Budget, Part
from datapm_rl.verifier.dialogue import Dialogue
from datapm_rl.verifier.prompt import LAST_ROUND, THINK_ON, PromptForm, render, wanted, wrap_interpreter
from datapm_rl.verifier.reply import NO_SCORE, read_reply
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
        self._chat, self._sampling, self._budget, self._tools = chat, sampling, budget, tools
        self._form = form or PromptForm()
        self._stop = ("</code>",) if self._form.environment else ()
        if self._form.multi_turn:
            self._exchanges = rounds - 1
        else:
            self._exchanges = 1 if self._form.environment else 0

    async def verify(self, request: VerificationRequest) -> Verdict:
        """The verdict of one step.

        InfraError: no_verdict (unreadable after the re-ask), context_exceeded, endpoint_... (`Chat.complete`),
        deadline, or the cause of a sandbox failure.
        """
        prompt = render(request, tools=self._tools.signatures, form=self._form)
        dialogue = Dialogue(request, self._chat, self._sampling, self._budget, prompt)
        exchanges = 0
        async with contextlib.AsyncExitStack() as places:
            place: CodeRunner | None = None
            while True:
                reply = await dialogue.reply(*self._stop)
                text = reply.text + (reply.stopped_at or "")
                said = read_reply(text, reply.finish, self._form.scores, runs_code=self._form.environment)
                if said.score is not None:
                    return dialogue.verdict(said.score, said.rationale, self.name)
                thinks = said.problem == NO_SCORE and not self._form.environment
                if exchanges == self._exchanges or not (said.code or thinks):
                    problem = said.problem or "no code can be run any more"
                    dialogue.ask_again(said.used_text, problem, wanted(self._form, exchanges < self._exchanges))
                    continue
                exchanges += 1
                if said.code is None:
                    answer = [Part(THINK_ON)]
                else:
                    if place is None:
                        place = await places.enter_async_context(request.branch())
                    answer = wrap_interpreter(await self._run(said.code, place, dialogue), exchanges)
                if exchanges == self._exchanges:
                    answer.append(Part(f"\n{LAST_ROUND}"))
                dialogue.say(said.used_text, answer)

    async def _run(self, code: str, place: CodeRunner, dialogue: Dialogue) -> str:
        """What the model sees of its code. InfraError: the sandbox failed."""
        calls: list[dict[str, Any]] = []
        result = await place.run(code, functools.partial(self._tools.answer, calls=calls))
        return dialogue.ran(code, result, calls)
