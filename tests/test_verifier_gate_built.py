"""A set built over the builtin tables, and verifiers measured on it by the command."""

from __future__ import annotations

import json
import random
import signal
import sys
from collections import Counter

import pytest

from datapm_rl.benchmarks.builtin import build
from datapm_rl.benchmarks.task_file import load_tasks
from datapm_rl.dialects import get_dialect
from datapm_rl.evaluate import main
from datapm_rl.sandbox import Sandbox
from datapm_rl.trajectory import StepStatus
from datapm_rl.verifier.gate import moves
from datapm_rl.verifier.gate.attempt import Discarded, attempt, slipped
from datapm_rl.verifier.gate.construct import build_folder
from datapm_rl.verifier.gate.labelled import KINDS, read_labelled
from datapm_rl.verifier.gate.run import RESULTS_FILE
from datapm_rl.verifier.gate.situation import Move, Unfit

pytestmark = pytest.mark.unit
COUNT = len(moves.SCENARIOS)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sandbox):
    folder = tmp_path_factory.mktemp("gate") / "set"
    build_folder(folder, COUNT, 3, sandbox)
    return folder


@pytest.fixture(scope="module")
def path(folder):
    return folder / "labelled.jsonl"


@pytest.fixture(scope="module")
def small(path):
    """Some of the trajectories: every third."""
    small = path.with_name("small.jsonl")
    small.write_text("".join(line + "\n" for line in path.read_text().splitlines()[::3]))
    return small


@pytest.fixture
def verifiers(tmp_path, monkeypatch):
    """A module of verifiers that are given as `package.module:Class`."""
    (tmp_path / "own_verifiers.py").write_text("""
import asyncio, signal
from datapm_rl.trajectory import StepStatus, Verdict

class Ones:
    name = "ones"
    async def verify(self, request):
        assert not request.task.reference and not request.task.meta and not request.task.gold
        assert len(request.verdicts) == len(request.history) == request.step.index - 1
        return Verdict(1.0, cost={"tokens": 7.0})

class ByStatus:
    name = "by_status"
    async def verify(self, request):
        return Verdict(0.5 if request.step.status is StepStatus.ERROR else 1.0)

class Stops:
    name, left = "stops", 0
    async def verify(self, request):
        Stops.left -= 1
        if Stops.left < 0:
            signal.raise_signal(signal.SIGINT)  # Ctrl-C
            await asyncio.sleep(30)
        return Verdict(1.0)

class Fails:
    name = "fails"
    async def verify(self, request):
        raise ConnectionError("no route")
""")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_verifiers", raising=False)
    return tmp_path / "out"


def score(path, out, verifier, *more):
    return main(["prm", "--set", str(path), "--out", str(out), f"prm.verifier={verifier}", *more])


def summary(out):
    return json.loads((out / "summary.json").read_text())


def test_a_built_set_has_every_scenario_and_labels_that_follow_from_kinds(path):
    found = read_labelled(path)
    assert len(found) == COUNT
    kinds = Counter(kind for item in found for kind in item.kinds)
    assert set(kinds) == set(KINDS) - {"other"}
    assert sum(0.0 in item.labels for item in found) == COUNT / 2
    for item in found:
        assert item.labels == tuple(KINDS[kind] for kind in item.kinds)
        assert item.task.gold == ()
        assert not {"dirt", "columns"} & item.task.meta.keys()


def test_the_status_of_a_step_does_not_give_its_label_away(path):
    pairs = Counter(
        (step.status, label)
        for item in read_labelled(path)
        for step, label in zip(item.steps, item.labels, strict=True)
    )
    for status in (StepStatus.OK, StepStatus.ANSWER):
        assert pairs[status, 1.0]
        assert pairs[status, 0.0]
    assert pairs[StepStatus.OK, 0.5]
    assert pairs[StepStatus.ERROR, 0.5]


def test_the_same_seed_builds_the_same_set(path, folder, sandbox, tmp_path):
    build_folder(tmp_path / "again", COUNT, 3, sandbox)
    assert (tmp_path / "again" / "labelled.jsonl").read_text() == path.read_text()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    path = build(
        tmp_path_factory.mktemp("tasks") / "b", seed=1, train_tasks=0, heldout_tasks=12, unseen_tasks=0, tables=["iris"]
    )
    return [task for task in load_tasks(path) if task.meta["family"] == "stat"]


def claim(kind, code, expects):
    return lambda s: Move(kind, "", code.format(column=s.headers[s.columns[0]]), expects)


@pytest.mark.parametrize(
    ("kind", "code", "expects", "reason"),
    [
        ("silent", "df['{column}'] = df['{column}'] * 1\n", "corrupted", "changes nothing|cannot be built on"),
        ("silent", "df['{column}'] = no\n", "corrupted", "is error"),
        ("silent", "print(float('nan'))", "wrong_value", "shows no value"),
        ("grounding", "print(1)", "error", "is ok"),
        ("right", "df['{column}'] = 0", "state", "spoils the data"),
        ("right", "print('-12.345')", "right_value", "prints another value"),
        ("benign", "df['{column}'] = df['{column}'].astype(str) + 'x'", "unchanged", "changes"),
    ],
)
def test_a_step_that_does_not_come_out_as_its_label_says_is_thrown_away(tasks, sandbox, kind, code, expects, reason):
    with pytest.raises(Discarded, match=reason):
        attempt(
            tasks[0],
            (moves.inspect, claim(kind, code, expects)),
            sandbox,
            get_dialect("deepanalyze"),
            random.Random(0),
        )


@pytest.mark.parametrize("value", ["7", "11.1", "adelie", "10"])
def test_no_slip_where_no_two_digits_differ(value):
    with pytest.raises(Unfit):
        slipped(value, random.Random(0))


def test_a_slip_is_another_number_of_the_same_digits():
    assert slipped("-36.6", random.Random(0)) == "-63.6"


def test_a_constant_verifier_fails_the_gate(path, verifiers, capsys):
    assert score(path, verifiers, "own_verifiers:Ones") == 0
    report = summary(verifiers)
    assert report["metrics"]["kappa"]["value"] == pytest.approx(0)
    assert report["metrics"]["silent_recall"]["value"] == 0
    assert report["metrics"]["first_error_f1"]["value"] == 0
    assert report["cost"]["tokens"] == 7
    assert "quadratic weighted kappa" in capsys.readouterr().out


def test_a_verifier_that_reads_the_status_alone_finds_no_silent_error(path, verifiers):
    assert score(path, verifiers, "own_verifiers:ByStatus") == 0
    metrics = summary(verifiers)["metrics"]
    assert metrics["silent_recall"]["value"] == 0
    assert metrics["kappa"]["value"] < 0.3


def test_the_reference_verifier_finds_every_silent_error(path, tmp_path):
    assert score(path, tmp_path, "reference") == 0
    report = summary(tmp_path)
    assert report["missing"] == {}
    assert report["metrics"]["silent_recall"]["value"] == 1
    assert report["metrics"]["kappa"]["value"] > 0.7


def test_failures_are_missing_with_their_cause_and_not_zero(small, verifiers):
    assert score(small, verifiers, "own_verifiers:Fails") == 0
    report = summary(verifiers)
    assert report["missing"] == {"unreachable": report["steps"]}
    assert report["metrics"]["kappa"] == {"value": None, "low": None, "high": None, "n": 0}
    assert report["metrics"]["missing_share"]["value"] == 1


def test_a_run_that_was_stopped_goes_on_and_ends_as_an_unbroken_one(small, verifiers, tmp_path, monkeypatch):
    assert score(small, tmp_path / "whole", "own_verifiers:Ones") == 0
    import own_verifiers

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell has it ignored
    monkeypatch.setattr(own_verifiers.Stops, "left", 14)
    one_at_a_time = "--concurrency=1"  # so that some are whole when it stops
    assert score(small, verifiers, "own_verifiers:Stops", one_at_a_time) == 130
    signal.signal(signal.SIGINT, before)
    rows = (verifiers / RESULTS_FILE).read_text().splitlines()
    assert 1 < len(rows) < 1 + len(read_labelled(small))
    with open(verifiers / RESULTS_FILE, "a") as file:
        file.write('{"trajectory": 5, "verd')  # torn by the kill
    own_verifiers.Stops.left = 1000
    assert score(small, verifiers, "own_verifiers:Stops") == 0
    steps = sum(len(item.steps) for item in read_labelled(small))
    assert 1000 - own_verifiers.Stops.left < steps  # the finished ones were not verified again
    assert summary(verifiers)["metrics"] == summary(tmp_path / "whole")["metrics"]


def test_results_of_other_settings_or_of_another_set_are_refused(small, verifiers, capsys):
    assert score(small, verifiers, "own_verifiers:Ones") == 0
    for more in ("prm.temperature=0.1", "prm.model=other", "prm.rounds=3", "agent.max_turns=4"):
        assert score(small, verifiers, "own_verifiers:Ones", more) == 2
        assert f"another {more.split('=')[0]}" in capsys.readouterr().err
    assert score(small, verifiers, "own_verifiers:Ones", "prm.endpoint=http://elsewhere/v1", "prm.beta=0.1") == 0
    other = small.with_name("other.jsonl")
    other.write_text(small.read_text().split("\n")[0])
    assert score(other, verifiers, "own_verifiers:Ones") == 2
    assert "another set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prm.verifer=reference"], "unknown key prm.verifer, the nearest is prm.verifier"),
        (["prm.rounds=many"], "prm.rounds=many"),
        (["reference"], "write key=value"),
        (["prm.verifier=none"], "prm.verifier=none"),
        (["prm.verifier=nobody"], "nobody"),
        (["--concurrency", "0"], "--concurrency 0"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(path, tmp_path, capsys, words, said):
    assert main(["prm", "--set", str(path), "--out", str(tmp_path), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_building_into_a_folder_that_holds_something_else_is_refused(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("x")
    assert main(["prm", "--build", str(tmp_path), "--count", "1"]) == 2
    assert (tmp_path / "thesis.txt").exists()
