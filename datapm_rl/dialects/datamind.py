"""The dialect of DataMind's policies: `<think> <code> <interpreter> <answer>`, results in the wording they know."""

from __future__ import annotations

from datapm_rl.dialects.base import Dialect
from datapm_rl.dialects.describe import error_text, failed, shown
from datapm_rl.sandbox.result import ExecutionResult

SYSTEM_PROMPT = """\
You are an expert in data analysis and statistics. You solve the user's question by writing Python that runs on the \
given files, over several turns.

Each turn has your reasoning in <think>...</think>, followed by one of:
<code>
```python
...
```
</code>
<answer>...</answer>

The result of the code comes back in <interpreter>...</interpreter>; variables and files are kept between turns. Begin \
with the columns, their types and a few rows. Use print() for everything you want to see. After each result think \
again: mend an error, go on, or answer. Write nothing outside the tags. The answer is short and in the format that \
the question asks for."""


def _describe(result: ExecutionResult) -> str:
    output = shown(result)
    if failed(result):
        text = f"The code run failed:\n{error_text(result)}"
        return f"{text}\n\nBut we capture part of your code output:\n{output}" if output else text
    return f"The code run successfully:\n{output}" if output else "The code ran but printed nothing: use print()."


DATAMIND = Dialect(
    name="datamind",
    thought_tag="think",
    code_tag="code",
    observation_tag="interpreter",
    answer_tag="answer",
    system_prompt=SYSTEM_PROMPT,
    describe=_describe,
)
