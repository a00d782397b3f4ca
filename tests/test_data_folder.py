"""A user's own folder becomes a folder that trains; every bad row is named, and nothing is half-written."""

from __future__ import annotations

import json
import os

import pytest
from data_parts import own_folder, prepare, question, write_lines

from datapm_rl.benchmarks.task_file import load_tasks
from datapm_rl.data import folder_out

pytestmark = pytest.mark.unit


def test_questions_in_csv_need_no_id_and_no_format(tmp_path):
    source = own_folder(tmp_path / "mine")
    (source / "questions.jsonl").unlink()
    (source / "questions.csv").write_text(
        'question,answer,file,topic\n"How many, in all?",7,t0.csv,count\n'
        'Mean and n?,"@mean[2.50], @n[3]",t0.csv;t1.csv,\n'
    )
    assert prepare("folder", source, tmp_path / "out") == 0
    one, two = load_tasks(tmp_path / "out" / "tasks.parquet")
    assert one.answer_format == '@answer[answer_value] where "answer_value" is a whole number.'
    assert (one.split, one.grader, one.gold, one.meta) == ("train", "dabench", (("answer", "7"),), {"topic": "count"})
    assert two.gold == (("mean", "2.50"), ("n", "3"))
    assert two.files == ("files/t0.csv", "files/t1.csv")
    assert '"mean_value" is a number rounded to 2 decimals' in two.answer_format
    assert one.id.startswith("q-")
    assert one.id != two.id


def test_the_only_data_file_needs_no_name(tmp_path):
    source = own_folder(tmp_path / "mine", {"question": "How many?", "answer": 3}, tables=1)
    assert prepare("folder", source, tmp_path / "out") == 0
    assert load_tasks(tmp_path / "out" / "tasks.parquet")[0].files == ("files/t0.csv",)


BAD = {
    "{": "is not JSON",
    '{"question": "a", "answer": "1", "file": "none.csv"}': "file none.csv: is not in mine; put it there",
    '{"question": "b", "answer": "", "file": "t0.csv"}': "has no gold",
    '{"question": "c", "answer": "1", "file": "t0.csv", "grader": "dabnch"}': "the nearest is 'dabench'",
    '{"question": " ", "answer": "1", "file": "t0.csv"}': "'question' is empty",
    '{"question": "d", "answer": "1", "file": "latin.csv"}': "is not UTF-8 (byte 3, it can be read as cp1252",
    '{"question": "e", "answer": "1", "file": "ragged.csv"}': "cannot be read as a table",
    '{"question": "f", "answer": "1", "file": "rowless.csv"}': "has a header and no rows",
    '{"question": "g", "answer": "1", "file": "empty.csv"}': "file empty.csv: is empty",
    '{"question": "h", "answer": "a]b", "file": "t0.csv"}': "no answer can match gold of 'answer'",
    '{"question": "i", "answer": "1", "file": "../t0.csv"}': "is not below the task file's folder",
    '{"question": "i", "answer": "1", "file": "/t0.csv"}': "is not below the task file's folder",
    '{"id": "good", "question": "j", "answer": "1", "file": "t0.csv"}': "id 'good' is already taken by questions",
    '{"question": "WHAT is  x", "answer": "1", "file": "t0.csv"}': "asks the same of the same data as questions",
    '{"question": "k\\ud800", "answer": "1", "file": "t0.csv"}': "no Unicode",
    '{"question": 3, "answer": "1", "file": "t0.csv"}': "'question' must be a string",
    '["l"]': "is list, not a JSON object",
}


@pytest.fixture
def bad_folder(tmp_path):
    source = own_folder(
        tmp_path / "mine", {"id": "good", "question": "What is x?", "answer": "1", "file": "t0.csv"}, *BAD
    )
    (source / "latin.csv").write_bytes(b"caf\xe9\n1\n")
    (source / "ragged.csv").write_text("a,b\n1,2\n1,2,3\n")
    (source / "rowless.csv").write_text("a,b\n")
    (source / "empty.csv").write_text("")
    return source


def test_all_bad_rows_are_named_and_not_the_first_alone(bad_folder, tmp_path, capsys):
    assert prepare("folder", bad_folder, tmp_path / "out") == 2
    said = capsys.readouterr().err.splitlines()
    for number, text in enumerate(BAD.values(), start=2):
        assert any(line.startswith(f"questions.jsonl:{number}: ") and text in line for line in said), (number, text)
    assert said[-1].startswith(f"mine: {len(BAD)} bad rows: nothing was written")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]


def test_skipped_rows_are_counted_and_kept_in_the_fingerprint(bad_folder, tmp_path, capsys):
    assert prepare("folder", bad_folder, tmp_path / "out", "--skip-bad") == 0
    assert [task.id for task in load_tasks(tmp_path / "out" / "tasks.parquet")] == ["good"]
    facts = json.loads((tmp_path / "out" / "fingerprint.json").read_text())
    assert facts["counts"]["bad_rows"] == len(BAD)
    assert {line.split(": ")[0] for line in facts["bad_rows"]} == {f"questions.jsonl:{2 + k}" for k in range(len(BAD))}
    assert set(facts["files"]) == {"files/t0.csv"}
    assert str(tmp_path) not in (tmp_path / "out" / "fingerprint.json").read_text()
    assert f"left out {len(BAD):>5}  bad rows" in capsys.readouterr().out


def test_line_that_is_no_utf8_is_one_bad_row(tmp_path, capsys):
    source = own_folder(tmp_path / "mine", question(1, 0))
    with (source / "questions.jsonl").open("ab") as file:
        file.write(b'\n{"question": "caf\xe9"}\n')
    assert prepare("folder", source, tmp_path / "out") == 2
    assert "questions.jsonl:2: is not UTF-8" in capsys.readouterr().err


def test_csv_row_with_an_unquoted_comma_is_named(tmp_path, capsys):
    source = own_folder(tmp_path / "mine")
    (source / "questions.jsonl").unlink()
    (source / "questions.csv").write_text("question,answer,file\nHow many, in all?,7,t0.csv\n")
    assert prepare("folder", source, tmp_path / "out") == 2
    assert "questions.csv:2: has more cells than the first line" in capsys.readouterr().err


def test_an_existing_folder_is_not_overwritten_unless_told(tmp_path, capsys):
    source = own_folder(tmp_path / "mine", question(1, 0))
    assert prepare("folder", source, tmp_path / "out") == 0
    write_lines(source / "questions.jsonl", question(2, 0))
    assert prepare("folder", source, tmp_path / "out") == 2
    assert "--force" in capsys.readouterr().err
    assert prepare("folder", source, tmp_path / "out", "--force") == 0
    assert load_tasks(tmp_path / "out" / "tasks.parquet")[0].question == "What is number 2?"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]


def test_force_does_not_remove_a_folder_of_other_things(tmp_path, capsys):
    source = own_folder(tmp_path / "mine", question(1, 0))
    assert prepare("folder", source, source, "--force") == 2
    assert "no prepared folder" in capsys.readouterr().err
    assert (source / "questions.jsonl").is_file()


def test_failure_while_writing_leaves_nothing(tmp_path, monkeypatch):
    source = own_folder(tmp_path / "mine", question(1, 0))
    assert prepare("folder", source, tmp_path / "out") == 0
    before = (tmp_path / "out" / "fingerprint.json").read_text()

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(folder_out, "write_parquet", full)
    with pytest.raises(OSError, match="no space"):
        prepare("folder", source, tmp_path / "out", "--force")
    assert (tmp_path / "out" / "fingerprint.json").read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]


def test_prepared_files_do_not_change_with_their_originals(tmp_path):
    source = own_folder(tmp_path / "mine", question(1, 0))
    prepare("folder", source, tmp_path / "out")
    with (source / "t0.csv").open("a") as file:
        file.write("5,6\n")
    assert (tmp_path / "out" / "files" / "t0.csv").read_text() == "x,y\n0,2\n3,4\n"
    assert os.stat(tmp_path / "out" / "files" / "t0.csv").st_nlink == 1


def test_missing_source_says_what_was_expected(tmp_path, capsys):
    (tmp_path / "none").mkdir()
    for kind, named in (("folder", "questions.csv"), ("dabench", "da-dev-labels"), ("datamind", "datamind_12k.json")):
        assert prepare(kind, tmp_path / "none", tmp_path / "out") == 2
        said = capsys.readouterr().err
        assert named in said
        assert said.count("\n") == 1
