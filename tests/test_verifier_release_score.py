"""Candidates are replayed once in the real sandbox, verified step by step; what fails is missing or stops the run."""

from __future__ import annotations

import asyncio

import pytest

from datapm_rl.errors import InfraError, UserError
from datapm_rl.sandbox import ExecutionResult, Limits, Sandbox
from datapm_rl.trajectory import Step, StepStatus, Verdict
from datapm_rl.verifier.release.reader import Candidate
from datapm_rl.verifier.release.results import step_scores
from datapm_rl.verifier.release.score import Scoring, same_output, score, score_candidate

pytestmark = pytest.mark.unit

PROBLEM = "What is the sum of x?\nFiles:\nt.csv"
LOAD = (
    "<Analyze>Load.</Analyze>\n<Code>\ndf = pd.read_csv('t.csv')\nopen('log', 'a').write('x')\nprint(len(df))\n</Code>"
)
SUM = "<Analyze>Sum.</Analyze>\n<Code>\nprint(df['x'].sum())\n</Code>"
END = "<Analyze>Done.</Analyze>\n<Answer>6</Answer>"


def seen(observation: str) -> str:
    return f"\n<Execute>\n{observation}\n</Execute>\n"


TRACE = LOAD + seen("3") + SUM + seen("6") + END


def candidate(trace: str = TRACE, number: int = 0, task_id: int = 1, files=("t.csv",)) -> Candidate:
    return Candidate(number, task_id, PROBLEM, trace, "6", files)


class Scripted:
    """A verifier that gives a scripted score, or fails, and remembers its requests."""

    name = "scripted"

    def __init__(self, *scores: float | Exception):
        self.scores = scores or (1.0,)
        self.requests = []

    async def verify(self, request) -> Verdict:
        self.requests.append(request)
        said = self.scores[(request.step.index - 1) % len(self.scores)]
        if isinstance(said, Exception):
            raise said
        return Verdict(said, "because", verifier=self.name)


class Looking(Scripted):
    """A verifier that runs code on its branch, and changes the branch's state."""

    def __init__(self, code: str):
        super().__init__()
        self.code, self.outputs = code, []

    async def verify(self, request) -> Verdict:
        async with request.branch() as branch:
            result = await branch.run(self.code)
            self.outputs.append(result.stdout.strip())
        return Verdict(1.0)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    with Sandbox(Limits(wall_s=20), workspace_root=tmp_path_factory.mktemp("root"), min_level=0) as sandbox:
        yield sandbox


@pytest.fixture
def data(tmp_path):
    (tmp_path / "t.csv").write_text("x\n1\n2\n3\n")
    return tmp_path


async def test_each_step_is_verified_in_order_with_the_verdicts_before_it(sandbox, data):
    verifier = Scripted(1.0, 0.5, 0.0)
    row = await score_candidate(candidate(), Scoring(verifier, sandbox, data))
    assert [(v["step_index"], v["prediction"]) for v in row["samples"]] == [
        (1, "Score: 1.0\nSummary: because"),
        (2, "Score: 0.5\nSummary: because"),
        (3, "Score: 0.0\nSummary: because"),
    ]
    assert (row["task_id"], row["answer"]) == (1, "6")
    assert [[v.score for v in r.verdicts] for r in verifier.requests] == [[], [1.0], [1.0, 0.5]]
    assert all(r.task.meta["problem"] == PROBLEM and r.task.gold == () for r in verifier.requests)
    assert not any("sample" in v or "replay_differs" in v for v in row["samples"])


async def test_defect_5_code_runs_once_and_its_state_is_that_after_the_step(sandbox, data):
    verifier = Looking("print('df' in dir(), open('log').read()); df = None; open('log', 'a').write('mine')")
    await score_candidate(candidate(), Scoring(verifier, sandbox, data))
    assert verifier.outputs == ["True x"] * 3


async def test_data_of_the_benchmark_stays_as_it_is(sandbox, data):
    verifier = Looking("open('t.csv', 'w').write('gone'); print(open('t.csv').read())")
    trace = "<Code>\nopen('t.csv', 'w').write('x')\n</Code>" + seen("") + END
    await score_candidate(candidate(trace), Scoring(verifier, sandbox, data))
    assert (data / "t.csv").read_text() == "x\n1\n2\n3\n"


async def test_defect_10_final_step_is_that_of_the_agents_limit(sandbox, data):
    verifier = Scripted()
    await score_candidate(candidate(), Scoring(verifier, sandbox, data))
    assert {r.max_turns for r in verifier.requests} == {10}
    await score_candidate(candidate(), Scoring(verifier, sandbox, data, max_turns=15))
    assert verifier.requests[-1].max_turns == 15


async def test_defect_11_passes_are_labelled_and_have_their_own_state(sandbox, data):
    verifier = Looking("print(open('log').read())")
    row = await score_candidate(candidate(), Scoring(verifier, sandbox, data, samples=2))
    assert [(v["sample"], v["step_index"]) for v in row["samples"]] == [(s, i) for s in (1, 2) for i in (1, 2, 3)]
    assert verifier.outputs == ["x"] * 6
    assert step_scores(row) == [[1.0] * 3] * 2


async def test_defect_12_failed_verification_is_missing_and_not_in_later_prompts(sandbox, data):
    verifier = Scripted(1.0, InfraError("endpoint_timeout"), 0.5)
    row = await score_candidate(candidate(), Scoring(verifier, sandbox, data))
    assert [v["prediction_score"] for v in row["samples"]] == [1.0, -1.0, 0.5]
    assert [v.get("missing_cause") for v in row["samples"]] == [None, "endpoint_timeout", None]
    assert verifier.requests[2].verdicts[1].score is None
    assert step_scores(row) == [[1.0, None, 0.5]]


async def test_recorded_observation_stands_when_the_replay_shows_another_one(sandbox, data):
    verifier = Scripted()
    trace = LOAD + seen("4") + SUM + seen("6") + END
    row = await score_candidate(candidate(trace), Scoring(verifier, sandbox, data))
    assert [v.get("replay_differs", False) for v in row["samples"]] == [True, False, False]
    assert verifier.requests[0].step.observation == "4"
    assert [v["prediction_score"] for v in row["samples"]] == [1.0] * 3


async def test_empty_trajectory_has_a_row_and_no_verdict(sandbox, data):
    verifier = Scripted()
    row = await score_candidate(candidate(""), Scoring(verifier, sandbox, data))
    assert (row["samples"], verifier.requests) == ([], [])


async def test_files_of_one_base_name_are_refused_and_not_dropped(sandbox, data):
    for folder in ("a", "b"):
        (data / folder).mkdir()
        (data / folder / "t.csv").write_text("x\n1\n")
    with pytest.raises(UserError, match=r"two data files are called 't.csv'"):
        await score([candidate(files=("a/t.csv", "b/t.csv"))], Scoring(Scripted(), sandbox, data), lambda c, r: None)


async def test_several_candidates_at_a_time_each_written_when_it_is_finished(sandbox, data):
    running, most, rows, three = 0, 0, [], asyncio.Event()

    class Slow(Scripted):
        async def verify(self, request):
            nonlocal running, most
            running += 1
            most = max(most, running)
            if running == 3:
                three.set()
            await asyncio.wait_for(three.wait(), 30)
            running -= 1
            return Verdict(1.0)

    def write(candidate, row):
        rows.append((candidate.number, row["task_id"], len(row["samples"])))

    candidates = [candidate(END, number, task) for number in (0, 1) for task in (1, 2, 3)]
    sessions = sandbox.health()["sessions"]
    await score(candidates, Scoring(Slow(), sandbox, data, concurrency=3), write)
    assert most == 3
    assert sandbox.health()["sessions"] == sessions
    assert sorted(rows) == [(number, task, 1) for number in (0, 1) for task in (1, 2, 3)]


async def test_outage_stops_the_run_and_leaves_the_rest_to_the_next_one(sandbox, data):
    rows = []
    candidates = [candidate(END, 0, task) for task in range(100)]
    scoring = Scoring(Scripted(InfraError("endpoint_down")), sandbox, data, concurrency=4)
    with pytest.raises(InfraError, match=r"20 of the last 20 candidates got no score, the last one: endpoint_down"):
        await score(candidates, scoring, lambda c, row: rows.append(row))
    assert 20 <= len(rows) < 30


async def test_few_missing_verdicts_do_not_stop_the_run(sandbox, data):
    class Flaky(Scripted):
        async def verify(self, request):
            if int(request.task.id) % 3 == 0:
                raise InfraError("deadline")
            return Verdict(1.0)

    rows = []
    await score([candidate(END, 0, t) for t in range(60)], Scoring(Flaky(), sandbox, data), lambda c, r: rows.append(r))
    assert len(rows) == 60


@pytest.mark.parametrize(
    ("recorded", "status", "result", "same"),
    [
        ("3", "ok", ExecutionResult(StepStatus.OK, "3\n"), True),
        ("3", "ok", ExecutionResult(StepStatus.OK, "4\n"), False),
        ("3", "ok", ExecutionResult(StepStatus.OK, "3\n", value="7"), True),  # the recorder shows no last value
        ("3\n7", "ok", ExecutionResult(StepStatus.OK, "3\n", value="7"), True),
        ("a  \nb", "ok", ExecutionResult(StepStatus.OK, "a\nb  \n"), True),
        ("<f at 0x7f0011223344>", "ok", ExecutionResult(StepStatus.OK, "<f at 0x7f99aabbccdd>"), True),
        ("&lt;Code>", "ok", ExecutionResult(StepStatus.OK, "<Code>"), True),  # of a recorder that escapes
        ("", "ok", ExecutionResult(StepStatus.OK), True),
        ("3", "ok", ExecutionResult(StepStatus.ERROR, error="KeyError: 'x'"), False),
        ("[Error]:\n...\nKeyError: 'x'", "error", ExecutionResult(StepStatus.ERROR, error="T\nKeyError: 'x'"), True),
        ("[Error]:\n...\nKeyError: 'y'", "error", ExecutionResult(StepStatus.ERROR, error="T\nKeyError: 'x'"), False),
        ("[Error]:\nKeyError: 'x'", "error", ExecutionResult(StepStatus.OK, "3"), False),
        ("[Error]:\ntimed out", "timeout", ExecutionResult(StepStatus.TIMEOUT), True),
        (None, "ok", ExecutionResult(StepStatus.OK, "3"), True),
    ],
)
def test_what_counts_as_the_same_output(recorded, status, result, same):
    assert same_output(Step(1, "t", code="c", observation=recorded, status=StepStatus(status)), result) is same
