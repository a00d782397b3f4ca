"""Best of N: the highest score wins, ties go to the first, and a candidate without a score never beats a bad one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapm_rl.errors import UserError
from datapm_rl.verifier.aggregate import RULES
from datapm_rl.verifier.release.best_of_n import best_of_n, candidate_score, choice_line
from datapm_rl.verifier.release.gold import read_gold
from datapm_rl.verifier.release.statistics import statistics
from datapm_rl.verifier.release.table import accuracy, by_number, table

pytestmark = pytest.mark.unit


def row(task_id, answer, *scores, **extra) -> dict:
    samples = [{"step_index": at, "prediction_score": score, **extra} for at, score in enumerate(scores, start=1)]
    return {"task_id": task_id, "answer": answer, "samples": samples}


def chosen(results, rule="mean", n=None) -> list[tuple]:
    return [(each.task_id, each.candidate, each.score) for each in best_of_n(results, rule, n)]


def test_highest_aggregate_wins_for_each_task():
    results = {0: [row(1, "a", 1.0, 0.0), row(2, "b", 1.0)], 1: [row(2, "c", 0.5), row(1, "d", 0.5, 1.0)]}
    assert chosen(results) == [(1, 1, 0.75), (2, 0, 1.0)]
    assert chosen(results, n=1) == [(1, 0, 0.5), (2, 0, 1.0)]


def test_rules_choose_differently():
    results = {0: [row(1, "a", 1.0, 0.0, 1.0)], 1: [row(1, "b", 0.5, 0.5)]}
    assert [chosen(results, rule)[0][1] for rule in ("mean", "sum", "min", "last", "product")] == [0, 0, 1, 0, 1]


def test_of_equals_the_first_wins():
    assert chosen({2: [row(1, "c", 1.0)], 0: [row(1, "a", 0.5)], 1: [row(1, "b", 1.0, 1.0)]}) == [(1, 1, 1.0)]


def test_defect_12_candidate_without_a_score_loses_to_a_zero_and_is_counted():
    results = {0: [row(1, "a", -1.0, -1.0)], 1: [row(1, "b", 0.0)], 2: [row(1, "c")]}
    [choice] = best_of_n(results)
    assert (choice.candidate, choice.score, choice.candidates, choice.unscored) == (1, 0.0, 3, 2)


def test_defect_12_missing_verdict_does_not_pull_a_mean_down():
    assert candidate_score(row(1, "a", 1.0, -1.0, 0.5)) == 0.75
    assert candidate_score(row(1, "a", 1.0, -1.0, 0.5), "sum") == 1.5


def test_task_without_any_score_has_its_first_candidate_and_no_score():
    [choice] = best_of_n({0: [row(1, "a", -1.0)], 1: [row(1, "b")]})
    assert (choice.candidate, choice.score) == (0, None)
    assert json.loads(choice_line(choice)) == {"task_id": 1, "answer": "a", "candidate": 0, "score": None}


def test_defect_11_several_passes_count_as_their_mean_and_not_as_more_steps():
    passes = {"task_id": 1, "answer": "a", "samples": row(1, "", 1.0, 0.0)["samples"] + row(1, "", 1.0, 1.0)["samples"]}
    assert candidate_score(passes) == 0.75
    assert candidate_score(passes, "sum") == 1.5
    assert candidate_score(passes, "product") == 0.5


SCORE = st.sampled_from([-1.0, 0.0, 0.5, 1.0])


@given(st.lists(st.lists(SCORE, max_size=5), min_size=1, max_size=6), st.sampled_from(sorted(RULES)))
def test_choice_has_the_maximum_of_the_scores(candidates, rule):
    results = {at: [row(1, str(at), *scores)] for at, scores in enumerate(candidates)}
    [choice] = best_of_n(results, rule)
    scores = [candidate_score(results[at][0], rule) for at in range(len(candidates))]
    there = [score for score in scores if score is not None]
    assert choice.score == (max(there) if there else None)
    assert choice.candidate == (scores.index(choice.score) if there else 0)


@pytest.fixture
def gold(tmp_path):
    path = tmp_path / "gold.jsonl"
    rows = [{"task_id": 1, "answer": "@n[3]", "grader": "dabench"}, {"task_id": "2", "answer": "@m[0.5]"}]
    rows[1]["grader"] = "dabench"
    path.write_text("\n".join(map(json.dumps, rows)))
    return read_gold(path)


def test_accuracy_is_of_the_tasks_with_gold(gold):
    results = {
        0: [row(1, "@n[4]", 0.0), row(2, "@m[0.5]", 1.0), row(3, "x", 1.0)],
        1: [row(1, "@n[3]", 1.0), row(2, "@m[7]", 0.0), row(3, "y", 1.0)],
        2: [row(1, "@n[3]", 0.5), row(2, None, 0.0), row(3, "z", 1.0)],
    }
    assert accuracy(best_of_n(results), gold) == 1.0
    assert accuracy(best_of_n(results, n=1), gold) == 0.5
    assert accuracy([], gold) is None
    lines = {line.split()[0]: line.split() for line in table(results, gold).splitlines()}
    assert lines["mean"] == ["mean", "3", "0", "0/9", "1.0000", "1.0000"]
    assert lines["(random)"][-1] == "0.5000"
    assert table(results).splitlines()[1].endswith("-")
    assert by_number(results, "mean", gold).endswith("N=1 0.5000, N=2 1.0000, N=3 1.0000")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "line 1 is not JSON"), ('{"task_id": 1, "answer": ""}', "line 1 has no task_id or no answer")],
)
def test_gold_of_another_form_is_refused(tmp_path, text, problem):
    path = tmp_path / "gold.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=problem):
        read_gold(path)


def test_gold_of_an_unknown_grader_is_refused(tmp_path):
    path = tmp_path / "gold.jsonl"
    path.write_text('{"task_id": 1, "answer": "3", "grader": "no_such"}')
    with pytest.raises(UserError, match=r"gold.jsonl, line 1: unknown grader"):
        read_gold(path)


def test_statistics_count_what_is_missing_by_cause():
    rows = [row(1, "a", 1.0, 0.5), row(2, "b", -1.0), row(3, "c", -1.0, missing_cause="deadline"), row(4, "d")]
    text = statistics(rows)
    assert "4, without a trajectory 1" in text
    assert "0.5: 1, 1: 1" in text
    assert "deadline: 1, not said: 1" in text
    assert statistics([])
