"""DABench, TableBench and DataMind's questions, in small and, where the real files are, whole."""

from __future__ import annotations

import json
from collections import Counter

import pandas as pd
import pytest
from data_parts import SHARED, prepare, write_lines

from datapm_rl.benchmarks.grading import grade
from datapm_rl.benchmarks.task_file import load_tasks

pytestmark = pytest.mark.unit

QUESTION = {
    "question": "Mean of x?",
    "constraints": "Round it.",
    "format": "@m[v]",
    "file_name": "a.csv",
    "level": "easy",
}


@pytest.fixture
def dabench(tmp_path):
    folder = tmp_path / "da"
    questions = [QUESTION | {"id": 0}, QUESTION | {"id": 5, "question": "Outliers?", "file_name": "b.csv"}]
    write_lines(folder / "da-dev-questions.jsonl", *questions)
    labels = [{"id": 0, "common_answers": [["m", "1.5"]]}, {"id": 5, "common_answers": [["outliers", ""]]}]
    write_lines(folder / "da-dev-labels.jsonl", *labels)
    (folder / "da-dev-tables").mkdir()
    (folder / "da-dev-tables" / "a.csv").write_bytes(b"x,y\r1,2\r2,3\r")  # line ends of old Macs, as in the real set
    (folder / "da-dev-tables" / "b.csv").write_text("x\n1\n")
    return folder


def test_dabench_is_for_evaluation_unless_told(dabench, tmp_path, capsys):
    assert prepare("dabench", dabench, tmp_path / "out") == 0
    one, two = load_tasks(tmp_path / "out" / "tasks.parquet")
    assert (one.id, one.split, one.gold, two.gold) == ("dabench-0", "heldout", (("m", "1.5"),), (("outliers", ""),))
    assert one.question == "Mean of x?\nConstraints: Round it."
    for options in (["--split", "train"], ["--heldout", "0.5"]):
        assert prepare("dabench", dabench, tmp_path / "two", *options) == 2
        assert "--split by-file" in capsys.readouterr().err
    assert prepare("dabench", dabench, tmp_path / "two", "--split", "by-file", "--heldout", "0.5") == 0
    assert Counter(task.split for task in load_tasks(tmp_path / "two" / "tasks.parquet")) == {"train": 1, "heldout": 1}
    assert "no benchmark results" in capsys.readouterr().out
    assert "no benchmark results" in (tmp_path / "two" / "fingerprint.json").read_text()


def test_question_without_a_label_is_named(dabench, tmp_path, capsys):
    write_lines(dabench / "da-dev-labels.jsonl", {"id": 0, "common_answers": [["m", "1.5"]]})
    assert prepare("dabench", dabench, tmp_path / "out") == 2
    assert "da-dev-questions.jsonl:2: question 5 has no label" in capsys.readouterr().err


def table_row(number: int, kind: str, answer: object, question: str = "Which?") -> dict:
    table = {"columns": ["a", "a"], "data": [["1", None], ["2,5", "x"]]}
    row = {"id": f"t{number}", "qtype": "", "qsubtype": kind, "question": question, "answer": answer, "table": table}
    return row


def test_tablebench_tables_become_files_and_types_without_grader_are_left_out(tmp_path, capsys):
    rows = [
        table_row(1, "Counting", "7"),
        table_row(2, "Ranking", "b, c", "Who?"),
        table_row(1, "Ranking", "7"),
        table_row(3, "ChartGeneration", "y_references = [[1]]"),
        table_row(4, "Descriptive", "1", "Odd?") | {"table": {"columns": ["a"], "data": [["1", "2"]]}},
    ]
    path = write_lines(tmp_path / "TableBench.jsonl", *rows)
    assert prepare("tablebench", path, tmp_path / "out") == 2
    assert "TableBench.jsonl:5: has no table" in capsys.readouterr().err
    assert prepare("tablebench", tmp_path, tmp_path / "out", "--skip-bad") == 0
    tasks = load_tasks(tmp_path / "out" / "tasks.parquet")
    assert [(task.id, task.split) for task in tasks] == [("tablebench-t1", "heldout"), ("tablebench-t2", "heldout")]
    assert tasks[0].files == tasks[1].files
    frame = pd.read_csv(tmp_path / "out" / tasks[0].files[0], dtype=str)
    assert frame.values.tolist()[1] == ["2,5", "x"]
    left_out = json.loads((tmp_path / "out" / "fingerprint.json").read_text())["counts"]["left_out"]
    assert sorted(left_out.values()) == [1, 1]


def said(role: str, content: str) -> dict:
    return {"role": role, "content": content}


def test_datamind_trajectories_give_questions_with_short_answers(tmp_path, capsys):
    first = said("user", "What is the mean of x in data/files/a.csv?")
    answer = said("assistant", "<think>t</think>\n<answer> 1.50 </answer>")
    rows = [
        {"id": "k1", "filename": "a.csv", "level": "Simple", "messages": [said("system", "s"), first, answer]},
        {
            "id": "k2",
            "messages": [said("user", "How many rows has `b c.csv`?"), said("assistant", "<answer>3</answer>")],
        },
        {"id": "k3", "db_id": "shop", "messages": [first, answer]},
        {"id": "k4", "messages": [first, said("assistant", "<answer>It is as one would think it is here.</answer>")]},
        {"id": "k5", "filename": "gone.csv", "messages": [said("user", "n?"), answer]},
        {"id": "k6", "question": "no messages"},
    ]
    source = tmp_path / "dm"
    source.mkdir()
    (source / "datamind_12k.json").write_text(json.dumps(rows))
    (source / "train_files").mkdir()
    for name in ("a.csv", "b c.csv"):
        (source / "train_files" / name).write_text(f"x\n{len(name)}\n")
    assert prepare("datamind", source, tmp_path / "out") == 2
    errors = capsys.readouterr().err
    assert "datamind_12k.json:5: file gone.csv: is not in the data files" in errors
    assert "datamind_12k.json:6: has neither 'messages' nor 'prompt'" in errors
    assert prepare("datamind", source, tmp_path / "out", "--skip-bad") == 0
    one, two = load_tasks(tmp_path / "out" / "tasks.parquet")
    assert (one.id, one.question, one.split) == ("datamind-k1", "What is the mean of x in a.csv?", "train")
    assert (one.gold, one.files, two.files) == ((("answer", "1.50"),), ("files/a.csv",), ("files/b c.csv",))
    left_out = json.loads((tmp_path / "out" / "fingerprint.json").read_text())["counts"]["left_out"]
    assert left_out == {"a question to a database": 1, "free text, which needs a model as judge": 1}


def test_datamind_parquet_for_rl(tmp_path):
    prompt = [said("system", "s"), said("user", "Mean of a.csv?")]
    truth = {"ground_truth": "2.5", "task_id": "7"}
    info = {"index": "7", "question": "Mean of a.csv?"}
    rows = [
        {"data_source": "darl/python", "prompt": prompt, "reward_model": {"ground_truth": truth}, "extra_info": info},
        {"data_source": "darl/sql", "prompt": prompt, "reward_model": {"ground_truth": truth}, "extra_info": info},
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "train.parquet")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "a.csv").write_text("x\n1\n")
    assert prepare("datamind", tmp_path / "train.parquet", tmp_path / "out", "--files", str(tmp_path / "tables")) == 0
    [task] = load_tasks(tmp_path / "out" / "tasks.parquet")
    assert (task.id, task.gold, task.files) == ("datamind-7", (("answer", "2.5"),), ("files/a.csv",))


@pytest.mark.skipif(not (SHARED / "dabench").is_dir(), reason="DABench is not here")
def test_the_real_dabench_is_whole_and_its_gold_is_right_by_its_own_rule(tmp_path):
    assert prepare("dabench", SHARED / "dabench", tmp_path / "out") == 0
    tasks = load_tasks(tmp_path / "out" / "tasks.parquet")
    assert len(tasks) == 257
    assert len({file for task in tasks for file in task.files}) == 52
    for task in tasks:
        assert grade(task.grader, " ".join(f"@{name}[{value}]" for name, value in task.gold), task.gold).score == 1.0


@pytest.mark.skipif(not (SHARED / "tablebench").is_dir(), reason="TableBench is not here")
def test_the_real_tablebench_by_question_type(tmp_path):
    assert prepare("tablebench", SHARED / "tablebench", tmp_path / "out") == 0
    tasks = load_tasks(tmp_path / "out" / "tasks.parquet")
    counts = Counter(task.meta["qtype"] for task in tasks)
    assert counts == {"NumericalReasoning": 396, "FactChecking": 96, "DataAnalysis": 50}  # one repeated id
    facts = json.loads((tmp_path / "out" / "fingerprint.json").read_text())
    assert sum(facts["counts"]["left_out"].values()) == 886 - 542
