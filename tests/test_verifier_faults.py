"""The whole verifier against a faulty endpoint: real client, real sandbox, whole trajectories.

Each fault once in a while costs nothing; a fault for good makes verdicts missing, each with its cause. No verdict is
lost and none is made up: scores are those that the endpoint gave, by a rule that the test knows.
"""

from __future__ import annotations

import asyncio
import re
import time

import pytest
from stub_answers import MALFORMED, Answer, status
from stub_endpoint import StubEndpoint

from datapm_rl.chat import ChatSampling
from datapm_rl.chat.breaker import Breaker
from datapm_rl.chat.client import EndpointChat
from datapm_rl.chat.retry import RetryPolicy
from datapm_rl.sandbox import Limits, Sandbox
from datapm_rl.trajectory import Step, Task, Verdict
from datapm_rl.verifier.budget import Budget, estimate_tokens
from datapm_rl.verifier.local import verify_replayed
from datapm_rl.verifier.react import GenerativeVerifier
from datapm_rl.verifier.tools import ToolBox

pytestmark = pytest.mark.unit

CODE = "<reasoning>test</reasoning><code>\n```python\nprint(total)\n```\n"
TRAJECTORIES, STEPS = 4, 3
FAULTS = {
    "500": status(500),
    "503": status(503),
    "429": status(429, retry_after="0"),
    "cut": Answer(fault="cut"),
    "reset": Answer(fault="reset"),
    "hang": Answer(fault="hang"),
    **{name: MALFORMED[name] for name in ("html", "not_json", "no_choices", "content_null")},
}
CAUSES = {"500": "endpoint_error", "503": "endpoint_error", "429": "endpoint_overloaded", "hang": "endpoint_timeout"}
CAUSES |= {"cut": "endpoint_unreachable", "reset": "endpoint_unreachable"}


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(Limits(wall_s=20), keep="all") as made:
        yield made


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "t.csv").write_text("a\n1\n2\n")
    return [Task(f"{n}", f"Question {n}?", "", str(folder), ("t.csv",), ()) for n in range(TRAJECTORIES)]


def steps() -> list[Step]:
    return [Step(k, "", "add", "total = total + 1" if k > 1 else "total = 1") for k in range(1, STEPS + 1)]


def expected(step: int) -> float:
    return (1.0, 0.5, 0.0)[step - 1]


def reply(body: dict) -> str:
    """Code first; then the score of the step, if the code ran in the state after it."""
    step = int(re.findall(r"\[Paragraph_(\d)\]", body["messages"][1]["content"])[-1])
    last = body["messages"][-1]["content"]
    if "<interpreter>" not in last:
        return CODE
    assert last == f"<interpreter>\n{step}\n</interpreter>", "a verification saw the state of another step"
    return f"<score>{expected(step):g}</score><summary>Step {step}.</summary>"


async def verified(sandbox, tasks, script, deadline_s: float, attempts=6, breaks_after=5) -> list[list[Verdict]]:
    async with StubEndpoint(script) as stub:
        chat = EndpointChat(
            [stub.url],
            model="stub",
            retry=RetryPolicy(attempts=attempts, base_s=0.01, max_s=0.05, attempt_s=0.3),
            breaker=lambda: Breaker(failures=breaks_after, cool_down_s=0.05, max_cool_down_s=0.2),
        )
        verifier = GenerativeVerifier(chat, ChatSampling(), Budget(20_000, estimate_tokens), ToolBox({}))
        try:
            return await asyncio.gather(
                *(
                    verify_replayed(verifier, task, steps(), sandbox, deadline_s=deadline_s, max_turns=10, strict=False)
                    for task in tasks
                )
            )
        finally:
            await chat.aclose()


@pytest.mark.parametrize("fault", FAULTS)
async def test_fault_once_in_a_while_loses_no_verdict(sandbox, tasks, fault):
    def script(body, index):
        return FAULTS[fault] if index % 4 == 1 else reply(body)

    rows = await verified(sandbox, tasks, script, deadline_s=20)
    assert [[verdict.score for verdict in row] for row in rows] == [[1.0, 0.5, 0.0]] * TRAJECTORIES, rows
    assert all(verdict.cost["executions"] == 1 and len(verdict.trace) == 2 for row in rows for verdict in row)


@pytest.mark.parametrize("fault", FAULTS)
async def test_fault_for_good_is_missing_with_its_cause_and_never_a_score(sandbox, tasks, fault):
    def script(body, index):
        code = "<interpreter>" not in body["messages"][-1]["content"]
        return reply(body) if code else FAULTS[fault]  # the verdict never comes

    rows = await verified(sandbox, tasks[:2], script, deadline_s=10, attempts=2, breaks_after=1000)
    verdicts = [verdict for row in rows for verdict in row]
    assert len(verdicts) == 2 * STEPS
    assert {(verdict.score, verdict.cause) for verdict in verdicts} == {(None, CAUSES.get(fault, "endpoint_malformed"))}
    assert all(verdict.trace and verdict.cost["executions"] == 1 for verdict in verdicts), "what was done is kept"


async def test_outage_opens_the_breaker_and_ends_each_verification_within_its_deadline(sandbox, tasks):
    start = time.monotonic()
    rows = await verified(sandbox, tasks, lambda body, index: FAULTS["503"], deadline_s=0.5)
    assert {verdict.score for row in rows for verdict in row} == {None}
    causes = {verdict.cause for row in rows for verdict in row}
    assert "endpoint_down" in causes
    assert causes <= {"endpoint_down", "endpoint_error", "endpoint_timeout", "deadline"}
    assert time.monotonic() - start < 15


@pytest.mark.parametrize("said", ["", "I think it is fine.", "<score>1", "<score>2</score>", "<score>１</score>"])
async def test_endpoint_that_talks_nonsense_gives_no_score(sandbox, tasks, said):
    rows = await verified(sandbox, tasks[:1], lambda body, index: said, deadline_s=10)
    assert [(verdict.score, verdict.cause) for verdict in rows[0]] == [(None, "no_verdict")] * STEPS


async def test_verdicts_missing_before_do_not_become_scores_in_later_prompts(sandbox, tasks):
    prompts = []

    def script(body, index):
        prompts.append(body["messages"][1]["content"])
        return "nonsense"

    await verified(sandbox, tasks[:1], script, deadline_s=10)
    assert "[Paragraph_2]" in prompts[-1]
    assert "[Verification_" not in prompts[-1]
    assert "-1" not in prompts[-1]
