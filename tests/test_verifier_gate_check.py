"""Training refuses a verifier that was not measured, not measured as it is used, or not good enough."""

from __future__ import annotations

import dataclasses
import json

import pytest
from omegaconf import OmegaConf

from datapm_rl.config import PrmConfig
from datapm_rl.errors import UserError
from datapm_rl.verifier.gate.check import check_gate, identity

pytestmark = pytest.mark.unit

USED = PrmConfig(verifier="generative", model="dataprm", endpoint="http://a/v1")


@pytest.fixture
def report(tmp_path):
    """A summary: kappa 0.6, silent recall 0.8."""
    path = tmp_path / "summary.json"

    def interval(value):
        return {"value": value, "low": value and value - 0.05, "high": value and value + 0.05, "n": 90}

    metrics = {"kappa": interval(0.6), "silent_recall": interval(0.8)}
    path.write_text(json.dumps({"settings": identity(USED), "metrics": metrics}))
    return path


def prm(report=None, **settings):
    path = str(report) if report else None
    return OmegaConf.structured(dataclasses.replace(USED, gate_report=path, **settings))


def test_without_a_minimum_nothing_is_asked(tmp_path):
    check_gate(prm())
    check_gate(prm(tmp_path / "absent.json"))


def test_a_verifier_that_reaches_the_minima_may_train(report):
    check_gate(prm(report, min_kappa=0.6, min_silent_recall=0.75))


@pytest.mark.parametrize(
    "other",
    [
        {"model": "weaker"},
        {"verifier": "judge"},
        {"temperature": 0.1},
        {"environment": False},
        {"scores": "binary"},
        {"tools": []},
        {"rounds": 2},
        {"context_tokens": 9000},
    ],
)
def test_a_report_of_other_settings_is_refused_and_says_which(report, other):
    with pytest.raises(UserError, match=rf"of another verifier: its prm\.{next(iter(other))} is"):
        check_gate(prm(report, min_kappa=0.1, **other))


def test_another_address_or_use_of_the_same_verifier_is_the_same_verifier(report):
    used = {"endpoint": "pool", "beta": 0.1, "concurrency": 4, "deadline_s": 60.0}
    check_gate(prm(report, min_kappa=0.5, **used))


@pytest.mark.parametrize(
    ("minimum", "said"),
    [
        ({"min_kappa": 0.61}, "kappa is 0.600 (95 % interval 0.550 to 0.650, n 90"),
        ({"min_silent_recall": 0.9}, "silent_recall is 0.800"),
    ],
)
def test_a_value_below_the_minimum_is_named_with_its_interval(report, minimum, said):
    with pytest.raises(UserError) as error:
        check_gate(prm(report, **minimum))
    assert said in str(error.value)
    assert next(iter(minimum)) in str(error.value)


def test_a_value_that_could_not_be_measured_does_not_pass(report):
    row = json.loads(report.read_text())
    row["metrics"]["kappa"] = {"value": None, "low": None, "high": None, "n": 0}
    report.write_text(json.dumps(row))
    with pytest.raises(UserError, match="has no kappa"):
        check_gate(prm(report, min_kappa=0.0))


def test_a_missing_or_broken_report_is_refused(tmp_path):
    with pytest.raises(UserError, match="gate_report names no summary"):
        check_gate(prm(min_kappa=0.5))
    path = tmp_path / "r.json"
    with pytest.raises(UserError, match="cannot be read"):
        check_gate(prm(path, min_kappa=0.5))
    for text, said in (("{", "cannot be read"), ("[]", "is no summary"), ('{"settings": {}}', "is no summary")):
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            check_gate(prm(path, min_kappa=0.5))


def test_the_identity_holds_no_address():
    assert "http" not in json.dumps(identity(USED))
