"""No data file is both in training and in what it is evaluated on, whatever its name, line ends or way there."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from data_parts import own_folder, prepare, question, write_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from datapm_rl.benchmarks.overlap import check_apart, content_key, question_key
from datapm_rl.benchmarks.task_file import load_tasks
from datapm_rl.data.check import Checked
from datapm_rl.data.source import Draft
from datapm_rl.data.split import split_by_file
from datapm_rl.errors import UserError
from datapm_rl.trajectory import Task

pytestmark = pytest.mark.unit


def row(files: set[int]) -> Checked:
    task = Task(id="", question="", answer_format="", data_dir="", files=(), gold=())
    return Checked(Draft("", {}, {}), task, {str(file): str(file) for file in files})


@given(
    st.lists(st.sets(st.integers(0, 12), min_size=1, max_size=3), min_size=2, max_size=25),
    st.floats(0.05, 0.95),
    st.integers(0, 5),
)
@settings(deadline=None)
def test_no_file_is_on_both_sides(files, share, seed):
    rows = [row(each) for each in files]
    try:
        splits = split_by_file(rows, share, seed)
    except UserError:  # all hang together: true only if no file can be parted from the others
        reached = set(files[0])
        for _ in files:
            reached = reached.union(*(each for each in files if each & reached))
        assert reached == set().union(*files)
        return
    sides = {name: set().union(*(f for f, s in zip(files, splits, strict=True) if s == name)) for name in set(splits)}
    assert set(sides) == {"train", "heldout"}
    assert not sides["train"] & sides["heldout"]
    assert splits == split_by_file(rows, share, seed)


def test_heldout_share_of_a_folder(tmp_path):
    source = own_folder(tmp_path / "mine", *(question(i, i % 10) for i in range(40)), tables=10)
    assert prepare("folder", source, tmp_path / "out", "--heldout", "0.25", "--seed", "3") == 0
    tasks = load_tasks(tmp_path / "out" / "tasks.parquet")
    held = [task for task in tasks if task.split == "heldout"]
    assert 4 <= len(held) <= 10
    check_apart(tmp_path, tasks, ["heldout"], {})


def test_renamed_copy_stays_on_the_side_of_its_original(tmp_path):
    source = own_folder(tmp_path / "mine", *(question(i, i) for i in range(4)), tables=4)
    (source / "t1.csv").write_bytes(b"\xef\xbb\xbf" + (source / "t0.csv").read_bytes().replace(b"\n", b"\r\n"))
    for seed in range(6):
        assert prepare("folder", source, tmp_path / "out", "--heldout", "0.5", "--seed", str(seed), "--force") == 0
        one, copy, *_ = load_tasks(tmp_path / "out" / "tasks.parquet")
        assert one.split == copy.split


@given(st.binary(max_size=40).map(lambda content: content.replace(b"\r", b"")))
def test_line_ends_and_byte_order_mark_do_not_hide_a_file(content):
    content = content.removeprefix(b"\xef\xbb\xbf")
    key = content_key(content)
    for ends in (b"\r\n", b"\r"):
        assert content_key(content.replace(b"\n", ends)) == key
    assert content_key(b"\xef\xbb\xbf" + content + b"\n") == key


@given(st.text(st.characters(codec="ascii"), max_size=40))
def test_case_and_space_do_not_hide_a_question(text):
    key = question_key(text)
    assert question_key(f"  {text.upper()} \n") == question_key(text.upper())
    assert question_key(text.upper()) == key
    assert question_key("\t".join(text.split(" "))) == key
    assert question_key(key) == key


def test_wide_characters_do_not_hide_a_question_and_signs_count():
    assert question_key("Ｍｅａｎ of x?") == question_key(unicodedata.normalize("NFD", "mean of x"))
    assert question_key("rows with x > 5") != question_key("rows with x < 5")


@pytest.fixture
def evaluation(tmp_path):
    source = own_folder(tmp_path / "bench", question(1, 0), question(2, 1))
    prepare("folder", source, tmp_path / "evaluation", "--split", "heldout")
    return tmp_path / "evaluation"


def test_rows_of_an_evaluation_set_are_named_and_left_out(tmp_path, evaluation, capsys):
    source = own_folder(tmp_path / "mine", question(7, 0), question(2, 2), question(8, 2, file="new.csv"))
    (source / "new.csv").write_text("z\n1\n")
    assert prepare("folder", source, tmp_path / "out", "--against", str(evaluation)) == 2
    said = capsys.readouterr().err
    assert "questions.jsonl:1: its data file files/t0.csv is also that of task 'q-" in said
    assert "questions.jsonl:2: its question is also that of task 'q-" in said
    assert "questions.jsonl:3" not in said
    assert (
        prepare("folder", source, tmp_path / "out", "--skip-bad", "--against", str(evaluation / "tasks.parquet")) == 0
    )
    assert [task.question for task in load_tasks(tmp_path / "out" / "tasks.parquet")] == ["What is number 8?"]


def tasks_of(folder: Path, *rows: dict) -> list[Task]:
    full = [{"format": "", "gold": {"a": "1"}} | row for row in rows]
    return load_tasks(write_lines(folder / "tasks.jsonl", *full))


def test_training_does_not_start_on_a_validation_file_of_its_own(tmp_path):
    own_folder(tmp_path)
    (tmp_path / "copy.csv").write_bytes((tmp_path / "t0.csv").read_bytes())
    trained = {"id": "1", "question": "a", "files": ["t0.csv"]}
    held = {"id": "2", "question": "b", "files": ["copy.csv"], "split": "heldout"}
    tasks = tasks_of(tmp_path, trained, held)
    check_apart(tmp_path / "tasks.jsonl", tasks, ["other"], {})
    with pytest.raises(
        UserError, match=r"training task '1': its data file t0.csv is also that of task '2' of validation"
    ):
        check_apart(tmp_path / "tasks.jsonl", tasks, ["heldout"], {})


def test_a_template_asked_of_two_files_is_two_tasks_of_one_task_file(tmp_path):
    own_folder(tmp_path)
    trained = {"id": "1", "question": "How many rows?", "files": ["t0.csv"]}
    tasks = tasks_of(tmp_path, trained, trained | {"id": "2", "files": ["t1.csv"], "split": "heldout"})
    check_apart(tmp_path / "tasks.jsonl", tasks, ["heldout"], {})
    with pytest.raises(UserError, match="its question is also that of task '2' of"):
        check_apart(tmp_path / "tasks.jsonl", tasks[:1], [], {tmp_path / "other.jsonl": tasks[1:]})
