"""DABench's rule: agrees with the official script on every given case, and an unanswered question is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datapm_rl.benchmarks import grade
from datapm_rl.errors import UserError

pytestmark = pytest.mark.unit

SHARED = Path(__file__).parents[2] / "shared"
CASES = SHARED / "scorer_cases" / "dabench.jsonl"
LABELS = SHARED / "data" / "dabench" / "da-dev-labels.jsonl"
AGGREGATE = SHARED / "scorer_cases" / "dabench_aggregate.jsonl"


def rows(path: Path) -> list[dict]:
    if not path.is_file():
        pytest.skip(f"{path.name} is not here")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_agrees_with_the_official_script():
    cases = rows(CASES)
    for case in cases:
        expected = case["expected"]
        whole = grade("dabench", case["prediction"], case["gold"])
        part = grade("dabench", case["prediction"], case["gold"], partial=True)
        if not expected["scored"]:  # the script leaves these out; here they are wrong
            assert (whole.score, part.score) == (0.0, 0.0), case["id"]
            continue
        assert whole.parts == expected["correctness"], case["id"]
        assert whole.score == expected["accuracy_by_question"], case["id"]
        assert part.score == pytest.approx(expected["proportional"]), case["id"]
    assert len(cases) > 100


CHANGES = {
    "gold": lambda pairs: pairs,
    "pct_appended": lambda pairs: [(n, f"{v}%") for n, v in pairs],
    "upper_case": lambda pairs: [(n, v.upper()) for n, v in pairs],
    "trailing_period": lambda pairs: [(n, f"{v}.") for n, v in pairs],
}


@pytest.mark.parametrize("change", CHANGES)
def test_whole_benchmark_agrees_with_the_official_script(change):
    expected = {row["id"]: row for row in rows(AGGREGATE)}
    if change not in expected:
        pytest.skip(f"no official number for {change}")
    golds = [row["common_answers"] for row in rows(LABELS)]
    answers = ["\n".join(f"@{n}[{v}]" for n, v in CHANGES[change](gold)) for gold in golds]
    whole = [grade("dabench", a, g).score for a, g in zip(answers, golds, strict=True)]
    part = [grade("dabench", a, g, partial=True).score for a, g in zip(answers, golds, strict=True)]
    assert round(sum(whole) / 257, 4) == expected[change]["accuracy_by_question"]
    assert round(sum(part) / 257, 4) == expected[change]["proportional"]


@pytest.mark.parametrize("answer", [None, "", "no pair"])
def test_missing_answer_is_wrong_not_left_out(answer):
    assert grade("dabench", answer, [("a", "1")]).score == 0.0


def test_empty_gold_value_needs_the_pair():
    assert grade("dabench", "", [("x", "")]).score == 0.0
    assert grade("dabench", "@x[]", [("x", "")]).score == 1.0


def test_all_names_must_be_right_unless_partial():
    gold = [("a", "1"), ("b", "2")]
    assert grade("dabench", "@a[1] @b[3]", gold).score == 0.0
    assert grade("dabench", "@a[1] @b[3]", gold, partial=True).score == 0.5
    assert grade("dabench", "@a[1] @b[3]", gold).rule == "dabench"


def test_unknown_rule_names_the_nearest():
    with pytest.raises(UserError, match="nearest is 'dabench'"):
        grade("dabnch", "", [("a", "1")])


def test_no_gold_is_an_error_and_not_full_marks():
    with pytest.raises(UserError, match="without gold"):
        grade("dabench", "@a[1]", [])
