"""What a fresh attacker and a careless user broke once: each stays mended."""

import os
import signal
import threading
import time

import pytest

from datapm_rl.errors import UserError
from datapm_rl.sandbox import Limits, Sandbox
from datapm_rl.trajectory import StepStatus

pytestmark = pytest.mark.unit

FORGE = """
import json, os, socket, struct, time
body = json.dumps({'status': 'ok', 'value': None, 'error': None, 'tampered': []}).encode()
sock = max(fd for fd in range(3, 64) if _is_socket(fd))
os.write(sock, struct.pack('!I', len(body)) + body)
end = time.monotonic() + 5
while time.monotonic() < end: open('late', 'w').close()
"""
IS_SOCKET = """
import os, stat
def _is_socket(fd):
    try: return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError: return False
"""


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    with Sandbox(Limits(wall_s=3), workspace_root=tmp_path_factory.mktemp("root"), keep="all") as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox, tmp_path):
    with sandbox.session(tmp_path) as session:
        session.run("x = 1")
        yield session


def test_the_sandboxes_own_functions_are_not_in_sys_modules(session):
    result = session.run("import sys; [name for name in sys.modules if name.partition('.')[0] == 'inside']")
    assert result.value == "[]"


def test_a_replaced_fork_is_not_used(session):
    session.run("import os\ndef f(): raise OSError(11, 'x')\nos.fork = f")
    assert session.run("x").value == "1"


def test_a_fork_that_is_made_to_fail_is_the_agents_failure(session):
    code = "def refuse(): os.write(max(fd for fd in range(3, 64) if _is_socket(fd)), b'\\0\\0\\0\\2[]'); os._exit(0)\n"
    session.run(IS_SOCKET + code + "os.register_at_fork(before=refuse)")
    assert session.run("x").status is StepStatus.DIED
    assert session.run("x").value == "1"


def test_a_state_that_ends_itself_and_cannot_be_replayed_is_the_agents_failure(session):
    where = session.run("import os; os.getcwd()").value
    session.run(f"assert os.getcwd() == {where}")
    with session.branch() as twin:
        session.run("os.register_at_fork(before=lambda: os._exit(1))")
        assert session.run("x").status is StepStatus.DIED
        assert session.run("x").status is not StepStatus.INFRA_ERROR
        assert twin.run("x").value == "1"


def test_a_child_that_is_nobodys_child_is_refused(session):
    assert session.run("import ctypes; ctypes.CDLL(None).syscall(56, 0x8000 | 17, 0, 0, 0, 0)").value == "-1"


def test_signals_by_way_of_files_are_refused(session):
    for command in ("F_SETOWN", "F_SETSIG", "F_SETLEASE", "F_NOTIFY"):
        assert "PermissionError" in session.run(f"import fcntl, os; fcntl.fcntl(1, fcntl.{command}, 1)").error


def test_a_step_that_reports_and_then_goes_on_has_died(session):
    result = session.run(IS_SOCKET + FORGE)
    assert (result.status, result.rolled_back) == (StepStatus.DIED, True), result
    assert session.run("import os; x, os.path.exists('late')").value == "(1, False)"


def test_memory_that_states_would_share_is_refused(session):
    assert "PermissionError" in session.run("import mmap; mmap.mmap(-1, 8)").error
    assert session.run("mmap.mmap(-1, 8, flags=mmap.MAP_PRIVATE)[:2]").value == "b'\\x00\\x00'"


def test_a_branch_cannot_talk_to_the_original(session):
    session.run("import socket, os; a, b = socket.socketpair(); r, w = os.pipe()")
    with session.branch() as twin:
        assert "OSError" in twin.run("a.send(b'x')").error
        assert "OSError" in twin.run("os.write(w, b'x')").error
    assert session.run("a.send(b'x'), os.write(w, b'x')").value == "(1, 1)"


def test_a_patch_by_a_thread_after_the_check_is_found(session):
    session.run(
        "import os, threading, time\n"
        "def evil(): time.sleep(0.05); pd.DataFrame.sum = lambda self: 666\n"
        "os.register_at_fork(after_in_child=lambda: threading.Thread(target=evil, daemon=True).start())"
    )
    with session.branch(check=True) as twin:
        result = twin.run("time.sleep(0.3); pd.DataFrame({'a': [1]}).sum()")
        assert result.tampered == ("os.register_at_fork", "pandas.DataFrame.sum")


def test_an_interrupt_in_the_owner_ends_the_step(session):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            session.run("while True: open('beat', 'a').write('.')")
    finally:
        signal.signal(signal.SIGINT, before)
    size = (session.workspace / "beat").stat().st_size
    time.sleep(0.2)
    assert (session.workspace / "beat").stat().st_size == size
    assert session.run("x").value == "1"


def test_what_lies_below_the_data_folder_is_not_readable(sandbox, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "answers").write_text("GOLD")
    (tmp_path / "t.csv").write_text("a\n1\n")
    with sandbox.session(tmp_path) as session:
        assert "PermissionError" in session.run(f"open({str(tmp_path / 'sub' / 'answers')!r}).read()").error
        assert session.run(f"import os; os.listdir({str(tmp_path)!r})").status is StepStatus.OK
        assert session.run(f"open({str(tmp_path / 't.csv')!r}).read()").value == "'a\\n1\\n'"


def test_data_that_does_not_fit_is_the_users_error_not_the_agents(tmp_path):
    (tmp_path / "data").mkdir()
    with open(tmp_path / "data" / "big", "wb") as file:
        file.truncate(3 << 20)
    with (
        Sandbox(Limits(workspace_mb=2), preload=(), workspace_root=tmp_path / "root") as sandbox,
        pytest.raises(UserError, match="raise workspace_mb=2"),
    ):
        sandbox.session(tmp_path / "data")


@pytest.mark.parametrize(
    "arguments",
    [{"read_only": "/usr"}, {"preload": "numpy"}, {"recycle_after": 0}, {"max_snapshots": -1}, {"keep": "some"}],
)
def test_bad_arguments_are_one_sentence(arguments):
    with pytest.raises(UserError):
        Sandbox(**arguments)


@pytest.mark.parametrize("limits", [{"memory_mb": 512.0}, {"wall_s": "3"}, {"wall_s": None}, {"processes": 0}])
def test_bad_limits_are_one_sentence(limits):
    with pytest.raises(UserError, match=next(iter(limits))):
        Limits(**limits)


def test_a_bad_seed_or_list_of_files_is_one_sentence(sandbox, tmp_path):
    with pytest.raises(UserError, match="seed"):
        sandbox.session(tmp_path, seed=None)
    with pytest.raises(UserError, match="list of names"):
        sandbox.session(tmp_path, files="t.csv")


def test_closing_in_a_fork_of_the_owner_leaves_the_owners_sessions_alone(sandbox, session):
    pid = os.fork()
    if pid == 0:
        sandbox.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert session.run("x").value == "1"
