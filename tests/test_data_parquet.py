"""Tasks in verl's layout: nothing is lost on the way, and gold is in the reward column alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_parts import own_folder, prepare, question
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datapm_rl.benchmarks.task_file import load_tasks
from datapm_rl.benchmarks.task_parquet import write_parquet
from datapm_rl.dialects import get_dialect
from datapm_rl.errors import UserError
from datapm_rl.trajectory import Task, to_json

pytestmark = pytest.mark.unit

TEXT = st.text(min_size=1, max_size=20).filter(str.strip)
META = st.dictionaries(TEXT, st.none() | st.booleans() | st.integers() | TEXT | st.lists(TEXT, max_size=2), max_size=3)


@st.composite
def tasks(draw):
    ids = draw(st.lists(TEXT, min_size=1, max_size=4, unique=True))
    return [
        Task(
            id=name,
            question=draw(TEXT),
            answer_format=draw(st.text(max_size=20)),
            data_dir="",
            files=draw(st.sampled_from([("a.csv",), ("sub/b.csv",), ("a.csv", "sub/b.csv")])),
            gold=tuple(draw(st.lists(st.tuples(TEXT, st.text(max_size=9)), min_size=1, max_size=3))),
            split=draw(TEXT),
            reference=draw(st.text(max_size=20)),
            meta=draw(META),
        )
        for name in ids
    ]


@given(tasks())
@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_and_parquet_give_the_same_tasks(tmp_path, given_tasks):
    (tmp_path / "sub").mkdir(exist_ok=True)
    for name in ("a.csv", "sub/b.csv"):
        (tmp_path / name).write_text("x\n1\n")
    with (tmp_path / "tasks.jsonl").open("w", encoding="utf-8") as file:
        for task in given_tasks:
            row = to_json(task)
            row["format"] = row.pop("answer_format")
            del row["data_dir"]
            file.write(json.dumps(row) + "\n")
    read = load_tasks(tmp_path / "tasks.jsonl")
    assert [replace(task, data_dir="") for task in read] == given_tasks
    write_parquet(tmp_path / "tasks.parquet", read, "mine", get_dialect("datamind"))
    assert load_tasks(tmp_path / "tasks.parquet") == read


def test_gold_is_in_the_reward_column_alone(tmp_path):
    source = own_folder(tmp_path / "mine", question(1, 0, answer="secret-4711"))
    prepare("folder", source, tmp_path / "out", "--dialect", "datamind")
    table = pq.read_table(tmp_path / "out" / "tasks.parquet")
    assert table.column_names == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert "secret-4711" in str(table.column("reward_model").to_pylist())
    assert "secret-4711" not in str(table.drop_columns(["reward_model"]).to_pylist())
    [row] = table.to_pylist()
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert row["prompt"][0]["content"] == get_dialect("datamind").system_prompt
    assert row["prompt"][1]["content"].endswith("Files:\nt0.csv")


@pytest.mark.parametrize(
    "columns",
    [{"prompt": ["x"]}, {"extra_info": [{"index": 1}], "reward_model": [{"ground_truth": "1"}]}],
)
def test_parquet_of_others_is_refused_with_advice(tmp_path, columns):
    pq.write_table(pa.table(columns), tmp_path / "other.parquet")
    with pytest.raises(UserError, match=r"python -m datapm_rl.data") as caught:
        load_tasks(tmp_path / "other.parquet")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"PAR1 and no more"])
def test_parquet_that_is_none(tmp_path: Path, content):
    if content is not None:
        (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises(UserError, match=r"t\.parquet (does not exist|is not parquet)"):
        load_tasks(tmp_path / "t.parquet")
