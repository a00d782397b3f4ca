"""The isolation level is proved, reported, and refused when it is too low; the filter's tables are right."""

import ctypes
import json
import subprocess
import sys

import pytest

from datapm_rl.errors import UserError
from datapm_rl.sandbox import Sandbox, isolation, selfcheck
from datapm_rl.sandbox.inside import kernel, syscalls

pytestmark = pytest.mark.unit


@pytest.fixture
def forgotten(monkeypatch):
    monkeypatch.setattr(selfcheck, "_PROOFS", {})


def test_the_best_level_is_taken_and_each_attack_is_reported(tmp_path, forgotten):
    with Sandbox(preload=(), workspace_root=tmp_path) as sandbox:
        report = sandbox.isolation
        assert sandbox.level == report.level >= 2
        assert len(report.probes) >= 20
        assert set(report.probes.values()) == {"held"}
        assert f"level {sandbox.level}" in report.summary()
        json.dumps(report.as_dict())


def test_without_landlock_a_start_is_refused_with_what_is_missing_and_the_switch(tmp_path, forgotten, monkeypatch):
    monkeypatch.setattr(isolation.landlock, "abi", lambda: 0)
    with pytest.raises(UserError, match=r"level 2 lacks Landlock.*sandbox\.min_level=1"):
        Sandbox(preload=(), workspace_root=tmp_path)
    try:
        with Sandbox(preload=(), workspace_root=tmp_path, min_level=1) as sandbox:
            assert sandbox.level == 1
            assert sandbox.isolation.probes["read_file"] == "escaped", "said, not hidden"
            assert sandbox.isolation.refused[2].startswith("Landlock")
            assert sandbox.session(tmp_path, []).run("1 + 1").value == "2"
    finally:
        kernel.set_dumpable(True)


def test_a_level_whose_attack_succeeds_is_not_claimed(tmp_path, forgotten, monkeypatch):
    monkeypatch.setattr(selfcheck, "attack", lambda *_: {"tcp": "escaped", "read_file": "held"})
    with pytest.raises(UserError, match="protection from tcp"):
        Sandbox(preload=(), workspace_root=tmp_path)
    assert list(tmp_path.iterdir()) == [], "nothing is left of the zygotes that were tried"


@pytest.mark.parametrize(("least", "most"), [(3, 2), (-1, 4), (0, 5)])
def test_impossible_levels_are_one_sentence(tmp_path, least, most):
    with pytest.raises(UserError, match="sandbox levels"):
        Sandbox(preload=(), workspace_root=tmp_path, min_level=least, max_level=most)


def test_the_doctor_prints_level_and_probes_and_fails_below_the_least_level():
    def doctor(*arguments):
        command = [sys.executable, "-m", "datapm_rl.doctor", "sandbox", *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    told = doctor("--json")
    assert told.returncode == 0, told.stderr
    report = json.loads(told.stdout)
    assert report["level"] >= 2
    assert report["works"] is True
    assert report["probes"]["trainer_environment"] == "held"
    refused = doctor("--min-level", "3", "--max-level", "2")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1


def test_system_call_numbers_are_those_of_libseccomp():
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("libseccomp is not installed")
    resolve = library.seccomp_syscall_resolve_name_arch
    resolve.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    compared = 0
    for name, ours in syscalls._NUMBERS.items():
        for number, arch in zip(ours, syscalls.AUDIT_ARCH.values(), strict=True):
            theirs = resolve(arch, name.encode())
            if theirs == -1:  # newer than the library
                continue
            assert (number if number is not None else theirs) == theirs, name
            assert (number is None) == (theirs < 0), name
            compared += 1
    assert compared > 150
