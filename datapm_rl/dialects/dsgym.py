"""The dialect of DSGym's agents: `<reasoning> <python> <information> <answer>`."""

from __future__ import annotations

from datapm_rl.dialects.base import Dialect
from datapm_rl.dialects.describe import error_line, error_text, failed, shown
from datapm_rl.sandbox.result import ExecutionResult

SYSTEM_PROMPT = """\
You are a data scientist who answers a question about files with the help of Python.

Work in turns. In each turn write <reasoning>...</reasoning> and then either <python>...</python> with code for one \
sub-task, or <answer>...</answer> when the question is settled. What the code printed is returned to you in \
<information>...</information>, which you never write yourself. Variables survive from one block to the next. Do not \
plot. Verify names and values in the data before you rely on them, and correct code that failed. Give the answer in \
the requested format."""

_TRACEBACK_CHARS = 800


def _describe(result: ExecutionResult) -> str:
    output = shown(result)
    if not failed(result):
        return output or "The code ran without output."
    line, traceback = error_line(result), error_text(result)[-_TRACEBACK_CHARS:]
    return "\n".join(part for part in (output, line, traceback if traceback != line else "") if part)


DSGYM = Dialect(
    name="dsgym",
    thought_tag="reasoning",
    code_tag="python",
    observation_tag="information",
    answer_tag="answer",
    system_prompt=SYSTEM_PROMPT,
    describe=_describe,
)
