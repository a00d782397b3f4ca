r"""The verifier's conversation, in the form that DataPRM's released weights were trained with.

    \n# Problem\n{the policy's user message}\n\n# Problem Files\n{names}\n\n# Hsitory Trajectory\n
    [Paragraph_1]\n{step}\n[/Paragraph_1]\n[Verification_1]\nScore: 1.0\nSummary: {rationale}\n[/Verification_1]\n\n
    ...\n\n# Current Paragraph\n[Paragraph_t]\n{step}\n[/Paragraph_t]\nNote: This is the final step.\n\n

Steps are written in the dialect `deepanalyze`, which the weights read, whatever dialect the policy speaks. All that
others wrote goes through `escape.harmless`; the rest, and nothing else, is markup. Contents of messages are lists of
parts, from which `budget.Budget.fit` makes texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from datapm_rl.chat.types import Message
from datapm_rl.dialects.deepanalyze import DEEPANALYZE
from datapm_rl.trajectory import Step, Task, Verdict
from datapm_rl.verifier.base import VerificationRequest
from datapm_rl.verifier.budget import Kind, Part
from datapm_rl.verifier.escape import harmless
from datapm_rl.verifier.prompt_text import PromptForm, system_prompt

__all__ = ["LAST_ROUND", "THINK_ON", "PromptForm", "render", "step_parts", "wanted", "wrap_interpreter"]

OUTPUT_CHARS = 8192
"""Characters of an output of the verifier's code beyond which only its head and tail are shown (as in the release)."""
LAST_ROUND = "No further round is left: give the verdict now, in <score></score> and <summary></summary>."
THINK_ON = "Go on with your verification. Give the verdict as soon as the matter is settled."

_HISTORY = "# Hsitory Trajectory"  # sic: the weights know this header by its misspelling
_THOUGHT = re.compile(r"<Analyze>(.*?)</Analyze>(\s*)", re.DOTALL)


def render(request: VerificationRequest, *, tools: Sequence[str] = (), form: PromptForm | None = None) -> list[Message]:
    """The system message and the user message for one step.

    `tools`: Python signature and docstring of each. A verdict of the history that is missing leaves its
    `[Verification_i]` block out: the release writes a score of -1 there, a number the weights were not trained on and
    that a model may read as the worst of all scores, whereas a failed verification says nothing about the step.
    """
    step, (problem, files) = request.step, _problem_and_files(request.task)
    parts = [Part(f"\n# Problem\n{problem}\n\n# Problem Files\n{files}\n\n{_HISTORY}\n")]
    for past, verdict in zip(request.history, request.verdicts, strict=True):
        parts += [Part(f"[Paragraph_{past.index}]\n"), *step_parts(past), Part(f"\n[/Paragraph_{past.index}]\n")]
        parts.append(Part(_verification(past.index, verdict)))
    note = "Note: This is the final step.\n" if step.index == request.max_turns else ""
    parts.append(Part(f"\n\n# Current Paragraph\n[Paragraph_{step.index}]\n"))
    parts += [Part(part.text) for part in step_parts(step)]  # the current step is never cut
    parts.append(Part(f"\n[/Paragraph_{step.index}]\n{note}\n"))
    return [
        {"role": "system", "content": system_prompt(tools, form or PromptForm(), request.max_turns)},
        {"role": "user", "content": parts},
    ]


def step_parts(step: Step) -> list[Part]:
    """A step in the dialect `deepanalyze`, harmless, as parts that may be shortened.

    What a policy of that dialect wrote is shown as it was sampled; of others, the thought, the code and the answer.
    """
    parts = [part for part in _turn(step) if part.text]
    if step.observation is not None:
        parts += [
            Part("\n<Execute>\n"),
            Part(_clean(step.observation), Kind.OBSERVATION, f"observation {step.index}"),
            Part("\n</Execute>"),
        ]
    return parts


def wrap_interpreter(output: str, number: int) -> list[Part]:
    """What the verifier's own code printed, as the message that answers it. `number`: of the output, from 1."""
    half = OUTPUT_CHARS // 2
    text = harmless(output)
    if len(output) > OUTPUT_CHARS:
        text = (
            f"First {half} characters:\n{harmless(output[:half])}\n......\nLast {half} characters:\n"
            f"{harmless(output[-half:])}\n\nThe middle of this output is left out: only its first and last {half} "
            "characters are shown. Write new code to see what else you need."
        )
    return [Part("<interpreter>\n"), Part(text, Kind.OUTPUT, f"output {number}"), Part("\n</interpreter>")]


def wanted(form: PromptForm, rounds_left: bool) -> str:
    """What is asked for after a reply that cannot be used. `rounds_left`: whether code can still be run."""
    code = "or code in <code></code>, " if form.environment and rounds_left else ""
    return (
        f"Reply again: reasoning in <reasoning></reasoning>, then {code}{form.choice} in <score></score> and why in "
        "<summary></summary>."
    )


def _problem_and_files(task: Task) -> tuple[str, str]:
    """What the policy was asked, and its part on files; a task of the release's files (`release/`) has both in meta."""
    problem, files = task.meta.get("problem"), task.meta.get("files")
    if not (isinstance(problem, str) and isinstance(files, str)):
        problem, files = DEEPANALYZE.user_message(task), "\n".join(PurePosixPath(file).name for file in task.files)
    return harmless(problem), harmless(files)


def _verification(index: int, verdict: Verdict) -> str:
    """One line for the rationale, so that none of its lines can pass for another score."""
    if verdict.score is None:
        return "\n"
    summary = harmless(" ".join(verdict.rationale.split())) or "No summary found."
    return f"[Verification_{index}]\nScore: {float(verdict.score)}\nSummary: {summary}\n[/Verification_{index}]\n\n"


def _turn(step: Step) -> Iterator[Part]:
    """What the agent wrote. The tags that its turn consists of stay; all others in its text are broken."""

    def theirs(text: str, what: str) -> Part:
        return Part(_clean(text), Kind.STEP, f"{what} {step.index}")

    tag, what, content = ("Code", "code", step.code) if step.code is not None else ("Answer", "answer", step.answer)
    text, rest = step.text.strip(), ""
    if content is not None:
        turn = DEEPANALYZE.parse(text)
        if (turn.code, turn.answer) != (step.code, step.answer):  # another dialect
            fence = ("\n```python\n", "\n```\n") if tag == "Code" else ("", "")
            if step.thought:
                yield from (Part("<Analyze>"), theirs(step.thought, "thought"), Part("</Analyze>\n"))
            yield from (Part(f"<{tag}>{fence[0]}"), theirs(content, what), Part(f"{fence[1]}</{tag}>"))
            return
        text, _, rest = text.partition(f"</{tag}>")
    thought = _THOUGHT.match(text)
    if thought:
        yield from (Part("<Analyze>"), theirs(thought[1], "thought"), Part(f"</Analyze>{thought[2]}"))
        text = text[thought.end() :]
    if content is None:  # malformed
        yield theirs(text, "text")
        return
    before, _, text = text.partition(f"<{tag}>")
    yield from (theirs(before, "text"), Part(f"<{tag}>"), theirs(text, what), Part(f"</{tag}>"), theirs(rest, "text"))


def _clean(text: str) -> str:
    """Also without the token that the release's transcripts hold between steps; it is dropped there as well."""
    return harmless(text.replace("<extra_0>", ""))
