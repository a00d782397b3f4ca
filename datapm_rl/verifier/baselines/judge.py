"""LLM-as-a-judge (Zheng et al., 2023; DataPRM, Table 2): any chat model scores each step in one reply, without code."""

from __future__ import annotations

from datapm_rl.chat import Chat, ChatSampling
from datapm_rl.trajectory import Verdict
from datapm_rl.verifier.base import VerificationRequest
from datapm_rl.verifier.budget import Budget
from datapm_rl.verifier.dialogue import Dialogue
from datapm_rl.verifier.prompt import render
from datapm_rl.verifier.reply import read_reply

_SYSTEM = """\
You grade the work of a data analyst, one step at a time. You get a problem, the names of its data files, the steps \
so far with the grades they got, and the current step. A step is the analyst's thought and code, and in <Execute> what \
the code printed. You cannot run anything: judge by reading.

Grade the current step only:
1: right, and it brings the solution forward.
0.5: wrong or useless in a way that its output shows, so that the analyst can mend it in a later step, such as a \
misspelt column name.
0: wrong in a way that spoils the answer. An output without an error message is no proof: ask whether the code \
computes what the problem asks for. A last step (number {max_turns}) without <Answer> is 0.

Be brief. First weigh what speaks for and against the step, then end your reply with
<score>1, 0.5 or 0</score><summary>one or two sentences that say why</summary>"""
_WANTED = "Grade the current step and end your reply with <score>1, 0.5 or 0</score><summary>why</summary>."


class JudgeVerifier:
    """See the module docstring. Scores are 0, 0.5 and 1. Safe for many verifications at a time in one event loop."""

    name = "judge"
    aggregation = "mean"

    def __init__(self, chat: Chat, sampling: ChatSampling, budget: Budget):
        self._chat, self._sampling, self._budget = chat, sampling, budget

    async def verify(self, request: VerificationRequest) -> Verdict:
        """InfraError: no_verdict (unreadable after one re-ask), context_exceeded, deadline, endpoint_..."""
        messages = [{"role": "system", "content": _SYSTEM.format(max_turns=request.max_turns)}, *render(request)[1:]]
        dialogue = Dialogue(request, self._chat, self._sampling, self._budget, messages)
        while True:
            reply = await dialogue.reply()
            said = read_reply(reply.text, reply.finish, runs_code=False)
            if said.score is not None:
                return dialogue.verdict(said.score, said.rationale, self.name)
            dialogue.ask_again(said.used_text, said.problem, _WANTED)
