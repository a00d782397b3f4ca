"""Labelled sets as files: they can be moved, and what is wrong with one is said with line and field."""

from __future__ import annotations

import dataclasses
import json

import pytest

from datapm_rl.errors import UserError
from datapm_rl.trajectory import Step, StepStatus, Task
from datapm_rl.verifier.gate.labelled import LabelledTrajectory, read_labelled, set_fingerprint, write_labelled

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tmp_path):
    """A set of one trajectory in a folder of its own."""
    folder = tmp_path / "set"
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "t.csv").write_text("a\n1\n")
    task = Task(
        "q1", "How many?", "@n[value]", str(folder), ("files/t.csv",), (("n", "1"),), "dabench", "train", "r", {"k": 1}
    )
    steps = (
        Step(1, "<Code>x</Code>", "look\u2028", "x", None, "[Error]", StepStatus.ERROR, None, (3, 9), 0.5),
        Step(2, "<Answer>1</Answer>", answer="@n[1]", status=StepStatus.ANSWER),
    )
    write_labelled(folder / "s.jsonl", [LabelledTrajectory(task, steps, (0.5, 1.0), ("grounding", "right"))])
    return folder


def test_a_set_reads_back_as_it_was_without_gold_and_wherever_it_lies(folder, tmp_path):
    before = read_labelled(folder / "s.jsonl")
    fingerprint = set_fingerprint(before)
    assert before[0].task.gold == ()
    assert before[0].task.reference == "r"
    assert before[0].steps[0].span == (3, 9)
    assert "gold" not in (folder / "s.jsonl").read_text()
    moved = folder.rename(tmp_path / "elsewhere")
    after = read_labelled(moved / "s.jsonl")
    assert after[0].task.data_dir == str(moved)
    assert dataclasses.replace(after[0], task=before[0].task) == before[0]
    assert set_fingerprint(after) == fingerprint


def test_the_fingerprint_sees_labels_and_data(folder):
    [item] = read_labelled(folder / "s.jsonl")
    first = set_fingerprint([item])
    assert set_fingerprint([dataclasses.replace(item, labels=(0.5, 0.5))]) != first
    (folder / "files" / "t.csv").write_text("a\n2\n")
    assert set_fingerprint([item]) != first


def change(row, path, value):
    *way, last = path
    for key in way:
        row = row[key]
    if value is None:
        del row[last]
    else:
        row[last] = value


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("labels",), None, "has no 'labels'"),
        (("labels",), [1], "'labels' has 1 entries for 2 steps"),
        (("labels", 0), 0.7, "labels[0] is 0.7"),
        (("labels", 0), True, "labels[0] is true"),
        (("kinds", 0), "guess", 'kinds[0] is "guess"'),
        (("labels", 0), 1, "kind 'grounding' has label 0.5"),
        (("kind",), [], "unknown key 'kind': the nearest is 'kinds'"),
        (("task", "gold"), [], "'gold', which no verifier may see"),
        (("task", "question"), 3, "'question' is 3"),
        (("task", "files"), ["no.csv"], "which is not there"),
        (("task", "data_dir"), None, "has no 'data_dir'"),
        (("steps",), [], "'steps' is empty"),
        (("steps", 1, "status"), "fine", "steps[1].status is 'fine'"),
        (("steps", 1, "index"), 5, "steps[1].index is 5"),
        (("steps", 1, "answer"), None, "steps[1] has status 'answer' and no answer"),
        (("steps", 0, "text"), None, "steps[0] has no 'text'"),
    ],
)
def test_what_is_wrong_is_said_with_line_and_field(folder, path, value, said):
    row = json.loads((folder / "s.jsonl").read_text())
    good = json.dumps(row)
    change(row, path, value)
    (folder / "s.jsonl").write_text(f"{good}\n\n{json.dumps(row)}\n")
    with pytest.raises(UserError) as error:
        read_labelled(folder / "s.jsonl")
    assert str(error.value).startswith(f"{folder / 's.jsonl'}:3")
    assert said in str(error.value)


@pytest.mark.parametrize(("text", "said"), [("", "is empty"), ("{", "s.jsonl:1 is not JSON"), ("[]", "list")])
def test_no_set_at_all(folder, text, said):
    (folder / "s.jsonl").write_text(text)
    with pytest.raises(UserError, match=said):
        read_labelled(folder / "s.jsonl")
    with pytest.raises(UserError, match="cannot be read"):
        read_labelled(folder / "other.jsonl")
