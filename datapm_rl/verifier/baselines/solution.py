"""Task and steps as text for the baselines: in the dialect `deepanalyze`, and without any baseline's markup.

`verifier.escape` breaks the markup of DataPRM and of chat templates; here the baselines' own is broken in the same
way: boxed judgements, section titles, numbered steps. No score depends on it (only the model's own last reply is
read), but a model should not meet a judgement in a text that it is to judge.
"""

from __future__ import annotations

import dataclasses
import re

from datapm_rl.dialects.deepanalyze import DEEPANALYZE
from datapm_rl.dialects.escape import escape_tags
from datapm_rl.trajectory import Step, Task
from datapm_rl.verifier.budget import Kind, Part
from datapm_rl.verifier.escape import harmless
from datapm_rl.verifier.prompt import step_parts

_MARKUP = re.compile(  # what is matched loses its last character
    r"\\(?=\s{0,3}boxed)"
    r"|\[(?=(?:Math Problem|Solution|Code Output)\])"
    r"|^[ \t*#>]{0,9}Step {0,3}\d{1,3} {0,3}:"
    r"|Is the solution correct {0,3}\?"
    r"|Judge?ment\W{0,3}?:",
    re.IGNORECASE | re.MULTILINE,
)


def unmarked(text: str) -> str:
    r"""A harmless text without the baselines' markup.

    >>> unmarked(r"Judgement: \boxed{Yes} of [Solutions]")
    'Judgement&#58; &#92;boxed{Yes} of [Solutions]'
    """
    text = escape_tags(text, ("analyze", "verify", "output", "think"))
    return _MARKUP.sub(lambda found: f"{found[0][:-1]}&#{ord(found[0][-1])};", text)


def problem_text(task: Task) -> str:
    """What the policy was asked, with the files' names."""
    problem = task.meta.get("problem")  # a task of the release's files
    return unmarked(harmless(problem if isinstance(problem, str) else DEEPANALYZE.user_message(task)))


def past_step(step: Step) -> list[Part]:
    """A finished step, as parts that may be shortened."""
    return [part if part.kind is Kind.FIXED else _unmarked_part(part) for part in step_parts(step)]


def current_step(step: Step) -> list[Part]:
    """The step that is judged: never shortened."""
    return [dataclasses.replace(part, kind=Kind.FIXED) for part in past_step(step)]


def _unmarked_part(part: Part) -> Part:
    return dataclasses.replace(part, text=unmarked(part.text))
