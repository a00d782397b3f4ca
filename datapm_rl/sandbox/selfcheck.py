"""Proof of the isolation level: attacks attempted from inside a session when a sandbox starts.

A mechanism that is there may still not hold (an old Landlock, a container's own filter), so a level is claimed only
after each of its attacks has failed. The first claim of a process is kept for its later sandboxes.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from datapm_rl.errors import InfraError, UserError
from datapm_rl.sandbox.chain import Chain
from datapm_rl.sandbox.inside import kernel, landlock
from datapm_rl.sandbox.isolation import Isolation, candidates
from datapm_rl.sandbox.result import Limits
from datapm_rl.sandbox.root import Root
from datapm_rl.sandbox.zygote import NamespacesRefused, Zygote

_ATTACKS = Path(__file__).parent / "inside" / "attacks.py"
_HELD, _ESCAPED = "held", "escaped"
# attacks that a level below 2 does not stop
_NEEDS_LANDLOCK = frozenset({"read_file", "list_folder", "write_file", "truncate_data", "read_other_session", "proc"})
_PROOFS: dict[tuple[object, ...], IsolationReport] = {}


@dataclass(frozen=True)
class IsolationReport:
    """`level` 0 to 4; `probes`: attack -> "held" or "escaped" (none attempted at level 0);
    `refused`: better level -> what it lacks here."""

    level: int
    probes: dict[str, str]
    refused: dict[int, str]
    kernel: str = field(default_factory=platform.release)
    landlock_abi: int = field(default_factory=landlock.abi)
    uid: int = field(default_factory=os.geteuid)

    def summary(self) -> str:
        """One line for a log."""
        held = sum(result == _HELD for result in self.probes.values())
        lacking = "".join(f"; level {level} lacks {what}" for level, what in self.refused.items())
        return (
            f"level {self.level} ({held} of {len(self.probes)} attacks held; Linux {self.kernel}, "
            f"Landlock ABI {self.landlock_abi}, uid {self.uid}{lacking})"
        )

    def as_dict(self) -> dict[str, Any]:
        """For metrics and files."""
        return asdict(self)


def choose(
    min_level: int, max_level: int, start: Callable[[str], Zygote], read_only: Sequence[Path]
) -> tuple[Isolation, Zygote, IsolationReport]:
    """The best level between the two that holds, its zygote, and the proof. Raises UserError below `min_level`."""
    if not 0 <= min_level <= max_level <= 4:
        raise UserError(f"sandbox levels are 0 <= min_level <= max_level <= 4, got {min_level} and {max_level}")
    refused: dict[int, str] = {}
    for isolation in candidates(max_level):
        if isolation.level < min_level:
            break
        lacking = isolation.missing()
        if lacking is None:
            try:
                zygote = start(isolation.namespaces)
            except NamespacesRefused as error:
                lacking = f"namespaces ({error})"
        if lacking is None:
            report = _report(zygote, isolation, read_only, refused)
            if not (escaped := _escaped(report)):
                return isolation, zygote, report
            zygote.close()
            lacking = f"protection from {', '.join(escaped)}"
        refused[isolation.level] = lacking
    reasons = "; ".join(f"level {level} lacks {what}" for level, what in refused.items())
    reasons = reasons or f"no level from {min_level} to {max_level} is for this user (root: 4, 2, 1, 0; others: 3 to 0)"
    raise UserError(
        f"the sandbox cannot confine code here at level {min_level} or better: {reasons}. Provide what is missing, or "
        f"accept less with sandbox.min_level={max(0, min_level - 1)} (docs/sandbox.md says what that does not stop)"
    )


def _report(
    zygote: Zygote, isolation: Isolation, read_only: Sequence[Path], refused: dict[int, str]
) -> IsolationReport:
    """What became of the attacks; attempted once per process and kind of session."""
    if isolation.level == 1:
        kernel.set_dumpable(False)  # else any process of this user reads the trainer's environment and memory
    proof = (os.getpid(), isolation, tuple(read_only), tuple(refused))
    if proof in _PROOFS:
        return _PROOFS[proof]
    try:
        probes = attack(zygote, isolation, read_only) if isolation.level else {}
    except InfraError as error:
        probes = {f"the attacks ({error})": "not attempted"}
    report = IsolationReport(isolation.level, probes, dict(refused))
    if not _escaped(report):  # a failure may be a busy machine's: tried again next time
        _PROOFS[proof] = report
    return report


def _escaped(report: IsolationReport) -> list[str]:
    """The attacks that should have failed at the level and did not."""
    return [
        name
        for name, outcome in report.probes.items()
        if outcome != _HELD and (report.level >= 2 or name not in _NEEDS_LANDLOCK)
    ]


def attack(zygote: Zygote, isolation: Isolation, read_only: Sequence[Path]) -> dict[str, str]:
    """Attempt the attacks in a throwaway session. Raises InfraError when the session cannot be had."""
    with tempfile.TemporaryDirectory(prefix="datapm-canary-") as folder, _listeners(Path(folder)) as listeners:
        outside, data, other = Path(folder, "secret"), Path(folder, "data.csv"), Path(folder, "other")
        outside.write_text("canary")
        table = Path(folder, "table.csv")
        for file in (data, table):
            file.write_text("a,b\n1,2\n")
        other.mkdir()
        limits = Limits(wall_s=20.0, memory_mb=1024, processes=32)
        roots = [Root(zygote, isolation, limits, (), 0, [data, table], read_only) for _ in range(2)]
        chains = [Chain.start(root, limits, [data]) for root in roots]
        try:
            (chains[1].workspace / "secret").write_text("canary")
            facts = {
                "outside": str(outside),
                "folder": folder,
                "data": str(data),
                "table": str(table),
                "other": str(chains[1].workspace),
                "trainer": os.getpid(),
                **listeners,
            }
            code = _ATTACKS.read_text() + f"\nprint(attempt({facts!r}))"
            result = chains[0].run(code)
            probes = _parsed(result.stdout)
            if not probes:
                raise InfraError("selfcheck_failed", f"the attacks did not run: {result.status} {result.error}")
            probes["change_data"] = _HELD if _unchanged(data) else _ESCAPED
            probes |= _exhaustion(chains[0], limits)
        finally:
            for chain in chains:
                chain.close()
        return probes


_DAEMON = "import os, time\nif os.fork() == 0:\n    if os.fork() == 0: time.sleep(60)\n    os._exit(0)"
_FORKS = """
import os, time
for _ in range({count}):
    try:
        if os.fork() == 0: time.sleep(60); os._exit(0)
    except OSError: pass
time.sleep(20)
"""


def _exhaustion(chain: Chain, limits: Limits) -> dict[str, str]:
    """The attacks whose outcome is seen from outside: memory, a daemon, too many processes."""
    memory = chain.run(f"x = bytearray({2 * limits.memory_mb} << 20)").status.value == "memory"
    chain.run(_DAEMON)
    daemon = _nothing_left(chain)
    forks = chain.run(_FORKS.format(count=2 * limits.processes)).status.value == "limit"
    forks = forks and _nothing_left(chain)
    return {
        name: _HELD if held else _ESCAPED
        for name, held in (("memory", memory), ("daemon", daemon), ("processes", forks))
    }


def _nothing_left(chain: Chain) -> bool:
    for _ in range(20):
        if kernel.descendants(chain.root.process.pid) <= chain.root.zygote.living().keys():
            return True
        time.sleep(0.1)  # killed processes take a while to be gone on a busy machine
    return False


def _parsed(stdout: str) -> dict[str, str]:
    try:
        probes = json.loads(stdout)
    except ValueError:
        return {}
    return {str(name): str(outcome) for name, outcome in probes.items()}


def _unchanged(data: Path) -> bool:
    facts = data.stat()
    return data.read_text() == "a,b\n1,2\n" and facts.st_mode & 0o777 != 0o777 and facts.st_mtime > 1


@contextlib.contextmanager
def _listeners(folder: Path) -> Iterator[dict[str, Any]]:
    """Sockets that nothing from inside may reach: {"tcp": port, "unix": path, "abstract": name}."""
    abstract = f"datapm-canary-{os.getpid()}-{secrets.token_hex(4)}"
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix, socket.socket(socket.AF_UNIX) as hidden:
        tcp.bind(("127.0.0.1", 0))
        unix.bind(str(folder / "s"))
        hidden.bind("\0" + abstract)
        for listener in (tcp, unix, hidden):
            listener.listen()
        yield {"tcp": tcp.getsockname()[1], "unix": str(folder / "s"), "abstract": abstract}
