"""launch/common.sh: what a user meets when the environment cannot be made, and what a second call costs.

A stub plays Python 3.11: it "makes" an environment by copying itself and notes each call to pip, so these tests
take no network and no second of installing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

REPO = Path(__file__).parent.parent
STUB = """#!/usr/bin/env bash
case "$1" in
  -c)
    if [[ "$2" == *verl* && -n "${STUB_BROKEN:-}" ]]; then echo "ImportError: half a torch"; exit 1; fi
    exit "${STUB_NOT_311:-0}" ;;
  -VV) echo "Python 3.11.0 stub" ;;
  -m)
    if [[ "$2" == venv ]]; then
      [[ -n "${STUB_NO_VENV:-}" ]] && { echo "ensurepip is not available"; exit 1; }
      mkdir -p "$4/bin" && touch "$4/pyvenv.cfg" && cp "$0" "$4/bin/python"
    elif [[ "$*" == *" install "* ]]; then
      echo "$*" >>"$STUB_CALLS"
      if [[ -n "${STUB_PIP_FAILS:-}" && "$*" == *$STUB_PIP_FAILS* ]]; then echo "$STUB_PIP_SAYS"; exit 1; fi
    fi ;;
esac
"""


@pytest.fixture
def machine(tmp_path):
    """A copy of the launch scripts beside a stub Python; call it to make the environment."""
    repo, tools = tmp_path / "repo", tmp_path / "tools"
    (repo / "launch").mkdir(parents=True)
    tools.mkdir()
    shutil.copy(REPO / "launch" / "common.sh", repo / "launch")
    for name in ("pyproject.toml", "constraints.txt"):
        (repo / name).write_text("x\n")
    stub = tools / "python3.11"
    stub.write_text(STUB)
    stub.chmod(0o755)

    def run(**extra: str) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "STUB_CALLS": str(tmp_path / "calls"),
            "TMPDIR": str(tmp_path),
            **extra,
        }
        script = 'source launch/common.sh; make_environment; echo "PYTHON=$PYTHON"'
        return subprocess.run(["bash", "-c", script], cwd=repo, env=env, capture_output=True, text=True, timeout=60)

    run.repo, run.tools, run.calls = repo, tools, tmp_path / "calls"
    return run


def pip_calls(machine) -> list[str]:
    return machine.calls.read_text().splitlines() if machine.calls.exists() else []


def errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if "ERROR" in line]


def test_torch_is_installed_before_anything_that_wants_any_torch(machine):
    done = machine()
    assert done.returncode == 0, done.stderr
    assert f"PYTHON={machine.repo}/.venv/bin/python" in done.stdout
    pip, torch, everything = pip_calls(machine)
    assert "--upgrade pip" in pip
    assert "torch==2.13.0+cpu" in torch
    assert "[cpu,dev]" in everything
    assert "-c " in everything


def test_second_call_installs_nothing(machine):
    machine()
    machine.calls.unlink()
    done = machine()
    assert done.returncode == 0
    assert "up to date" in done.stdout
    assert pip_calls(machine) == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_requirements_are_not_missed(machine, name):
    machine()
    machine.calls.unlink()
    (machine.repo / name).write_text("y\n")
    machine()
    assert len(pip_calls(machine)) == 3


def test_interrupted_installation_is_done_again(machine):
    assert machine(STUB_PIP_FAILS="[cpu,dev]", STUB_PIP_SAYS="interrupted").returncode == 1
    machine.calls.unlink()
    assert machine().returncode == 0
    assert len(pip_calls(machine)) == 3
    assert machine(STUB_PIP_FAILS="install", STUB_PIP_SAYS="must not be called").returncode == 0


def test_failed_renewal_does_not_leave_the_old_stamp(machine):
    machine()
    (machine.repo / "pyproject.toml").write_text("y\n")
    assert machine(STUB_PIP_FAILS="[cpu,dev]", STUB_PIP_SAYS="boom").returncode == 1
    (machine.repo / "pyproject.toml").write_text("x\n")
    machine.calls.unlink()
    machine()
    assert len(pip_calls(machine)) == 3


def test_half_a_package_left_by_a_killed_pip_is_noticed(machine):
    done = machine(STUB_BROKEN="1")
    assert done.returncode == 1
    assert "ImportError: half a torch" in errors(done)[0]
    assert f"remove {machine.repo}/.venv" in errors(done)[0]
    machine.calls.unlink()
    machine()
    assert len(pip_calls(machine)) == 3


def test_no_network_is_one_sentence_with_the_log(machine):
    says = "NewConnectionError: failed\nERROR: No matching distribution found for torch"
    done = machine(STUB_PIP_FAILS="torch", STUB_PIP_SAYS=says)
    assert done.returncode == 1
    (message,) = errors(done)[-1:]
    assert "index cannot be reached" in message
    assert Path(message.rsplit("log: ", 1)[1]).is_file()


def test_index_without_the_cpu_wheel_asks_the_index_of_pytorch(machine):
    machine(STUB_PIP_FAILS="torch", STUB_PIP_SAYS="ERROR: No matching distribution found for torch==2.13.0+cpu")
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in pip_calls(machine)[-1]


def test_missing_python_is_named(machine):
    done = machine(STUB_NOT_311="1", DATAPM_RL_PYTHON=str(machine.tools / "python3.11"))
    assert done.returncode == 1
    assert "is not a Python 3.11" in errors(done)[0]
    assert pip_calls(machine) == []


def test_no_python_311_anywhere(machine):
    for name in ("python3", "python"):
        shutil.copy(machine.tools / "python3.11", machine.tools / name)
    done = machine(STUB_NOT_311="1")
    assert done.returncode == 1
    assert errors(done) == [
        "[datapm_rl] ERROR: no Python 3.11 found (tried python3.11, python3, python): "
        "install it, or name it in DATAPM_RL_PYTHON."
    ]


def test_missing_venv_module_says_what_to_install(machine):
    done = machine(STUB_NO_VENV="1")
    assert done.returncode == 1
    assert "apt install python3.11-venv" in errors(done)[0]


def test_full_disk_stops_before_the_first_download(machine):
    df = machine.tools / "df"
    df.write_text("#!/bin/sh\necho header\necho 'disk 1 1 2097152 1% /'\n")
    df.chmod(0o755)
    done = machine()
    assert done.returncode == 1
    assert "2 GB free" in errors(done)[0]
    assert pip_calls(machine) == []


def test_folder_of_the_user_is_not_overwritten(machine, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    done = machine(DATAPM_RL_VENV=str(tmp_path / "mine"))
    assert done.returncode == 1
    assert "is not a Python environment" in errors(done)[0]
    assert (tmp_path / "mine" / "thesis.tex").exists()
