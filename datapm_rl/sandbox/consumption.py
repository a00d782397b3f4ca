"""What a running step consumes, processes that it started included."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass

from datapm_rl.sandbox.inside import kernel

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Consumption:
    """`tasks`: processes and threads. `cpu_s`: seconds of CPU, of ended and awaited children too. `memory`: bytes."""

    tasks: int
    cpu_s: float
    memory: int


def consumption(pid: int, most_tasks: int) -> Consumption:
    """Of a process and all below it. What has ended meanwhile counts nothing; above `most_tasks` only they count."""
    pids = [pid, *kernel.descendants(pid)]
    tasks = len(pids) if len(pids) > most_tasks else sum(map(kernel.thread_count, pids))
    if tasks > most_tasks:  # a fork bomb leaves little time to look at more
        return Consumption(tasks, 0.0, 0)
    return Consumption(
        tasks,
        sum(map(cpu_seconds, pids)),
        # what several processes share would be counted for each, and to ask for shares is dear
        _resident(pid) if len(pids) == 1 else sum(map(_proportional, pids)),
    )


def cpu_seconds(pid: int) -> float:
    """Of a process and its ended, awaited children; 0 when it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        fields = file.read().rsplit(b")", 1)[1].split()
        return sum(map(int, fields[11:15])) / _TICKS  # utime, stime, cutime, cstime
    return 0.0


def _resident(pid: int) -> int:
    """Anonymous and shared memory; mapped files are not the step's."""
    return _sum_of(f"/proc/{pid}/status", (b"RssAnon:", b"RssShmem:"))


def _proportional(pid: int) -> int:
    return _sum_of(f"/proc/{pid}/smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:"))


def _sum_of(path: str, names: tuple[bytes, ...]) -> int:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith(names))
    return 0


def nameless_bytes(pid: int) -> int:
    """Size of the files that a process and those below it hold open and have deleted: they fill the disk unseen."""
    total = 0
    for each in (pid, *kernel.descendants(pid)):
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{each}/fd"):
                with contextlib.suppress(OSError):
                    status = os.stat(f"/proc/{each}/fd/{fd}")
                    total += status.st_size if stat.S_ISREG(status.st_mode) and not status.st_nlink else 0
    return total
