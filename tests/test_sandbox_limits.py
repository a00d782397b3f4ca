"""What a step may use, and what it may see: each limit has its own status, and the next step works."""

import os
import time

import pytest

from datapm_rl.sandbox import Limits, Sandbox
from datapm_rl.trajectory import StepStatus

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    os.environ["WANDB_API_KEY"] = "HOST_SECRET"
    limits = Limits(wall_s=3.0, memory_mb=512, output_kb=4, processes=8, file_mb=1)
    with Sandbox(limits, preload=("numpy",), workspace_root=tmp_path_factory.mktemp("root")) as sandbox:
        yield sandbox
    del os.environ["WANDB_API_KEY"]


@pytest.fixture
def session(sandbox, tmp_path):
    with sandbox.session(tmp_path) as session:
        yield session
        assert session.run("1 + 1").value == "2"


def test_too_much_memory_is_its_own_status_and_keeps_the_state(session):
    session.run("x = 1")
    assert session.run("y = np.ones(2**30 // 8)").status is StepStatus.MEMORY
    assert session.run("y = [0] * 10**9").status is StepStatus.MEMORY
    assert session.run("x").value == "1"


def test_more_output_than_a_pipe_holds_does_not_block_and_keeps_both_ends(session):
    result = session.run("print('first'); print('x' * 400_000); print('last')")
    assert result.status is StepStatus.OK
    assert result.stdout.startswith("first\n")
    assert result.stdout.endswith("last\n")
    assert len(result.stdout) < 4096 + 100
    assert "bytes dropped" in result.stdout


def test_stderr_is_interleaved_with_stdout(session):
    result = session.run("import sys\nprint('a'); print('b', file=sys.stderr); print('c')")
    assert result.stdout == "a\nb\nc\n"


def test_output_without_end_is_killed(session):
    started = time.monotonic()
    result = session.run("while True: print('A' * 100_000)")
    assert result.status in (StepStatus.OUTPUT, StepStatus.TIMEOUT)
    assert len(result.stdout) < 4096 + 100
    assert time.monotonic() - started < 5


def test_a_huge_value_or_message_is_shortened(session):
    assert len(session.run("list(range(10**6))").value) < 4096 + 100
    assert len(session.run("raise ValueError('y' * 10**6)").error) < 4096 + 100


def test_a_large_file_is_a_limit(session):
    assert session.run("open('big', 'wb').write(bytes(2 << 20))").status is StepStatus.LIMIT


def test_cpu_time_is_a_limit_of_all_processes_together(tmp_path):
    with Sandbox(Limits(wall_s=20, cpu_s=0.6), preload=(), workspace_root=tmp_path / "root") as sandbox:
        result = sandbox.session(tmp_path).run("import os\nos.fork(); os.fork()\nwhile True: pass")
        assert (result.status, result.rolled_back) == (StepStatus.TIMEOUT, True)
        assert "CPU" in result.error


def test_memory_of_children_counts_too(session):
    child = "x = bytearray(b'1') * (200 << 20); time.sleep(60)"
    code = f"import os, time\nfor _ in range(4):\n    if os.fork() == 0: {child}\n"
    assert session.run(code + "time.sleep(60)").status in (StepStatus.MEMORY, StepStatus.TIMEOUT)


def test_a_full_workspace_is_a_limit_and_is_emptied_of_what_the_step_wrote(tmp_path):
    limits = Limits(wall_s=20, workspace_mb=2, workspace_files=100)
    with Sandbox(limits, preload=(), workspace_root=tmp_path / "root") as sandbox:
        session = sandbox.session(tmp_path)
        session.run("x = 1; open('mine', 'w').write('1')")
        for code in (
            "for i in range(3): open(f'big{i}', 'wb').write(bytes(1 << 20))",
            "for i in range(200): open(f'i{i}', 'w').close()",
            "import os\nfor i in range(200): os.mkdir('d'); os.chdir('d')",
        ):
            result = session.run(f"x = 2\n{code}")
            assert (result.status, result.rolled_back) == (StepStatus.LIMIT, True)
            assert "workspace" in result.error
            assert session.run("import os; (x, os.listdir())").value == "(1, ['mine'])"


def test_too_many_processes_are_a_limit_and_none_is_left(session):
    result = session.run("import os, time\nfor _ in range(20):\n    if os.fork() == 0: time.sleep(60)\ntime.sleep(60)")
    assert result.status is StepStatus.LIMIT
    assert "processes" in result.error
    assert processes_in(session.workspace) <= 1  # the parked root


def test_background_processes_end_with_the_step_daemons_too(session):
    code = (
        "import os, time, subprocess\n"
        "subprocess.Popen(['sleep', '60'])\n"
        "if os.fork() == 0:\n    if os.fork() == 0: time.sleep(60)\n    os._exit(0)\n"
    )
    assert session.run(code).status is StepStatus.OK
    assert processes_in(session.workspace) <= 2  # the root and the newest snapshot


def test_a_step_that_ends_at_once_is_died_though_its_child_keeps_the_socket_open(session):
    code = "import os, time\nif os.fork() == 0:\n    time.sleep(60)\nos._exit(3)"
    for _ in range(20):  # sometimes it has ended before its pid is known
        assert session.run(code).status is StepStatus.DIED
    assert processes_in(session.workspace) <= 1


def test_a_child_is_gone_after_a_time_limit(session):
    session.run("import os, time\nif os.fork() == 0:\n    time.sleep(60)\nwhile True: pass")
    assert processes_in(session.workspace) <= 1


def test_secrets_of_the_environment_are_absent(session):
    result = session.run("import os; str(dict(os.environ))")
    assert "HOST_SECRET" not in result.value
    assert "PATH" in result.value


def test_no_descriptor_of_others_is_inherited(session):
    code = "import os\ndef is_open(fd):\n    try: os.fstat(fd); return True\n    except OSError: return False\n"
    assert session.run(code + "[fd for fd in range(256) if is_open(fd)]").value.count(",") <= 3  # 0-2, ours


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"\xff" * 100,
        b"\x00\x00\x00\x05hello",
        b"\x00\x0f\x00\x00" + b"[" * 0xF0000,
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x02{}",
    ],
)
def test_a_forged_report_is_died_never_a_crash_of_ours(session, bytes_sent):
    code = (
        "import os, stat\nfor fd in range(3, 64):\n    try:\n        if stat.S_ISSOCK(os.fstat(fd).st_mode):\n"
        f"            os.write(fd, {bytes_sent[:8]!r} + {bytes_sent[8:9]!r} * {max(0, len(bytes_sent) - 8)})\n"
        "    except OSError: pass\nwhile True: pass"
    )
    session.run("x = 1")
    assert session.run(code).status in (StepStatus.DIED, StepStatus.TIMEOUT)
    assert session.run("x").value == "1"


def processes_in(workspace) -> int:
    """Processes whose current directory is the workspace, 2 s at most after their killing."""
    give_up = time.monotonic() + 2
    while True:
        count = 0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                count += os.readlink(f"/proc/{pid}/cwd") == str(workspace)
            except OSError:
                continue
        if count <= 1 or time.monotonic() > give_up:
            return count
        time.sleep(0.05)
