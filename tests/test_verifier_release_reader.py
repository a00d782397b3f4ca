"""Input files of the release: what is wrong with one is said in a sentence, and no form of a question breaks."""

from __future__ import annotations

import json

import pytest

from datapm_rl.errors import UserError
from datapm_rl.verifier.release.reader import input_path, read_candidates

pytestmark = pytest.mark.unit


def record(**fields) -> dict:
    return {
        "task_id": 5,
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "How many?\nFiles:\na.csv\nb.csv"}],
        "reasoning_trace": "<Answer>3</Answer>",
        "agent_answer": "3",
    } | fields


@pytest.fixture
def write(tmp_path):
    def write(*records) -> list:
        path = tmp_path / "file_3.json"
        path.write_text(json.dumps(list(records)))
        return read_candidates(path, 3)

    return write


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    for name in ("b.csv", "a.csv", "sub/c.csv"):
        (folder / name).write_text("x\n1\n")
    return folder


def test_records_become_candidates(write):
    first, second = write(record(), record(task_id="t", agent_answer=None, reasoning_trace=None, extra=1))
    assert (first.number, first.task_id, first.answer, first.files) == (3, 5, "3", None)
    assert (second.task_id, second.trace, second.answer) == ("t", "", None)


def test_problem_and_its_files_are_kept_as_the_policy_saw_them(write, data):
    [candidate] = write(record(prompt=[{"role": "user", "content": "How many?\nFiles:\n- a.csv (2 rows)\n"}]))
    task = candidate.task(data)
    assert task.question == "How many?"
    assert task.meta == {"problem": "How many?\nFiles:\n- a.csv (2 rows)\n", "files": "- a.csv (2 rows)"}
    assert task.gold == ()


def test_defect_9_question_without_a_list_of_files_is_read(write, data):
    bare = [{"role": "user", "content": "How many?"}]
    everything, listed = write(record(prompt=bare), record(task_id=6, prompt=bare, file_list=["sub/c.csv"]))
    assert everything.task(data).meta["files"] == "a.csv\nb.csv"
    assert everything.task(data).files == ("a.csv", "b.csv")
    assert listed.task(data).meta["files"] == "sub/c.csv"
    assert listed.task(data).files == ("sub/c.csv",)


def test_empty_list_of_files_means_none_and_not_all(write, data):
    assert write(record(file_list=[]))[0].task(data).files == ()


@pytest.mark.parametrize("field", ["task_id", "prompt", "reasoning_trace", "agent_answer"])
def test_missing_field_is_named_with_its_record(write, field):
    broken = record(task_id=6)
    del broken[field]
    with pytest.raises(UserError, match=rf"file_3.json, record 2.*'{field}'"):
        write(record(), broken)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task_id", None),
        ("task_id", True),
        ("prompt", []),
        ("prompt", "How many?"),
        ("prompt", [{"role": "user"}]),
        ("prompt", [{"role": "user", "content": [{"type": "text", "text": "How many?"}]}]),
        ("reasoning_trace", ["<Answer>"]),
        ("file_list", "a.csv"),
        ("file_list", [1]),
    ],
)
def test_field_of_another_type_is_named_with_its_record(write, field, value):
    with pytest.raises(UserError, match=rf"file_3.json, record 1: '{field}' must be"):
        write(record(**{field: value}))


def test_task_that_is_there_twice_is_refused(write):
    with pytest.raises(UserError, match=r"record 3: task_id '5' is already record 1's"):
        write(record(), record(task_id=6), record(task_id="5"))


@pytest.mark.parametrize(("text", "problem"), [("{}", "not a list"), ("[1]", "record 1 is 1"), ("[", "not JSON")])
def test_file_of_another_form_is_refused(tmp_path, text, problem):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UserError, match=problem):
        read_candidates(path, 0)


def test_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_candidates(tmp_path / "x.json", 0)


def test_template_gives_each_number_its_file():
    assert str(input_path("d/file_{}_bs.json", 12)) == "d/file_12_bs.json"
    for template in ("d/file.json", "d/{name}.json", "d/{.json", "d/{}_{}.json"):
        with pytest.raises(UserError, match="no place for a file's number"):
            input_path(template, 0)
