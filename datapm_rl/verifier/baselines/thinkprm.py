r"""ThinkPRM (Khalifa et al., 2025): one chain of thought checks all steps so far, and ends with Yes or No.

At step t the solution u, tau_1 .. tau_t is judged as a whole, so the score of the last step is that of the trajectory.
The form is that of the released weights: titles `[Math Problem]` and `[Solution]`, numbered steps, a critique of each
step with \boxed{correct} or \boxed{incorrect}, and the closing question with its answer.
"""

from __future__ import annotations

from datapm_rl.chat import Chat, ChatSampling, Message
from datapm_rl.trajectory import Verdict
from datapm_rl.verifier.base import VerificationRequest
from datapm_rl.verifier.baselines.solution import current_step, past_step, problem_text
from datapm_rl.verifier.baselines.yes_no import ChatWithTop, read_judgement
from datapm_rl.verifier.budget import Budget, Part
from datapm_rl.verifier.dialogue import Dialogue

_OPENING = """\
Here is a problem and a solution that was worked out step by step. A step is a thought and Python code, and in \
<Execute> what the code printed.

[Math Problem]

{problem}

[Solution]

"""
_CLOSING = """
Check the solution. If it is not finished, check only the steps that are there. Write for each step, in this form:
Step k: what you find in step k. The step is \\boxed{correct} (or \\boxed{incorrect})
When you are through, end with this line, and nothing after it:
Is the solution correct? Yes (or No)

Let's verify step by step:"""
_WANTED = "End with the line `Is the solution correct? ` and then Yes or No, and nothing after it."
_JUDGEMENT = r"Is the solution correct\?\W*(?:boxed\{)?(Yes|No)\b"


class ThinkPrmVerifier:
    """See the module docstring. The score is the probability of Yes, or 1 or 0 if the endpoint gives none.

    Safe for many verifications at a time in one event loop.
    """

    name = "thinkprm"
    aggregation = "last"

    def __init__(self, chat: Chat, sampling: ChatSampling, budget: Budget):
        self._chat, self._sampling, self._budget = ChatWithTop(chat), sampling, budget

    async def verify(self, request: VerificationRequest) -> Verdict:
        """InfraError: no_verdict (no clear judgement after one re-ask), context_exceeded, deadline, endpoint_..."""
        dialogue = Dialogue(request, self._chat, self._sampling, self._budget, _prompt(request))
        while True:
            reply = await dialogue.reply()
            judgement = read_judgement(reply, _JUDGEMENT)
            if judgement.yes is not None:
                return dialogue.verdict(judgement.yes, reply.text, self.name)
            dialogue.ask_again(reply.text, judgement.problem, _WANTED)


def _prompt(request: VerificationRequest) -> list[Message]:
    parts = [Part(_OPENING.format(problem=problem_text(request.task)))]
    for step in request.history:
        parts += [Part(f"Step {step.index}: "), *past_step(step), Part("\n")]
    parts += [Part(f"Step {request.step.index}: "), *current_step(request.step), Part(_CLOSING)]
    return [{"role": "user", "content": parts}]
