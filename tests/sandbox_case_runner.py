"""Runs cases in sandboxes of one level and prints a line of JSON for each. A program of its own, so that the trainer
that is attacked is a process with a secret in its environment, and may be of another user.

    python sandbox_case_runner.py LEVEL FOLDER LOCKS    names of cases as a JSON list on stdin

FOLDER is empty, LOCKS one that all runners have.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from sandbox_attacks import own_attacks
from sandbox_cases import given_attacks, harmless
from sandbox_host import Host
from sandbox_processes import processes
from sandbox_trial import Trial

from datapm_rl.errors import UserError
from datapm_rl.sandbox import Limits, Sandbox, Session


def main(level: int, folder: Path, locks: Path) -> None:
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # a subreaper: what escapes from the sandbox's tree is found below us
    names = json.load(sys.stdin)
    host = Host(folder)
    cases = {case.name: case for case in (*given_attacks(), *own_attacks(), *harmless())}
    tight = Limits(wall_s=1.0, memory_mb=1024, processes=32, workspace_mb=128, workspace_files=3000)
    patient = Limits(wall_s=60.0, memory_mb=1536, processes=32)
    try:
        with contextlib.ExitStack() as stack:
            sandboxes = [
                stack.enter_context(Sandbox(limits, workspace_root=folder / name, min_level=level, max_level=level))
                for limits, name in ((tight, "tight"), (patient, "patient"))
            ]
            others = [_other_session(sandbox, host) for sandbox in sandboxes]
            _tell({"level": sandboxes[0].level, **_identity()})
            for name in names:
                chosen = cases[name].patient
                with _turn(locks, cases[name].alone):
                    _tell(Trial(cases[name], sandboxes[chosen], host, others[chosen]).run())
    except UserError as error:
        _tell({"refused": str(error)})
        return
    _tell({"left": processes()})


def _other_session(sandbox: Sandbox, host: Host) -> Session:
    session = sandbox.session(host.data)
    session.run("theirs = 7")
    (session.workspace / "secret.txt").write_text("OTHER_SECRET")
    return session


@contextlib.contextmanager
def _turn(locks: Path, alone: bool) -> Iterator[None]:
    """Beside the other runners' cases, or alone. The first lock is a queue, so that many cannot keep one waiting."""
    with open(locks / "all", "w") as everybody:
        with open(locks / "queue", "w") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            fcntl.flock(everybody, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def _tell(facts: dict[str, object]) -> None:
    print(json.dumps(facts), flush=True)


def _identity() -> dict[str, object]:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "uids": os.getresuid(),
        "groups": os.getgroups(),
        "effective": status["CapEff"],
        "permitted": status["CapPrm"],
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
