"""The reference verifier: each rule of its scoring, over an in-process runner and over the real sandbox."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import copy
import io
import json
from pathlib import Path

import pandas as pd
import pytest

from datapm_rl.errors import InfraError
from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.trajectory import Step, StepStatus, Task, Verdict, to_json, verdict_from_json
from datapm_rl.verifier.base import VerificationRequest, verify_or_missing
from datapm_rl.verifier.reference import ReferenceVerifier
from datapm_rl.verifier.reference_scoring import shows_answer

pytestmark = pytest.mark.unit

CSV = "Kind,Price,Size,Other\n A,10,1.5 u,7\na,-999,2.5 u,8\nB,30,3 u,9\nb,40,4.5 u,1\n"
REFERENCE = """
import numpy as np
import pandas as pd
df = pd.read_csv("t.csv")
df["Kind"] = df["Kind"].str.strip().str.lower()
df["Price"] = df["Price"].replace(-999, np.nan)
answer = format(df["Price"].mean(), ".1f")
clean = {"Kind": df["Kind"], "Price": df["Price"]}
"""
LOAD = "import pandas as pd, numpy as np\ndf = pd.read_csv('t.csv')\n"
CLEAN = "df['Price'] = df['Price'].replace(-999, np.nan)\n"
MEAN = "print(round(df['Price'].mean(), 1))"  # 26.7 when clean


class InProcess:
    """A code runner in a dictionary; only for code of this file."""

    def __init__(self, folder: Path, names: dict | None = None):
        self.folder, self.names = folder, names if names is not None else {"__name__": "__main__"}

    async def run(self, code: str) -> ExecutionResult:
        printed, value = io.StringIO(), None
        try:
            tree = ast.parse(code)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            with contextlib.redirect_stdout(printed), contextlib.chdir(self.folder):
                exec(compile(tree, "<step>", "exec"), self.names)
                if last is not None:
                    value = eval(compile(ast.Expression(last.value), "<step>", "eval"), self.names)
        except Exception as error:
            return ExecutionResult(StepStatus.ERROR, printed.getvalue(), error=f"{type(error).__name__}: {error}")
        return ExecutionResult(StepStatus.OK, printed.getvalue(), None if value is None else repr(value))

    @contextlib.asynccontextmanager
    async def branch(self):
        frames = {k: copy.deepcopy(v) if isinstance(v, pd.DataFrame) else v for k, v in self.names.items()}
        yield InProcess(self.folder, frames)

    async def close(self) -> None:
        pass


class Sandboxed:
    """The same over a session of the sandbox."""

    def __init__(self, session):
        self.session = session

    async def run(self, code: str) -> ExecutionResult:
        return self.session.run(code)

    @contextlib.asynccontextmanager
    async def branch(self):
        with self.session.branch() as twin:
            yield Sandboxed(twin)

    async def close(self) -> None:
        self.session.close()


@pytest.fixture(scope="module")
def sandbox():
    from datapm_rl.sandbox import Sandbox

    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def task(tmp_path) -> Task:
    (tmp_path / "t.csv").write_text(CSV)
    return Task("t1", "Mean price?", "@mean_price[value]", str(tmp_path), ("t.csv",), (), reference=REFERENCE)


class Episode:
    """Runs steps for real and verifies each; verdicts go through JSON, as between workers."""

    def __init__(self, task: Task, open_session):
        self.task, self.open_session = task, open_session
        self.verifier = ReferenceVerifier()
        self.session = open_session(task)
        self.steps: list[Step] = []
        self.verdicts: list[Verdict] = []
        self.opened = 0

    async def code(self, code: str) -> float | None:
        result = await self.session.run(code)
        output = result.stdout + (result.value or "") or (result.error or "")
        return await self.judge(Step(0, code, code=code, observation=output, status=result.status))

    async def answer(self, text: str) -> float | None:
        return await self.judge(Step(0, text, answer=text, status=StepStatus.ANSWER))

    async def _probe(self, code: str) -> ExecutionResult:
        async with self.session.branch() as twin:
            return await twin.run(code)

    async def judge(self, step: Step) -> float | None:
        step.index = len(self.steps) + 1

        @contextlib.asynccontextmanager
        async def fresh():
            self.opened += 1
            await asyncio.sleep(0)  # let others in, as a real session does
            session = self.open_session(self.task)
            yield session
            await session.close()

        request = VerificationRequest(
            self.task, list(self.steps), list(self.verdicts), step, self.session.branch, self._probe, fresh
        )
        verdict = await verify_or_missing(self.verifier, request)
        self.steps.append(step)
        self.verdicts.append(verdict_from_json(json.loads(json.dumps(to_json(verdict)))))
        return verdict.score


@pytest.fixture(params=["in_process", "sandbox"])
async def episode(request, task):
    if request.param == "sandbox":
        sandbox = request.getfixturevalue("sandbox")
        episode = Episode(task, lambda t: Sandboxed(sandbox.session(t.data_dir, list(t.files))))
    else:
        episode = Episode(task, lambda t: InProcess(Path(t.data_dir)))
    yield episode
    await episode.session.close()


async def test_expert_gets_one_on_every_step(episode):
    scores = [
        await episode.code(LOAD + "print(list(df.columns))"),
        await episode.code("print(df['Price'].min())"),
        await episode.code(CLEAN),
        await episode.code(MEAN),
        await episode.answer("@mean_price[26.7]"),
    ]
    assert scores == [1.0] * 5
    assert episode.opened == 1  # the reference program ran once
    assert all(verdict.rationale and verdict.cost["turns"] == 1 for verdict in episode.verdicts)


async def test_silent_errors_get_zero(episode):
    assert await episode.code(LOAD + MEAN) == 0.0  # -999 in the mean
    assert await episode.code("df['Price'] = df['Price'].fillna(0)\n" + MEAN) == 0.0
    assert await episode.code("df['Price'] = df['Price'].replace(-999, 0)") == 0.0
    assert "wrong values" in episode.verdicts[-1].rationale
    assert await episode.answer("@mean_price[20.0]") == 0.0


async def test_right_value_over_a_column_corrupted_in_the_same_step_gets_zero(episode):
    assert await episode.code(LOAD + CLEAN + "df['Kind'] = df['Kind'].str.lower()\n" + MEAN) == 0.0


async def test_right_value_gets_one_without_cleaning_in_place(episode):
    assert await episode.code(LOAD + "rows = df[df['Price'] > 0]\nprint('mean:', rows['Price'].mean())") == 1.0


async def test_error_is_half_once_and_zero_when_it_repeats(episode):
    assert await episode.code(LOAD + "print(df['price'].mean())") == 0.5
    assert await episode.code("print(df['PRICE'].mean())") == 0.0  # again at once
    assert await episode.code("print(list(df.columns))") == 1.0
    assert await episode.code(LOAD + "print(df['price'].mean())") == 0.0  # the same code as before
    assert await episode.code("print(df['Price'].max())") == 1.0
    assert await episode.code("print(df['pRice'].mean())") == 0.5


async def test_corruption_before_an_exception_is_seen(episode):
    assert await episode.code(LOAD + "print(df.columns)") == 1.0
    assert await episode.code("df['Price'] = 0\nprint(df['price'])") == 0.0


async def test_irrelevant_and_repeated_looks(episode):
    assert await episode.code(LOAD + "print(df['Other'].unique())") == 0.5
    assert await episode.code("print(df['Kind'].unique().tolist())") == 1.0
    assert await episode.code("print(df['Kind'].unique().tolist())") == 0.0
    assert await episode.code("df['Kind'] = df['Kind'].str.strip().str.lower()") == 1.0
    assert await episode.code("print(df['Kind'].unique().tolist())") == 1.0  # it shows something new now


async def test_the_same_look_in_other_words_is_a_repetition(episode):
    assert await episode.code(LOAD + "print(list(df.columns))") == 1.0
    assert await episode.code("x = 1\nprint(df.columns.tolist())") == 0.0


async def test_looks_at_two_columns_that_show_the_same_are_two_looks(episode):
    assert await episode.code(LOAD + "df['Kind'].isna().any()") == 1.0
    assert await episode.code("df['Price'].isna().any()") == 1.0


async def test_same_computation_counts_once_it_is_right_and_not_again(episode):
    assert await episode.code(LOAD + "print(df.dtypes)") == 1.0
    assert [await episode.code(code) for code in (MEAN, CLEAN, MEAN, MEAN)] == [0.0, 1.0, 1.0, 0.0]


async def test_useless_step_gets_zero(episode):
    assert await episode.code("x = 1") == 0.0
    assert await episode.code("print('hello')") == 0.0


async def test_renamed_sorted_and_copied_frames_are_no_corruption(episode):
    assert await episode.code(LOAD + "print(df.shape)") == 1.0
    assert await episode.code("df.columns = df.columns.str.lower()\nprint(df.head())") == 1.0
    assert await episode.code("data = df.sort_values('price')\nprint(data.head(2))") == 1.0
    assert await episode.code("data['price_clean'] = data['price'].where(data['price'] > 0)") == 1.0


async def test_reload_after_a_corruption_is_no_new_corruption(episode):
    assert await episode.code(LOAD + "df['Price'] = 0") == 0.0
    assert await episode.code("other = df.copy()\nprint(other['Price'].unique())") == 1.0
    assert await episode.code(LOAD + CLEAN) == 1.0


async def test_malformed_turn_is_zero_and_a_lost_step_is_missing(episode):
    assert await episode.judge(Step(0, "hm", status=StepStatus.MALFORMED, cause="neither")) == 0.0
    assert await episode.judge(Step(0, "x", code="x", status=StepStatus.INFRA_ERROR, cause="sandbox_lost")) is None
    assert episode.verdicts[-1].cause == "sandbox_lost"
    assert await episode.code(LOAD + "print(df.columns)") == 1.0  # goes on without the state of the lost step


async def test_state_survives_a_missing_verdict(episode):
    assert await episode.code(LOAD + CLEAN) == 1.0
    episode.steps.append(Step(2, "y", code="y = 1"))
    episode.verdicts.append(Verdict(None, cause="deadline"))
    assert await episode.code("y = 2") == 0.0  # not taken for a cleaning anew


@pytest.mark.parametrize(
    ("reference", "cause"),
    [
        ("", "no_reference"),
        ("1 / 0", "reference_failed"),
        ("answer = 1", "reference_failed"),
        ("(", "reference_failed"),
    ],
)
async def test_without_a_working_reference_verdicts_are_missing(episode, reference, cause):
    episode.task = Task(**{**to_json(episode.task), "files": episode.task.files, "gold": (), "reference": reference})
    assert await episode.code(LOAD + "print(df.columns)") is None
    assert episode.verdicts[-1].cause == cause


async def test_agent_that_breaks_its_pandas_does_not_break_the_verifier(episode):
    assert await episode.code("class Evil(dict): pass\nimport pandas as pd\npd = None\nprint(1 + 1)") == 0.0


async def test_answer_may_be_bare_or_in_the_tasks_form(episode):
    assert await episode.answer("26.7") == 1.0
    assert await episode.answer("It is @mean_price[26.70].") == 1.0
    assert await episode.answer("@mean_price[26.8]") == 0.0
    assert await episode.answer("") == 0.0


async def test_many_verifications_at_once_run_the_reference_once(task):
    episode = Episode(task, lambda t: InProcess(Path(t.data_dir)))
    await asyncio.gather(*(episode.answer("26.7") for _ in range(20)))
    assert episode.opened == 1
    assert [verdict.score for verdict in episode.verdicts] == [1.0] * 20


async def test_failing_session_is_a_missing_verdict(task):
    @contextlib.asynccontextmanager
    async def broken():
        raise InfraError("sandbox_lost", "actor died")
        yield

    step = Step(1, "1", answer="1", status=StepStatus.ANSWER)
    verdict = await verify_or_missing(
        ReferenceVerifier(), VerificationRequest(task, [], [], step, broken, broken, broken)
    )
    assert verdict.cause == "sandbox_lost"


@pytest.mark.parametrize(
    ("observation", "answer", "shown"),
    [
        ("26.7", "26.7", True),
        ("Mean: 26.666666", "26.7", True),
        ("mean = 26.7\n", "26.7", True),
        ("26.6", "26.7", False),
        ("12.3", "12", False),
        ("12", "12", True),
        ("adelie", "adelie", True),
        ("", "0", False),
        ("26.7\nsomething else", "26.7", False),
        ("a 1.0\nb 2.5", "@a[1] @b[2.5]", True),
        ("a 1.0", "@a[1] @b[2.5]", False),
    ],
)
def test_value_is_read_from_the_last_line(observation, answer, shown):
    assert shows_answer(observation, answer) is shown


async def test_builtin_experts_get_one_on_every_step_that_computes(tmp_path, sandbox):
    builtin = pytest.importorskip("datapm_rl.benchmarks.builtin")
    from datapm_rl.benchmarks.task_file import load_tasks

    path = builtin.build(tmp_path / "b", seed=0, train_tasks=12, heldout_tasks=2, unseen_tasks=2)
    for task in load_tasks(path):
        episode = Episode(task, lambda t: Sandboxed(sandbox.session(t.data_dir, list(t.files))))
        [(name, value)] = task.gold
        assert await episode.code(task.reference + "print(answer)") == 1.0
        assert await episode.answer(f"@{name}[{value}]") == 1.0
        await episode.session.close()
