"""Result files: the release's form is kept, its -1 is missing, and a killed or failed run is gone on with."""

from __future__ import annotations

import json

import pytest

from datapm_rl.errors import UserError
from datapm_rl.tracking.jsonl import append_rows
from datapm_rl.trajectory import Step, Verdict
from datapm_rl.verifier.release.results import read_results, resume, step_scores, verdict_row

pytestmark = pytest.mark.unit

OFFICIAL_KEYS = [
    "step_index",
    "prediction",
    "prediction_score",
    "prediction_summary",
    "messages",
    "reasoning",
    "token_usage",
    "elapsed_seconds",
]
PROMPT = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "This."}]
TRACE = [
    {
        "reply": "<reasoning>Check.</reasoning>\n<code>\n```python\nprint(1)\n```\n",
        "code": "print(1)",
        "output": "1",
        "status": "ok",
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "seconds": 1.0,
        "tool_calls": [],
    },
    {
        "reply": "<score>0.5</score><summary>Fine.</summary>",
        "code": None,
        "output": None,
        "status": None,
        "prompt_tokens": 130,
        "completion_tokens": 10,
    },
]


def official(index: int, score: float, summary: str = "As it should be.") -> dict:
    """An entry as the official release writes it."""
    return {
        "step_index": index,
        "prediction": f"Score: {score}\nSummary: {summary}",
        "prediction_score": score,
        "prediction_summary": summary,
        "messages": [{"role": "system", "content": "..."}, {"role": "assistant", "content": "<score>"}],
        "reasoning": "<score>1</score>",
        "token_usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        "elapsed_seconds": 2.5,
    }


def row(task_id: str | int = 5, *scores: float) -> dict:
    samples = [official(at, score) for at, score in enumerate(scores, start=1)]
    return {"task_id": task_id, "answer": "42", "samples": samples}


def test_verdict_has_the_release_s_form():
    entry = verdict_row(Step(3, "t"), Verdict(0.5, "Fine.", trace=TRACE, cost={"seconds": 4.0}), PROMPT, False, None)
    assert list(entry) == OFFICIAL_KEYS
    assert entry["prediction"] == "Score: 0.5\nSummary: Fine."
    assert (entry["step_index"], entry["prediction_score"], entry["prediction_summary"]) == (3, 0.5, "Fine.")
    assert entry["token_usage"] == {"prompt_tokens": 230, "completion_tokens": 30, "total_tokens": 260}
    assert entry["elapsed_seconds"] == 4.0
    assert entry["messages"][:2] == PROMPT
    assert [message["role"] for message in entry["messages"][2:]] == ["assistant", "user", "assistant"]
    assert entry["messages"][2]["content"].endswith("```\n</code>")
    assert entry["messages"][3]["content"] == "<interpreter>\n1\n</interpreter>"
    assert entry["reasoning"].endswith("</interpreter>\n<score>0.5</score><summary>Fine.</summary>")


def test_whole_score_is_written_as_the_release_prints_it():
    assert (
        verdict_row(Step(1, "t"), Verdict(1), PROMPT, False, None)["prediction"]
        == "Score: 1.0\nSummary: No summary found."
    )


def test_defect_12_missing_verdict_is_minus_1_in_the_file_and_missing_when_read():
    entry = verdict_row(Step(1, "t"), Verdict(None, cause="endpoint_unreachable"), PROMPT, False, None)
    assert (entry["prediction_score"], entry["missing_cause"]) == (-1.0, "endpoint_unreachable")
    assert step_scores({"samples": [entry]}) == [[None]]
    assert step_scores(row(1, 1.0, -1.0, 0.0)) == [[1.0, None, 0.0]]
    assert step_scores(row(1)) == []


def test_defect_11_passes_over_a_candidate_are_told_apart():
    labelled = [verdict_row(Step(at, "t"), Verdict(0.5), PROMPT, False, n) for n in (1, 2) for at in (1, 2)]
    assert [entry["sample"] for entry in labelled] == [1, 1, 2, 2]
    assert step_scores({"samples": labelled}) == [[0.5, 0.5], [0.5, 0.5]]
    theirs = [official(1, 1.0), official(2, 0.0), official(1, 0.5), official(2, -1.0)]
    assert step_scores({"samples": theirs}) == [[1.0, 0.0], [0.5, None]]
    ones = [verdict_row(Step(1, "t"), Verdict(0.5), PROMPT, False, n) for n in (1, 2)]
    assert step_scores({"samples": ones}) == [[0.5], [0.5]]


def test_file_of_the_release_is_read_written_and_read_again_as_it_was(tmp_path):
    rows = [row(5, 1.0, -1.0, 0.5), row("7"), row("é\u2028\ud800", 0.0)]
    theirs, ours = tmp_path / "result_0.jsonl", tmp_path / "ours.jsonl"
    theirs.write_text("".join(json.dumps(each) + "\n" for each in rows))
    assert read_results(theirs) == rows
    append_rows(ours, read_results(theirs))
    assert read_results(ours) == rows
    assert resume(ours) == {"5", "7", "é\u2028\ud800"}
    assert read_results(ours) == rows


def test_no_file_has_no_rows(tmp_path):
    assert read_results(tmp_path / "result_0.jsonl") == []
    assert resume(tmp_path / "result_0.jsonl") == set()


def test_torn_last_line_is_dropped_and_its_task_done_again(tmp_path):
    path = tmp_path / "result_0.jsonl"
    whole = json.dumps(row(5, 1.0)) + "\n"
    path.write_text(whole + json.dumps(row(6, 1.0))[:-20])
    assert resume(path) == {"5"}
    assert path.read_text() == whole


def test_whole_last_line_without_a_line_break_is_kept(tmp_path):
    path = tmp_path / "result_0.jsonl"
    path.write_text(json.dumps(row(5, 1.0)) + "\n" + json.dumps(row(6, 1.0)))
    assert resume(path) == {"5", "6"}
    append_rows(path, [row(7, 1.0)])
    assert [each["task_id"] for each in read_results(path)] == [5, 6, 7]


@pytest.mark.parametrize(("cause", "again"), [("endpoint_down", True), ("deadline", True), ("no_verdict", False)])
def test_task_that_an_outage_left_without_a_verdict_is_done_again(tmp_path, cause, again):
    path = tmp_path / "result_0.jsonl"
    missing = verdict_row(Step(2, "t"), Verdict(None, cause=cause), PROMPT, False, None)
    append_rows(path, [row(5, 1.0), {**row(6, 1.0), "samples": [official(1, 1.0), missing]}])
    assert resume(path) == ({"5"} if again else {"5", "6"})
    assert len(read_results(path)) == (1 if again else 2)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[1]", "not an object with task_id"),
        ('{"task_id": 1, "samples": []}', "not an object with task_id"),
        ('{"task_id": 1, "answer": "", "samples": {}}', "samples is not a list"),
        ('{"task_id": 1, "answer": "", "samples": [{}]}', "entry 1 has no step_index"),
        ('{"task_id": 1, "answer": "", "samples": [{"step_index": 1, "prediction_score": 7}]}', "7 is neither"),
        ('{"task_id": 1, "answer": "", "samples": [{"step_index": 1, "prediction_score": NaN}]}', "nan is neither"),
        ('{"task_id": 5, "answer": "", "samples": []}', "already in line 1"),
        ("{torn", "not JSON"),
    ],
)
def test_broken_line_is_named(tmp_path, line, problem):
    path = tmp_path / "result_0.jsonl"
    path.write_text(json.dumps(row(5, 1.0)) + "\n" + line + "\n")
    with pytest.raises(UserError, match=problem) as caught:
        read_results(path)
    assert "result_0.jsonl, line 2" in str(caught.value)
