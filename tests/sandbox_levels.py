"""The isolation levels that this machine can be tested at, and the trainer's users: a case runner per level.

Root tests levels 4 and 2 as root and, in a process that has become `nobody` for good, levels 3 and 2. Anybody else
tests 3 and 2 as themselves.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sandbox_cases import SHARED

TESTS = Path(__file__).parent
NOBODY = 65534
_PATIENCE_S = 300.0
_AT_A_TIME = 5  # runners, which wait for time limits most of the time
_PER_RUNNER = 120  # cases


@dataclass(frozen=True)
class Level:
    """`nobody`: as that user, for which we must be root."""

    number: int
    nobody: bool

    def __str__(self) -> str:
        return f"{'nobody' if self.nobody else 'self'}-{self.number}"


LEVELS = (
    [Level(4, False), Level(2, False), Level(3, True), Level(2, True)]
    if os.geteuid() == 0
    else [Level(3, False), Level(2, False)]
)


_results: dict[Level, list[Future[list[dict[str, Any]]]]] = {}


def check(request: pytest.FixtureRequest, level: Level, case: str | None) -> dict[str, Any]:
    """Fail unless the case held at the level; its result, or without a case a runner's identity and end.

    The first call runs the cases of all levels that this pytest session has selected, all levels at the same time.
    """
    if level.nobody and (reason := why_not_as_nobody()):
        pytest.skip(reason)
    if not _results:
        pool = ThreadPoolExecutor(_AT_A_TIME)
        for each in reversed(LEVELS):  # the weakest has most cases
            names = _selected(request.session, each)
            shards = range(1 + len(names) // _PER_RUNNER)
            _results[each] = [pool.submit(run_cases, each, names[shard :: len(shards)]) for shard in shards]
        pool.shutdown(wait=False)
    runs = [run.result() for run in _results[level]]
    if "refused" in runs[0][0]:
        pytest.skip(runs[0][0]["refused"])
    if case is None:
        return runs[0][0] | runs[0][-1]
    result = next((fact for run in runs for fact in run if fact.get("case") == case), None)
    assert result is not None, f"a runner ended before this case: {[run[-1] for run in runs]}"
    assert result["problems"] == [], result
    if "SKIPPED" in str(result["stdout"]):
        pytest.skip(str(result["stdout"]))
    return result


def _selected(session: pytest.Session, level: Level) -> list[str]:
    chosen = (getattr(item, "callspec", None) for item in session.items)
    wanted = [
        spec.params["case"] for spec in chosen if spec and spec.params.get("level") == level and "case" in spec.params
    ]
    return list(dict.fromkeys(wanted))


def run_cases(level: Level, names: list[str]) -> list[dict[str, Any]]:
    """One fact per line of the runner: its identity (or "refused"), a result per case, "left" at the end, or "ended".

    The runner's folder is one of its own below the temporary directory.
    """
    folder = Path(tempfile.mkdtemp(prefix="sandbox-cases-"))
    folder.chmod(0o755)  # the sandbox is to protect what is in it, not this
    command = [sys.executable, str(TESTS / "sandbox_case_runner.py"), str(level.number), str(folder), str(_locks())]
    environment = {**os.environ, "WANDB_API_KEY": "HOST_SECRET", "HOME": str(folder), "TMPDIR": str(folder)}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    environment.pop("MPLCONFIGDIR", None)
    if level.nobody:
        os.chown(folder, NOBODY, NOBODY)
        command = as_nobody(command, folder)
    try:
        done = subprocess.run(
            command,
            input=json.dumps(names),
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired as late:
        return [*_facts(late.stdout or ""), {"ended": f"not within {_PATIENCE_S:g} s: {late.stderr}"}]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    facts = _facts(done.stdout)
    return facts if done.returncode == 0 else [*facts, {"ended": f"with {done.returncode}: {done.stderr[-2000:]}"}]


@functools.cache
def _locks() -> Path:
    """A folder for the runners' locks, open to all of them, until this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="sandbox-locks-")
    atexit.register(folder.cleanup)
    for name in ("all", "queue"):
        Path(folder.name, name).touch()
        Path(folder.name, name).chmod(0o666)
    Path(folder.name).chmod(0o755)
    return Path(folder.name)


def as_nobody(command: list[str], folder: Path) -> list[str]:
    """The command as a user without any right.

    The interpreter may live in a home that is closed to others (/root/.pyenv): in a mount namespace of its own, an
    empty and open folder takes the place of such a home, and in it is again what the command needs and nothing else.
    """
    script = ["set -e"]
    needed = [sys.base_prefix, sys.prefix, str(TESTS.parent), str(SHARED), str(folder), str(_locks())]
    closed = sorted({parent for path in needed if (parent := _closed_parent(Path(path)))})
    within = sorted(
        {path for path in needed if any(Path(path).is_relative_to(parent) for parent in closed) and Path(path).exists()}
    )
    if within:
        aside = folder / "aside"
        script += [f"mkdir {aside}", f"mount -t tmpfs tmpfs {aside}"]
        for number, path in enumerate(within):
            script += [f"mkdir {aside}/{number}", f"mount --rbind {shlex.quote(path)} {aside}/{number}"]
        script += [f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(parent))}" for parent in closed]
        for number, path in enumerate(within):
            script += [f"mkdir -p {shlex.quote(path)}", f"mount --rbind {aside}/{number} {shlex.quote(path)}"]
        script += [f"umount -l {aside}", f"rmdir {aside}"]
    become = [
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        "--bounding-set=-all",
        "--inh-caps=-all",
    ]
    script += [shlex.join(["exec", *become, *command])]
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(script)]


def why_not_as_nobody() -> str | None:
    """Why that is not possible here, None if it is."""
    for program in ("unshare", "setpriv", "mount"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    probe = ["unshare", "--mount", "--propagation", "private", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    done = subprocess.run(probe, capture_output=True, text=True)
    return None if done.returncode == 0 else f"mounts are not permitted: {done.stderr.strip()}"


def _closed_parent(path: Path) -> Path | None:
    """The uppermost folder on the way that others may not enter."""
    return next((parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001), None)


def _facts(text: str | bytes) -> list[dict[str, Any]]:
    lines = (text.decode() if isinstance(text, bytes) else text).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]
