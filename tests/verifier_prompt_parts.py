"""A trajectory of three steps for tests of the verifier's prompt."""

from __future__ import annotations

from typing import Any

from datapm_rl.trajectory import Step, StepStatus, Task, Verdict
from datapm_rl.verifier.base import VerificationRequest
from datapm_rl.verifier.budget import Budget

TASK = Task(
    "t1",
    "What is the mean fare of the first class, without missing values?",
    "@mean_fare[number with 2 decimals]",
    "/data",
    ("tables/fares.csv", "notes.md"),
    (("mean_fare", "84.15"),),
)
STEPS = [
    Step(
        1,
        "<Analyze>\nLook at the table first.\n</Analyze>\n<Code>\n```python\nimport pandas as pd\n"
        "df = pd.read_csv('fares.csv')\nprint(df.head(2))\n```\n</Code>",
        "Look at the table first.",
        "import pandas as pd\ndf = pd.read_csv('fares.csv')\nprint(df.head(2))",
        observation="   class   fare\n0      1  71.28\n1      3   7.92",
    ),
    Step(
        2,
        "<Analyze>The first class, by its mean.</Analyze><Code>print(df[df['class'] < 2].fares.mean())</Code>",
        "The first class, by its mean.",
        "print(df[df['class'] < 2].fares.mean())",
        observation="[Error]:\nAttributeError: 'DataFrame' object has no attribute 'fares'",
        status=StepStatus.ERROR,
    ),
    Step(
        3,
        "<Analyze>Done.</Analyze><Answer>@mean_fare[84.15]</Answer>",
        "Done.",
        answer="@mean_fare[84.15]",
        status=StepStatus.ANSWER,
    ),
]
VERDICTS = [Verdict(1.0, "It looks at the columns before it uses them."), Verdict(0.5, "A wrong name,\nwhich shows.")]


def make_request(
    step: Step = STEPS[2],
    history: list[Step] | None = None,
    verdicts: list[Verdict] | None = None,
    task: Task = TASK,
    max_turns: int = 10,
) -> VerificationRequest:
    """A verification of the third step after the two before it, unless told otherwise. It cannot run code."""
    places: Any = None
    history = STEPS[:2] if history is None else history
    verdicts = VERDICTS if verdicts is None else verdicts
    return VerificationRequest(task, history, verdicts, step, places, places, places, max_turns)


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """The messages' contents as they are sent, when there is room for all."""
    return [message["content"] for message in Budget(10**9, len).fit(messages)[0]]
