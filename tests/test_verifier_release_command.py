"""`evaluate release` from input files to the chosen answers, gone on with after a stop, with a fake verifier."""

from __future__ import annotations

import argparse
import json

import pytest

from datapm_rl.errors import InfraError, UserError
from datapm_rl.verifier.release import command

pytestmark = pytest.mark.unit

FAKE = '''
from datapm_rl.errors import InfraError
from datapm_rl.trajectory import Verdict

down = False
asked = []

class Fake:
    """Trusts an answer if the agent printed it; never answers while it is down."""

    name = "fake"

    async def verify(self, request):
        asked.append((request.task.id, request.step.index, request.max_turns))
        if down:
            raise InfraError("endpoint_down")
        shown = request.history[-1].observation if request.history else None
        return Verdict(1.0 if request.step.answer in (None, shown) else 0.0, "Looked.")
'''


def trace(answer: str) -> str:
    code = "df = pd.read_csv('t.csv')\nprint(df['x'].sum())"
    return (
        f"<Analyze>Sum.</Analyze>\n<Code>\n{code}\n</Code>\n<Execute>\n6\n</Execute>\n"
        f"<Analyze>Done.</Analyze>\n<Answer>{answer}</Answer>"
    )


def record(task_id: int, answer: str, **more) -> dict:
    prompt = [{"role": "user", "content": "Sum of x?\nFiles:\nt.csv"}]
    return {"task_id": task_id, "prompt": prompt, "reasoning_trace": trace(answer), "agent_answer": answer} | more


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """The module of the fake verifier."""
    (tmp_path / "fake_verifier_for_release.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    import fake_verifier_for_release as module

    module.down = False
    module.asked.clear()
    return module


@pytest.fixture
def place(tmp_path):
    """Two input files, two tasks each, and their data."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t.csv").write_text("x\n1\n2\n3\n")
    (tmp_path / "in_0.json").write_text(json.dumps([record(1, "5"), record(2, "6")]))
    (tmp_path / "in_1.json").write_text(json.dumps([record(1, "6"), record(2, "6", reasoning_trace="")]))
    (tmp_path / "gold.jsonl").write_text('{"task_id": 1, "answer": "@a[6]", "grader": "dabench"}\n')
    return tmp_path


def run(place, *words: str, inputs: bool = True) -> None:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    given = ["--input-files", f"{place}/in_{{}}.json", "--data-dir", f"{place}/data"] if inputs else []
    settings = ["prm.verifier=fake_verifier_for_release:Fake", "sandbox.min_level=0"] if inputs else []
    parsed = parser.parse_args(["release", *given, "--skip", "2", "--output-dir", f"{place}/out", *words, *settings])
    parsed.run(parsed)


def rows(place, number: int) -> list[dict]:
    return [json.loads(line) for line in (place / "out" / f"result_{number}.jsonl").read_text().splitlines()]


def test_files_are_scored_and_the_best_answer_is_chosen(place, fake, capsys):
    run(place, "--gold", f"{place}/gold.jsonl")
    by_task = {row["task_id"]: [v["prediction_score"] for v in row["samples"]] for row in rows(place, 0)}
    assert by_task == {1: [1.0, 0.0], 2: [1.0, 1.0]}
    assert {row["task_id"]: len(row["samples"]) for row in rows(place, 1)} == {1: 2, 2: 0}
    chosen = [json.loads(line) for line in (place / "out" / "best_of_2.jsonl").read_text().splitlines()]
    assert sorted((c["task_id"], c["answer"], c["candidate"], c["score"]) for c in chosen) == [
        (1, "6", 1, 1.0),
        (2, "6", 0, 1.0),
    ]
    assert {turns for _, _, turns in fake.asked} == {10}
    shown = capsys.readouterr().out
    assert "without a trajectory 1" in shown
    assert "replay differs 0" in shown
    assert "1/4" in shown  # a candidate without a score


def test_same_command_goes_on_where_it_stopped(place, fake):
    run(place)
    path = place / "out" / "result_0.jsonl"
    whole, torn = path.read_text().splitlines(keepends=True)
    lost = json.loads(torn)["task_id"]
    path.write_text(whole + torn[:-30])
    fake.asked.clear()
    run(place)
    assert {task for task, _, _ in fake.asked} == {str(lost)}
    assert sorted(row["task_id"] for row in rows(place, 0)) == [1, 2]
    fake.asked.clear()
    run(place)
    assert fake.asked == []


def test_outage_is_no_score_and_is_made_good_by_the_same_command(place, fake):
    fake.down = True
    run(place)
    assert {v["prediction_score"] for row in rows(place, 0) for v in row["samples"]} == {-1.0}
    fake.down = False
    run(place)
    assert {v["prediction_score"] for row in rows(place, 0) for v in row["samples"]} == {0.0, 1.0}


def test_long_outage_stops_before_all_is_missing(place, fake):
    fake.down = True
    (place / "in_0.json").write_text(json.dumps([record(task, "6") for task in range(40)]))
    with pytest.raises(InfraError, match="endpoint_down; the same command goes on"):
        run(place)
    assert len(rows(place, 0)) < 40


def test_verdicts_of_other_settings_are_not_mixed(place, fake):
    run(place)
    (place / "in_0.json").write_text(json.dumps([record(1, "5"), record(2, "6"), record(3, "6")]))
    with pytest.raises(UserError, match=r"other settings \(max_turns 10 -> 15, temperature 0.7 -> 0.1\)"):
        run(place, "--final-step-index", "15", "prm.temperature=0.1")


def test_result_files_of_the_release_are_ranked_without_inputs(place, capsys):
    (place / "out").mkdir()
    for number, score in ((0, -1.0), (1, 0.5)):
        verdict = {"step_index": 1, "prediction_score": score, "prediction": f"Score: {score}\nSummary: s"}
        row = {"task_id": "t", "answer": f"answer {number}", "samples": [verdict]}
        (place / "out" / f"result_{number}.jsonl").write_text(json.dumps(row) + "\n")
    run(place, "--aggregation", "min", inputs=False)
    assert json.loads((place / "out" / "best_of_2.jsonl").read_text())["answer"] == "answer 1"
    assert "not said: 1" in capsys.readouterr().out


def test_what_is_wrong_is_said_before_anything_is_scored(place, fake):
    for words, problem in (
        (["--samples", "0"], "--samples 0 must be at least 1"),
        (["prm.verifer=x"], "nearest is prm.verifier"),
        (["--gold", f"{place}/no.jsonl"], "no.jsonl cannot be read"),
        (["--data-dir", f"{place}/no"], "data folder .*no does not exist"),
        (["--skip", "3"], "in_2.json does not exist"),
    ):
        with pytest.raises(UserError, match=problem):
            run(place, *words)
    with pytest.raises(UserError, match=r"result_0\.jsonl does not exist"):
        run(place, inputs=False)
    (place / "in_0.json").write_text(json.dumps([record(1, "5", file_list=["no.csv"])]))
    with pytest.raises(UserError, match=r"no\.csv does not exist"):
        run(place)
    assert fake.asked == []
    assert not (place / "out").exists()
