"""The dialect of DeepAnalyze, which DataPRM was trained to read: `<Analyze> <Code> <Execute> <Answer>`.

An error is one line: the traceback's frames cost tokens and say little about code that the agent just wrote.
"""

from __future__ import annotations

from datapm_rl.dialects.base import Dialect
from datapm_rl.dialects.describe import error_line, failed, shown
from datapm_rl.sandbox.result import ExecutionResult

SYSTEM_PROMPT = """\
You are a data analyst. Answer the question by running Python on the given files, step by step.

Write each turn in exactly one of two forms:
<Analyze>what you know and what to do next</Analyze><Code>Python code</Code>
<Analyze>why you are done</Analyze><Answer>the final answer</Answer>

After <Code> you get what the code printed in <Execute>...</Execute>. Variables and files stay from turn to turn; the \
files are in the working directory. Look at column names and values before you compute with them, print what you need \
to see, and when code fails or a result looks wrong, find out why and mend it. Write <Answer> once, in the format that \
the question asks for."""


def _describe(result: ExecutionResult) -> str:
    if failed(result):
        return "\n".join(part for part in ("[Error]:", shown(result), error_line(result)) if part)
    return shown(result) or "The code printed nothing."


DEEPANALYZE = Dialect(
    name="deepanalyze",
    thought_tag="Analyze",
    code_tag="Code",
    observation_tag="Execute",
    answer_tag="Answer",
    system_prompt=SYSTEM_PROMPT,
    describe=_describe,
    extra_tags=("Understand",),
)
