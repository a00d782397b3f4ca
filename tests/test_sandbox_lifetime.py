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
    assert not list(sessions[0].workspace.iterdir())  # the folder itself is for the next branch
    assert twin.run("x").value == "1"
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
code = "import os, time\\nos.fork()\\ntime.sleep(60)"
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
        assert wait_until(lambda: not alive(pids))
        assert [path for path in tmp_path.iterdir() if path.is_dir()]
    with Sandbox(preload=(), workspace_root=tmp_path):
        assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1
    assert list(tmp_path.iterdir()) == []


def kill_zygote(sandbox):
    os.kill(sandbox.health()["zygote_pid"], signal.SIGKILL)
    assert wait_until(lambda: not sandbox.health()["alive"])


def test_a_session_whose_zygote_was_killed_goes_on_with_variables_files_and_seeds(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t.csv").write_text("a\n1\n")
    with Sandbox(Limits(wall_s=1), workspace_root=tmp_path / "root", keep="all") as sandbox:
        session = sandbox.session(tmp_path / "data", seed=3)
        session.run("import random; df = pd.read_csv('t.csv'); open('log', 'a').write('one')")
        drawn = [session.run("random.random(), float(np.random.rand())").value for _ in range(2)]
        assert session.run("df = None; while True: pass").status is StepStatus.ERROR
        assert session.run("df = None; open('log', 'a').write('two')\nwhile True: pass").status is StepStatus.TIMEOUT
        twin = session.branch(1)
        kill_zygote(sandbox)
        assert session.run("len(df), open('log').read()").value == "(1, 'one')"
        assert twin.run("random.random(), float(np.random.rand())").value == drawn[0], "the branch's state, not a later"
        assert session.branch(2).run("random.random(), float(np.random.rand())").value == drawn[1]
        assert sandbox.health()["rebuilt"] >= 2
        assert sandbox.health()["diverged"] == 0


def test_a_replay_that_goes_another_way_is_missing_with_a_cause_not_a_wrong_state(tmp_path):
    (tmp_path / "data").mkdir()
    with Sandbox(preload=(), workspace_root=tmp_path / "root", read_only=[tmp_path / "outside"]) as sandbox:
        (tmp_path / "outside").write_text("1")
        session = sandbox.session(tmp_path / "data")
        assert session.run(f"x = 1 / int(open({str(tmp_path / 'outside')!r}).read()); x").value == "1.0"
        (tmp_path / "outside").write_text("0")
        kill_zygote(sandbox)
        assert session.run("x").cause == "replay_diverged"


def test_a_state_that_kills_itself_when_it_is_continued_is_the_agents_failure(tmp_path):
    with Sandbox(preload=(), workspace_root=tmp_path / "root") as sandbox:
        session = sandbox.session(tmp_path)
        session.run("x = 1")
        session.run("import os; os.register_at_fork(before=lambda: os._exit(0)); x = 2")
        with session.branch() as twin:
            assert twin.run("x").status is StepStatus.DIED
        result = session.run("x")
        assert (result.status, result.rolled_back) == (StepStatus.DIED, True)
        assert "undone" in result.error
        assert session.run("x").value == "1", "the state before the one that kills itself"


def test_a_parked_state_that_the_kernel_killed_is_rebuilt(tmp_path):
    with Sandbox(preload=(), workspace_root=tmp_path / "root") as sandbox:
        session = sandbox.session(tmp_path)
        session.run("x = 1")
        process = session._chain.states[-1].process
        process.stop()
        process.wait_end(5)
        assert session.run("x").value == "1"


def test_without_seccomp_a_step_that_kills_its_group_loses_nothing(tmp_path):
    with Sandbox(preload=(), workspace_root=tmp_path / "root", min_level=0, max_level=0) as sandbox:
        session = sandbox.session(tmp_path)
        session.run("x = 1")
        for code in ("os.killpg(0, 9)", "os.kill(os.getppid(), 9)\nwhile True: pass"):
            assert session.run(f"import os; {code}").status in (StepStatus.DIED, StepStatus.TIMEOUT)
            assert session.run("x").value == "1"


def test_sessions_get_a_new_zygote_after_some_and_old_ones_go_on(tmp_path):
    with Sandbox(preload=(), workspace_root=tmp_path / "root", recycle_after=3) as sandbox:
        old = sandbox.session(tmp_path)
        old.run("x = 1")
        first = sandbox.health()["zygote_pid"]
        for _ in range(4):
            sandbox.session(tmp_path).close()
        assert sandbox.health()["zygote_pid"] != first
        assert old.run("x").value == "1"
        old.close()
        for _ in range(4):
            sandbox.session(tmp_path).close()
        assert wait_until(lambda: not alive({first}))


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
