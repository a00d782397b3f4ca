"""What processes cost: CPU seconds of this one and of all that come from it, and proportional memory (PSS)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import time

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_SOFTWARE, _TASK_CLOCK, _INHERIT, _CLOSE_ON_EXEC = 1, 1, 1 << 1, 8
_ATTR_SIZE = 128


class CpuClock:
    """CPU seconds of this process and of everything it starts from now on, exits included.

    A counter of the kernel (perf's task clock, inherited by children). Neither getrusage nor /proc would do: a parent
    that ignores SIGCHLD, as the sandbox's zygote does, is not credited with its children's time when they end.
    """

    def __init__(self) -> None:
        self.refused: str | None = None
        attr = ctypes.create_string_buffer(_ATTR_SIZE)
        struct.pack_into("IIQQQQQ", attr, 0, _SOFTWARE, _ATTR_SIZE, _TASK_CLOCK, 0, 0, 0, _INHERIT)
        number = _PERF_EVENT_OPEN.get(platform.machine())
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = -1 if number is None else libc.syscall(number, attr, 0, -1, -1, _CLOSE_ON_EXEC)
        if self._descriptor < 0:
            why = os.strerror(ctypes.get_errno()) if number else f"unknown on {platform.machine()}"
            self.refused = f"perf_event_open: {why}; see /proc/sys/kernel/perf_event_paranoid"

    def seconds(self) -> float:
        """Up to now. NaN where the kernel refused the counter."""
        if self.refused:
            return float("nan")
        return int(struct.unpack("Q", os.read(self._descriptor, 8))[0]) / 1e9


def tree(pid: int) -> set[int]:
    """All processes below one, itself not."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            parents[int(name)] = int(file.read().rsplit(")", 1)[1].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def pss_mb(pids: set[int]) -> float:
    """Sum of proportional set sizes in MB (10^6 bytes). Raises PermissionError when one may not be read."""
    kilobytes = 0
    for pid in pids:
        # gone meanwhile: FileNotFoundError on opening, ProcessLookupError on reading
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/smaps_rollup") as file:
            kilobytes += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return kilobytes * 1024 / 1e6


def settle(processes: int) -> None:
    """Wait until no more than that many are below this process: a killed one takes a while to end."""
    give_up = time.monotonic() + 5
    while len(tree(os.getpid())) > processes and time.monotonic() < give_up:
        time.sleep(0.02)
