"""Nothing is left behind, and nothing grows: closing, killed owners, lost zygotes, many steps, many threads."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from datapm_rl.errors import InfraError
from datapm_rl.sandbox import Limits, Sandbox
from datapm_rl.trajectory import StepStatus

pytestmark = pytest.mark.unit


def tree(root_pid: int) -> set[int]:
    """A process and all its descendants."""
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            parents[int(pid)] = int(file.read().rsplit(")", 1)[1].split()[1])
    found = {root_pid}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found & set(parents)


def wait_until(condition, seconds: float = 5.0) -> bool:
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if os.path.exists(f"/proc/{pid}")}


def test_close_leaves_no_process_and_no_folder(tmp_path):
    root = tmp_path / "root"
    sandbox = Sandbox(preload=(), workspace_root=root)
    sessions = [sandbox.session(tmp_path) for _ in range(3)]
    for session in sessions:
        session.run("x = 1")
    twin = sessions[0].branch()
    sessions[0].close()
    assert not sessions[0].workspace.exists()
    assert twin.workspace.exists()
    pids = tree(sandbox.health()["zygote_pid"])
    assert len(pids) >= 6
    sandbox.close()
    sandbox.close()
    assert wait_until(lambda: not alive(pids))
    assert list(root.iterdir()) == []
    assert sessions[1].run("x").cause in ("sandbox_lost", "session_closed")
    with pytest.raises(InfraError):
        sandbox.session(tmp_path)


_OWNER = """
import sys, threading, time
from datapm_rl.sandbox import Limits, Sandbox
sandbox = Sandbox(Limits(wall_s=60), preload=(), workspace_root=sys.argv[1])
session = sandbox.session(sys.argv[1])
session.run("x = 1")
twin = session.branch()
code = "import os, time\\nif os.fork() == 0: os.setsid()\\ntime.sleep(60)"
threading.Thread(target=session.run, args=(code,), daemon=True).start()
time.sleep(0.3)
print(sandbox.health()["zygote_pid"], flush=True)
time.sleep(60)
"""


def start_owner(folder):
    return subprocess.Popen([sys.executable, "-c", _OWNER, str(folder)], stdout=subprocess.PIPE, text=True)


def test_an_owner_killed_in_mid_step_leaves_no_process_and_no_folder(tmp_path):
    with start_owner(tmp_path) as owner:
        pids = tree(int(owner.stdout.readline()))
        assert len(pids) >= 5  # zygote, root, snapshot, running step and its child, branch
        owner.kill()
        owner.wait()
        assert wait_until(lambda: not alive(pids))
        assert wait_until(lambda: not [path for path in tmp_path.iterdir() if path.is_dir()])


def test_folders_of_an_owner_killed_together_with_its_zygote_go_at_the_next_start(tmp_path):
    with start_owner(tmp_path) as owner:
        zygote = int(owner.stdout.readline())
        pids = tree(zygote)
        os.kill(zygote, signal.SIGSTOP)  # so that it cannot clean up
        owner.kill()
        owner.wait()
        os.kill(zygote, signal.SIGKILL)
        wait_until(lambda: len(alive(pids)) <= 1)
        for pid in alive(pids):  # at this level the step's own setsid child outlives both
            os.kill(pid, signal.SIGKILL)
        assert [path for path in tmp_path.iterdir() if path.is_dir()]
    with Sandbox(preload=(), workspace_root=tmp_path):
        assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_lost_zygote_is_our_failure_and_new_sessions_get_a_new_one(tmp_path):
    with Sandbox(preload=(), workspace_root=tmp_path / "root") as sandbox:
        session = sandbox.session(tmp_path)
        session.run("x = 1")
        os.kill(sandbox.health()["zygote_pid"], signal.SIGKILL)
        assert wait_until(lambda: not sandbox.health()["alive"])
        result = session.run("x")
        assert (result.status, result.cause) == (StepStatus.INFRA_ERROR, "sandbox_lost")
        with pytest.raises(InfraError):
            session.branch()
        assert sandbox.session(tmp_path).run("1").value == "1"
        session.close()


def test_closing_in_mid_step_ends_the_step_as_ours(tmp_path):
    with Sandbox(Limits(wall_s=30), preload=(), workspace_root=tmp_path / "root") as sandbox:
        session = sandbox.session(tmp_path)
        threading.Timer(0.2, session.close).start()
        started = time.monotonic()
        result = session.run("while True: pass")
        assert (result.status, result.cause) == (StepStatus.INFRA_ERROR, "session_closed")
        assert time.monotonic() - started < 5
        assert session.run("1").cause == "session_closed"


def test_threads_run_different_sessions_at_the_same_time(tmp_path):
    with Sandbox(Limits(wall_s=10), preload=(), workspace_root=tmp_path / "root") as sandbox:

        def play(number: int) -> list[str | None]:
            with sandbox.session(tmp_path, seed=number) as session:
                session.run(f"x = {number}; import time")
                with session.branch() as twin:
                    return [
                        session.run("time.sleep(0.2); x").value,
                        twin.run("x").value,
                        session.branch().run("x").value,
                    ]

        started = time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            results = list(pool.map(play, range(32)))
        assert results == [[str(number)] * 3 for number in range(32)]
        assert time.monotonic() - started < 32 * 0.2


def test_300_steps_with_kills_grow_neither_descriptors_nor_processes(tmp_path):
    with Sandbox(Limits(wall_s=1.0), preload=(), workspace_root=tmp_path / "root") as sandbox:
        session = sandbox.session(tmp_path)
        session.run("x = 0; import os")
        zygote = sandbox.health()["zygote_pid"]

        def sizes() -> tuple[int, int, int]:
            return len(os.listdir("/proc/self/fd")), len(tree(zygote)), len(os.listdir(f"/proc/{zygote}/fd"))

        gc.collect()  # descriptors of other tests' garbage must not be counted
        before = sizes()
        for number in range(300):
            result = session.run("x += 1; x")
            assert result.value == str(number + 1), result
            if number % 10 == 0:
                assert session.run("os._exit(1)").status is StepStatus.DIED
            if number % 150 == 0:
                assert session.run("while True: pass").status is StepStatus.TIMEOUT
            if number % 5 == 0:
                with session.branch() as twin:
                    twin.run("x")
        assert wait_until(lambda: sizes() == before), (before, sizes())
