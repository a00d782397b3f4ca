"""The side-by-side benchmark of the sandbox runs to its end, measures something, and leaves nothing."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

_REPO = Path(__file__).parents[1]


def processes_in(folder: Path) -> list[str]:
    """Pids of processes that work below a folder, removed or not."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/cwd").startswith(str(folder)):
                found.append(pid)
    return found


def test_quick_run_fills_every_column_and_leaves_nothing(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ran = subprocess.run(
        [sys.executable, "-m", "bench.sandbox", "--quick", "--json", tmp_path / "numbers.json"],
        cwd=_REPO,
        env=os.environ | {"TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert set(numbers["results"]) == {"this executor", "replay", "Jupyter"}
    for name, measured in numbers["results"].items():
        if measured is None:
            assert name == "Jupyter"
            assert "not installed" in ran.stdout
            continue
        for key in ("start_ms", "step_ms", "branch_ms", "branch_close_ms", "big_branch_ms", "steps_per_s"):
            assert measured[key], (name, key)
            assert min(measured[key]) > 0, (name, key)
        assert not min(measured["cpu_ms_per_step"]) <= 0  # NaN where the kernel refuses the counter
        assert measured["own_mb"] is None or measured["own_mb"] > 0
    assert len(numbers["goals"]) == 6
    assert all(goal["what"] in ran.stdout for goal in numbers["goals"])

    give_up = time.monotonic() + 5
    while processes_in(scratch) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert processes_in(scratch) == []
    assert {path.name for path in scratch.iterdir()} <= {f"datapm-sandbox-{os.getuid()}"}  # has the font cache only
    assert [path.name for path in scratch.glob("*/*")] in ([], ["matplotlib"])
