"""The builtin benchmark: gold that its own reference programs reach, splits that do not leak, files that are stable."""

import json
import os

import pandas as pd
import pytest

from datapm_rl.benchmarks.builtin import build
from datapm_rl.benchmarks.builtin.questions import combos, gold
from datapm_rl.benchmarks.builtin.tables import KNOWN, UNSEEN, load_table, package_file
from datapm_rl.benchmarks.builtin.variants import make_variant
from datapm_rl.benchmarks.grading import grade
from datapm_rl.benchmarks.task_file import load_tasks
from datapm_rl.errors import UserError

pytestmark = pytest.mark.unit
COUNTS = {"train_tasks": 600, "heldout_tasks": 120, "unseen_tasks": 60}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return build(tmp_path_factory.mktemp("builtin") / "bench", seed=5, **COUNTS)


@pytest.fixture(scope="module")
def tasks(path):
    return load_tasks(path)


def run_reference(task, monkeypatch):
    monkeypatch.chdir(os.path.dirname(os.path.join(task.data_dir, task.files[0])))
    names = {}
    exec(task.reference, names)
    return names


@pytest.mark.parametrize("name", [*KNOWN, *UNSEEN])
def test_a_table_is_read_with_missing_columns_or_mangled_values(name):
    table = load_table(name)
    assert list(table.frame.columns) == [*table.categories, *table.numbers]
    assert len(table.frame) >= 50
    for column in table.numbers:
        assert table.frame[column].dtype == float
        assert table.frame[column].nunique() > 1
    for column in table.categories:
        values = table.frame[column].dropna().unique()
        assert 2 <= len(values) <= 12
        assert "nan" not in values  # a missing value that became a word would be counted as a group
        assert all(value == value.strip().lower() and value[0].isalpha() for value in values)


def test_reference_program_disagrees_with_gold(tasks, monkeypatch):
    for task in tasks[::3]:
        names = run_reference(task, monkeypatch)
        assert isinstance(names["answer"], str)
        answer = f"@{task.gold[0][0]}[{names['answer']}]"
        assert grade(task.grader, answer, task.gold).score == 1, task.reference


def test_reference_program_leaves_dirt_in_a_needed_column(tasks, monkeypatch):
    for task in tasks[::3]:
        clean = run_reference(task, monkeypatch)["clean"]
        assert list(clean) == task.meta["columns"]
        for column in clean.values():
            if pd.api.types.is_numeric_dtype(column):
                assert not (column == -999).any()
            else:
                assert column.dropna().map(lambda value: value == value.strip().lower()).all()


def test_heldout_question_or_file_is_seen_in_training(tasks):
    def combo(task):
        keys = ("table", "family", "number", "category", "value", "operation")
        return tuple(task.meta[key] for key in keys)

    train = [task for task in tasks if task.split == "train"]
    heldout = [task for task in tasks if task.split == "heldout"]
    assert not {combo(task) for task in train} & {combo(task) for task in heldout}
    assert not {task.files for task in train} & {task.files for task in heldout}
    assert {task.meta["table"] for task in heldout} <= {task.meta["table"] for task in train}
    unseen = {task.meta["table"] for task in tasks if task.split == "unseen_tables"}
    assert unseen == set(UNSEEN)


def test_split_has_another_size_or_repeats_a_question(tasks):
    for split, count in (("train", 600), ("heldout", 120), ("unseen_tables", 60)):
        asked = [(task.question, task.files) for task in tasks if task.split == split]
        assert len(asked) == len(set(asked)) == count


def test_ignoring_the_dirt_gives_the_right_answer_anyway(tasks, monkeypatch):
    """Dirt must matter: a program that skips the cleaning has to fail on most tasks with dirt in a needed column."""
    wrong = total = 0
    for task in tasks:
        if not set(task.meta["dirt"]) & {"sentinel", "unit", "comma", "case"}:
            continue
        lazy = "\n".join(line for line in task.reference.split("\n") if not line.startswith('df["'))
        monkeypatch.chdir(os.path.dirname(os.path.join(task.data_dir, task.files[0])))
        names = {}
        total += 1
        try:
            exec(lazy, names)
        except (TypeError, ValueError):
            wrong += 1
            continue
        wrong += grade(task.grader, f"@{task.gold[0][0]}[{names['answer']}]", task.gold).score == 0
    assert wrong / total > 0.6


def test_gold_depends_on_the_rule_of_rounding():
    table = load_table("penguins")
    combo = next(c for c in combos(table) if c.family == "stat" and c.operation == "median")
    frame = table.frame.head(2).assign(**{combo.number: [1.2, 1.3]})  # median 1.25
    assert gold(combo, frame) is None


def test_gold_of_a_tie_of_groups_is_the_first_one():
    table = load_table("iris")
    combo = next(c for c in combos(table) if c.family == "best_group")
    frame = pd.DataFrame({combo.category: ["setosa", "virginica"], combo.number: [1.0, 1.0]})
    assert gold(combo, frame) is None


def test_variant_changes_with_the_python_hash_seed_or_the_call():
    table = load_table("cars")
    one, two, other = make_variant(table, 1, 0), make_variant(table, 1, 0), make_variant(table, 2, 0)
    pd.testing.assert_frame_equal(one.dirty, two.dirty)
    assert not one.dirty.equals(other.dirty)
    assert not one.dirty.equals(make_variant(table, 1, 7).dirty)


def test_second_build_writes_again_or_other_parameters_do_not(tmp_path):
    parameters = {"seed": 1, "train_tasks": 20, "heldout_tasks": 5, "unseen_tasks": 0, "tables": ["iris", "wine"]}
    path = build(tmp_path / "b", **parameters)
    before = path.stat().st_mtime_ns, path.read_text()
    assert build(tmp_path / "b", **parameters) == path
    assert (path.stat().st_mtime_ns, path.read_text()) == before
    assert {json.loads(line)["meta"]["table"] for line in path.read_text().splitlines()} == {"iris", "wine"}
    build(tmp_path / "b", **(parameters | {"seed": 2}))
    assert path.read_text() != before[1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["b"]  # no temporary folder left


def test_build_deletes_a_folder_that_is_not_its_own(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(UserError, match="not empty"):
        build(tmp_path, seed=0, **COUNTS)
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_bad_parameters_end_in_a_traceback(tmp_path):
    with pytest.raises(UserError, match="Unknown builtin table 'titanic'"):
        build(tmp_path / "a", seed=0, tables=["titanic"], **COUNTS)
    with pytest.raises(UserError, match="tasks for heldout, not 10000"):
        build(tmp_path / "b", seed=0, train_tasks=5, heldout_tasks=10000, unseen_tasks=0, tables=["stocks"])
    with pytest.raises(UserError, match="pip install no_such_package"):
        package_file("no_such_package", "x.csv")
    assert not list(tmp_path.iterdir())
