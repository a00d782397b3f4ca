"""Task files: every fault of a user's file is one sentence with file and line, before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datapm_rl.benchmarks.task_file import fingerprint, load_tasks
from datapm_rl.errors import UserError

pytestmark = pytest.mark.unit

ROW = {"id": "q1", "question": "Mean?", "format": "@m[value]", "files": ["a.csv"], "gold": [["m", "1.5"]]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.csv").write_text("x\n3\n")
    return tmp_path


def write(folder: Path, *rows: dict | str) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "tasks.jsonl").write_text("\n".join(lines))
    return folder / "tasks.jsonl"


def test_flat_folder_and_sub_folder(folder):
    [one, two] = load_tasks(write(folder, ROW, ROW | {"id": "q2", "files": ["sub/a.csv"]}))
    assert (one.data_dir, one.files, two.files) == (str(folder), ("a.csv",), ("sub/a.csv",))
    assert (one.gold, one.grader, one.split, one.reference) == ((("m", "1.5"),), "dabench", "train", "")


def test_files_dir_holds_the_data_elsewhere(folder):
    path = write(folder, ROW)
    assert load_tasks(path, files_dir=folder / "sub")[0].data_dir == str(folder / "sub")


def test_gold_may_be_an_object_and_numbers(folder):
    assert load_tasks(write(folder, ROW | {"gold": {"m": 1.5, "n": 2}}))[0].gold == (("m", "1.5"), ("n", "2"))


def test_relative_path_still_gives_an_absolute_data_dir(folder, monkeypatch):
    write(folder, ROW)
    monkeypatch.chdir(folder)
    assert Path(load_tasks("tasks.jsonl")[0].data_dir).is_absolute()


def test_blank_lines_and_odd_separators_are_no_rows(folder):
    path = write(folder, ROW | {"question": "a\u2028b"}, "", ROW | {"id": "q2"})
    assert len(load_tasks(path)) == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "tasks.jsonl has no tasks"),
        (["{"], "tasks.jsonl:1 is not JSON"),
        ([ROW, "[1]"], "tasks.jsonl:2 is list, not a JSON object"),
        ([{k: v for k, v in ROW.items() if k != "format"}], "1 has no key 'format'"),
        ([ROW, "", ROW], "tasks.jsonl:3: id 'q1' is already taken by row 1"),
        ([ROW | {"gold": []}], "1 has no gold"),
        ([ROW | {"gold": {}}], "1 has no gold"),
        ([ROW | {"gold": [["m"]]}], "'gold' must hold"),
        ([ROW | {"gold": [["m", None]]}], "gold value of 'm' must be a string or a number"),
        ([ROW | {"gold": "1.5"}], "'gold' must be a list or an object"),
        ([ROW | {"files": ["b.csv"]}], "tasks.jsonl:1: task 'q1' names the file 'b.csv', but .*b.csv is not there"),
        ([ROW | {"files": []}], "'files' is empty"),
        ([ROW | {"files": [3]}], "'files' must hold file names, it holds 3"),
        ([ROW | {"files": ["a.csv", "sub/a.csv"]}], "'a.csv' and 'sub/a.csv' have one base name"),
        ([ROW | {"files": ["../a.csv"]}], "not below the task file's folder"),
        ([ROW | {"files": ["/etc/passwd"]}], "not below the task file's folder"),
        ([ROW | {"grader": "dabnch"}], "unknown grader 'dabnch': the nearest is 'dabench'"),
        ([ROW | {"question": 3}], "'question' must be a string, it is 3"),
        ([ROW | {"id": " "}], "'id' is empty"),
        ([ROW | {"refrence": ""}], "unknown key 'refrence': the nearest is 'reference'"),
        ([ROW | {"meta": []}], "'meta' must be an object"),
    ],
)
def test_fault_is_one_sentence_with_its_place(folder, rows, message):
    with pytest.raises(UserError, match=message) as caught:
        load_tasks(write(folder, *rows))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "it is empty"), (b"\n1,2\n", "no header"), (b"a\0b\n", "binary"), (b"caf\xe9,x\n", "UTF-8")],
)
def test_unusable_csv_is_named_with_its_row(folder, content, message):
    (folder / "a.csv").write_bytes(content)
    with pytest.raises(UserError, match=f"tasks.jsonl:1: task 'q1' names .*a.csv.*{message}"):
        load_tasks(write(folder, ROW))


def test_task_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load_tasks(tmp_path / "none.jsonl")


def test_folder_instead_of_a_file(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        load_tasks(tmp_path)


def test_fingerprint_follows_content_and_not_place(folder, tmp_path_factory):
    tasks = load_tasks(write(folder, ROW, ROW | {"id": "q2", "files": ["sub/a.csv"]}))
    first = fingerprint(tasks)
    assert set(first["files"]) == {"a.csv", "sub/a.csv"}
    (folder / "a.csv").write_text("x,y\n1,3\n")
    second = fingerprint(tasks)
    assert first["files"]["a.csv"] != second["files"]["a.csv"]
    assert first["tasks"] == second["tasks"]
    other = tmp_path_factory.mktemp("other")
    (other / "sub").mkdir()
    for name in ("a.csv", "sub/a.csv"):
        (other / name).write_bytes((folder / name).read_bytes())
    assert fingerprint(load_tasks(folder / "tasks.jsonl", files_dir=other)) == second
