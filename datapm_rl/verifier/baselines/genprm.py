r"""GenPRM (Zhao et al., 2025): each step is analysed, checked by code that runs once, and judged Yes or No.

    user       the problem and paragraph 1           assistant   its judgement, as given then
    ...
    user       paragraph t                           assistant   <analyze> .. </analyze><verify> ```python .. ```
    user       [Code Output] of the code             assistant   <output> **Judgement**: $\boxed{Yes}$

The code runs on a branch of the agent's state after step t, which mathematics does not have. The released weights write
the code's output into their own reply; an endpoint's chat takes it as a message instead.
"""

from __future__ import annotations

import re

from datapm_rl.chat import Chat, ChatReply, ChatSampling, Message
from datapm_rl.trajectory import Verdict
from datapm_rl.verifier.base import VerificationRequest
from datapm_rl.verifier.baselines.solution import current_step, past_step, problem_text, unmarked
from datapm_rl.verifier.baselines.yes_no import ChatWithTop, read_judgement
from datapm_rl.verifier.budget import Budget, Kind, Part
from datapm_rl.verifier.dialogue import Dialogue
from datapm_rl.verifier.escape import harmless

_SYSTEM = """\
You review the solution of a data analysis problem paragraph by paragraph. A paragraph is the analyst's thought and \
Python code, and in <Execute> what the code printed. Review the last paragraph you were given, in two replies.
First: the analysis in <analyze></analyze>, then in <verify></verify> Python code, in a ```python block, that tests \
the paragraph and prints what it finds. It runs where the paragraph's code ran, with its variables and files.
Then, when you have seen [Code Output]: the judgement, Yes if the paragraph is correct and No if it is not, as
<output>
**Judgement**: $\\boxed{Yes}$
</output>"""
_JUDGE = "Now judge paragraph {number}. End your reply with **Judgement**: $\\boxed{{Yes}}$ or $\\boxed{{No}}$."
_JUDGEMENT = r"(?:Judge?ment\W*)?\\boxed\{(?:\\text\{)?(Yes|No)\b"
_CODE = re.compile(r"```python[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_OUTPUT_CHARS = 8192


class GenPrmVerifier:
    """See the module docstring. The score is the probability of Yes, or 1 or 0 if the endpoint gives none.

    Safe for many verifications at a time in one event loop.
    """

    name = "genprm"
    aggregation = "last"

    def __init__(self, chat: Chat, sampling: ChatSampling, budget: Budget):
        self._chat, self._sampling, self._budget = ChatWithTop(chat), sampling, budget

    async def verify(self, request: VerificationRequest) -> Verdict:
        """InfraError: no_verdict (no clear judgement after one re-ask), context_exceeded, deadline, endpoint_...,
        or the cause of a sandbox failure."""
        dialogue = Dialogue(request, self._chat, self._sampling, self._budget, _prompt(request))
        judge = _JUDGE.format(number=request.step.index)
        first = await dialogue.reply("</verify>", "[Code Output]")
        code = _code(first)
        output = [] if code is None else await _run(code, request, dialogue)
        dialogue.say(first.text, [*output, Part(judge)])
        while True:
            reply = await dialogue.reply("</output>")
            judgement = read_judgement(reply, _JUDGEMENT)
            if judgement.yes is not None:
                return dialogue.verdict(judgement.yes, first.text.partition("```")[0], self.name)
            dialogue.ask_again(reply.text, judgement.problem, judge)


def _prompt(request: VerificationRequest) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": _SYSTEM}]
    parts = [Part(f"{problem_text(request.task)}\n")]
    for step, verdict in zip(request.history, request.verdicts, strict=True):
        parts += [*past_step(step), Part("\n")]
        if verdict.score is not None:  # without, the next paragraph follows in the same message
            word = "Yes" if verdict.score >= 0.5 else "No"
            judged = f"<output>\n**Judgement**: $\\boxed{{{word}}}$\n</output>"
            messages += [{"role": "user", "content": parts}, {"role": "assistant", "content": judged}]
            parts = []
    return [*messages, {"role": "user", "content": [*parts, *current_step(request.step)]}]


def _code(reply: ChatReply) -> str | None:
    """The last block of code; None if there is none, or if it may be cut off."""
    blocks = _CODE.findall(reply.text) if reply.finish == "stop" else []
    return blocks[-1] if blocks and blocks[-1].strip() else None


async def _run(code: str, request: VerificationRequest, dialogue: Dialogue) -> list[Part]:
    """What the code printed, for the model. InfraError: the sandbox failed."""
    output = dialogue.ran(code, await request.probe(code))
    if len(output) > _OUTPUT_CHARS:
        output = f"{output[: _OUTPUT_CHARS // 2]}\n......\n{output[-_OUTPUT_CHARS // 2 :]}"
    text = unmarked(harmless(output)).replace("```", "``&#96;")
    return [
        Part("[Code Output]\n\n```\n"),
        Part(text, Kind.OUTPUT, "output 1"),
        Part("\n```\n"),
    ]
