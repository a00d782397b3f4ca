"""`python -m bench.sandbox_soak --steps 10000`: many steps with kills at random; nothing may be lost, left or grow.

Each player counts in a variable and in a file of its session, while steps time out, crash, leave daemons, and parked
states, a session's first process and the zygote are killed. A count that is not what it must be is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from datapm_rl.sandbox import Limits, Sandbox, Session
from datapm_rl.sandbox.inside import kernel
from datapm_rl.trajectory import StepStatus

_COUNT = "x += 1; open('count', 'a').write('.'); import os; (x, os.path.getsize('count'))"
_STOPPED = {
    "exit": ("import os; x = -1; open('count', 'a').write('!'); os._exit(1)", StepStatus.DIED),
    "crash": ("x = -1; import ctypes; ctypes.string_at(0)", StepStatus.DIED),
    "timeout": ("x = -1; open('count', 'w').close()\nwhile True: pass", StepStatus.TIMEOUT),
    "daemon": (
        "import time\nif os.fork() == 0:\n    if os.fork() == 0: time.sleep(60)\n    os._exit(0)",
        StepStatus.OK,
    ),
    "memory": ("y = bytearray(1 << 40)", StepStatus.MEMORY),
}


@dataclass
class Soak:
    """What a soak found. Growth is from a tenth of the steps to the end, in the process that owns the sandbox."""

    steps: int
    seconds: float
    events: dict[str, int]
    errors: list[str]
    descriptor_growth: int
    memory_growth_mb: float
    zombies: int
    processes_left: int
    folders_left: list[str]


def soak(steps: int, players: int, seed: int, kill_zygote_every: int) -> Soak:
    """Play `steps` counting steps in all. Blocks."""
    events: Counter[str] = Counter()
    errors: list[str] = []
    done = 0
    lock = threading.Lock()
    middle: tuple[int, float] = (0, 0.0)
    before = kernel.descendants(os.getpid())
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        data = Path(folder, "data")
        data.mkdir()
        root = Path(folder, "root")
        with Sandbox(Limits(wall_s=1.0, memory_mb=1024), workspace_root=root, recycle_after=40) as sandbox:

            def play(number: int) -> None:
                nonlocal done, middle
                dice = random.Random(seed * 1000 + number)
                while done < steps and len(errors) < 10:
                    with sandbox.session(data, seed=number) as session:
                        session.run("x = 0")
                        for count in range(1, dice.randint(5, 60)):
                            event = _disturb(session, sandbox, dice, kill_zygote_every)
                            result = session.run(_COUNT)
                            with lock:
                                events[event] += 1
                                done += 1
                                if result.value != f"({count}, {count})":
                                    errors.append(f"player {number}, step {count} after {event}: {result}")
                                    return
                                if done == steps // 10:
                                    middle = _size()
                            if done >= steps:
                                break

            threads = [threading.Thread(target=play, args=(number,)) for number in range(players)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            gc.collect()
            descriptors, memory = _size()
            zombies = _zombies(kernel.descendants(os.getpid()))
        time.sleep(0.5)
        left = kernel.descendants(os.getpid()) - before
        folders = sorted(str(path) for path in root.rglob("*"))[:5]
    growth = descriptors - middle[0], round(memory - middle[1], 1)
    seconds = round(time.monotonic() - started, 1)
    return Soak(done, seconds, dict(events), errors, *growth, zombies, len(left), folders)


def _disturb(session: Session, sandbox: Sandbox, dice: random.Random, kill_zygote_every: int) -> str:
    """Something bad, or nothing; what it was."""
    if dice.random() < 1 / kill_zygote_every:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(str(sandbox.health()["zygote_pid"])), signal.SIGKILL)
        return "zygote killed"
    draw = dice.random()
    if draw < 0.004:
        session._chain.root.process.stop()
        return "first process killed"
    if draw < 0.01:
        state = session._chain.states[-1].process
        if state is not None:
            state.stop()
        return "parked state killed"
    if draw < 0.1:
        with session.branch() as twin:
            twin.run("x = -1; open('count', 'w').close()")
        return "branch"
    if draw < 0.2:
        event = dice.choice(["exit", "exit", "crash", "daemon", "memory", "timeout"])
        code, status = _STOPPED[event]
        if session.run(code).status is not status:
            return f"{event} (not as it should)"
        return event
    return "nothing"


def _size() -> tuple[int, float]:
    """Descriptors, and megabytes resident, of this process."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _zombies(pids: set[int]) -> int:
    """How many stay zombies for a while."""

    def is_zombie(pid: int) -> bool:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
        return False

    first = {pid for pid in pids if is_zombie(pid)}
    time.sleep(1.0)
    return sum(map(is_zombie, first))


def main() -> None:
    """Parse, soak, print; exit code 1 when something was lost or left."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--players", type=int, default=4, help="sessions at the same time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kill-zygote-every", type=int, default=1000, help="steps between two such kills, on average")
    arguments = parser.parse_args()
    found = soak(arguments.steps, arguments.players, arguments.seed, arguments.kill_zygote_every)
    print(json.dumps(asdict(found), indent=1))
    bad = found.errors or found.zombies or found.processes_left or found.folders_left
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
