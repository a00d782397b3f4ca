"""Calls from a step's code to its owner: what they give, what they cost, and how little they can be abused."""

import json
import os
import threading
import time

import pytest

from datapm_rl.sandbox import Limits, Sandbox, calls
from datapm_rl.sandbox.inside import kernel
from datapm_rl.trajectory import StepStatus

pytestmark = pytest.mark.unit

ASK = "query_document('how many?', 'notes.md')"
# `s`: the socket for calls, the newest of the step's; `say(body)`: one frame on it
SOCKET = """
import json, os, socket, stat, struct, threading, time
fds = []
for fd in range(3, 256):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode): fds.append(fd)
    except OSError: pass
def say(body, fd): socket.socket(fileno=os.dup(fd)).sendall(struct.pack('!I', len(body)) + body)
def say_all(body):
    for fd in fds: say(body, fd)
CALL = json.dumps({'call': 'query_document', 'arguments': {'query': 'q'}}).encode()
"""


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    limits = Limits(wall_s=1.5, memory_mb=512, processes=8)
    with Sandbox(limits, preload=(), workspace_root=tmp_path_factory.mktemp("root")) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox, tmp_path):
    (tmp_path / "notes.md").write_text("three apples")
    with sandbox.session(tmp_path) as session:
        yield session
        assert session.run("1 + 1").value == "2", "the session goes on"
        session.run("1", echo)
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            session.run("query_document('q', 'notes.md')", echo)
        assert len(os.listdir("/proc/self/fd")) == descriptors


def echo(name, arguments):
    return {"text": f"{name}: {arguments['query']}"}


def slow(seconds):
    def answer(name, arguments):
        time.sleep(seconds)
        return {"text": "at last"}

    return answer


def test_a_call_brings_the_files_content_to_the_owner_and_the_reply_back(session):
    asked = []

    def answer(name, arguments):
        asked.append((name, arguments))
        return {"text": "3 \N{RED APPLE}"}

    result = session.run(f"answer = {ASK}\nprint(answer)", answer)
    assert (result.status, result.stdout) == (StepStatus.OK, "3 \N{RED APPLE}\n")
    assert asked == [
        ("query_document", {"query": "how many?", "name": "notes.md", "content": "dGhyZWUgYXBwbGVz"}),
    ]
    assert session.run("query_image('what?', 'notes.md')", echo).value == "'query_image: what?'"


def test_without_an_answer_there_are_no_tools(session):
    result = session.run(ASK)
    assert result.status is StepStatus.ERROR
    assert "NameError" in result.error
    session.run("kept = query_document", echo)
    assert "NameError" in session.run(ASK).error, "they end with the run"
    assert session.run("kept('q', 'notes.md')").value.startswith("'[Error]: tools work while")


def test_a_function_of_the_agents_does_not_take_a_tools_place_and_is_there_again_afterwards(session):
    session.run("def query_document(query, file_path): return 'all is well'")
    assert session.run(ASK, echo).value == "'query_document: how many?'"
    assert session.run(ASK).value == "'all is well'"
    assert session.run("query_document = 7", echo).status is StepStatus.OK
    assert session.run("query_document").value == "7"


def test_the_time_of_an_answer_is_not_the_steps(session):
    result = session.run(f"{ASK}\n{ASK}", slow(1.0))
    assert (result.status, result.value) == (StepStatus.OK, "'at last'")
    assert result.wall_s < 1.0


def test_the_time_limit_holds_after_a_call(session):
    result = session.run(f"x = 1; {ASK}\nimport time; time.sleep(60)", slow(0.5))
    assert (result.status, result.rolled_back) == (StepStatus.TIMEOUT, True)
    assert 1.4 < result.wall_s < 3
    assert session.run("'x' in globals()").value == "False"


def test_an_answer_that_raises_or_is_none_of_ours_is_an_error_as_text(session):
    def raises(name, arguments):
        raise ConnectionError("endpoint down")

    assert session.run(ASK, raises).value == "'[Error]: ConnectionError: endpoint down'"
    for reply in (None, "text", {"text": object()}, {"text": "x" * (1 << 20)}, {}):
        result = session.run(ASK, lambda name, arguments, reply=reply: reply)
        assert result.status is StepStatus.OK
        assert "[Error]" in result.value
    large = session.run(f"len({ASK})", lambda name, arguments: {"text": "x" * (calls.REPLY_MAX - 100)})
    assert large.value == str(calls.REPLY_MAX - 100)


def test_nobody_who_answers_is_an_error_as_text(session, monkeypatch):
    monkeypatch.setattr(calls, "ANSWER_S", 0.3)
    monkeypatch.setattr("datapm_rl.sandbox.conversation._LOOK_CALLING_S", 0.1)
    assert session.run(ASK, slow(2.0)).value == "'[Error]: no answer within 0.3 s'"


def test_one_step_has_so_many_calls_and_no_more(session):
    count = []
    result = session.run(f"[{ASK} for _ in range(34)][-3:]", lambda *_: count.append(1) or {"text": "yes"})
    assert len(count) == calls.CALLS_MAX
    refused = "'[Error]: one piece of code may use tools 32 times'"
    assert result.value == f"['yes', {refused}, {refused}]"


def test_threads_that_call_at_the_same_time_get_each_their_own_reply(session):
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    replies = list(pool.map(lambda n: query_document(f'q{n}', 'notes.md'), range(16)))\n"
        "replies == [f'query_document: q{n}' for n in range(16)]"
    )
    assert session.run(code, echo).value == "True"


def test_a_thread_still_waiting_for_a_reply_does_not_outlive_the_step(session):
    code = f"import threading, time\nt = threading.Thread(target=lambda: {ASK})\nt.start(); time.sleep(0.1); x = 5"
    started = time.monotonic()
    assert session.run(code, slow(3.0)).status is StepStatus.OK
    assert time.monotonic() - started < 2
    assert session.run("x", echo).value == "5"


def test_an_alarm_in_the_middle_of_a_call_does_not_mix_up_replies(session):
    code = (
        "import signal\n"
        "def late(*_): raise TimeoutError('late')\n"
        "signal.signal(signal.SIGALRM, late); signal.setitimer(signal.ITIMER_REAL, 0.2)\n"
        f"try: {ASK}\nexcept TimeoutError: pass\n"
        "query_document('second', 'notes.md')"
    )
    assert session.run(code, slow(0.6)).value.startswith("'[Error]: tools work while")
    code = code.replace("query_document('second', 'notes.md')", "import time; time.sleep(60)")
    assert session.run(code, slow(30)).status is StepStatus.TIMEOUT, "nobody waits for the reply: the clock goes on"


def test_a_process_that_the_step_started_cannot_call(session):
    code = (
        "import os\nr, w = os.pipe()\n"
        f"if os.fork() == 0:\n    os.write(w, {ASK}.encode()); os._exit(0)\n"
        "os.wait(); os.read(r, 999).decode()"
    )
    asked = []
    assert session.run(code, lambda *_: asked.append(1)).value.startswith("'[Error]: tools work while")
    hostile = SOCKET + "if os.fork() == 0:\n    say_all(CALL); os._exit(0)\ntime.sleep(60)"
    result = session.run(hostile, lambda *_: asked.append(1))
    assert (result.status, asked) == (StepStatus.DIED, [])


@pytest.mark.parametrize(
    "frame",
    [
        "b'[]'",
        "b'{}'",
        "b'\\xff'",
        'b\'{"call": 5, "arguments": {}}\'',
        'b\'{"call": "x"}\'',
        "CALL.replace(b'}}', b'}, \"more\": 1}')",
        'b\'{"status": "ok", "value": "forged", "error": null, "tampered": []}\'',
    ],
)
def test_a_forged_frame_ends_the_step(session, frame):
    result = session.run(SOCKET + f"say({frame}, fds[-1]); time.sleep(60)", echo)
    assert (result.status, result.rolled_back) == (StepStatus.DIED, True)
    assert "broke its connection" in result.error


def test_an_oversized_frame_ends_the_step_before_it_is_stored(session):
    code = (
        SOCKET + f"socket.socket(fileno=os.dup(fds[-1])).sendall(struct.pack('!I', {calls.CALL_MAX + 1}) + b'x' * 99)"
    )
    assert session.run(code + "\ntime.sleep(60)", echo).status is StepStatus.DIED


def test_a_call_where_the_report_belongs_is_no_call(session):
    asked = []
    for fd in ("fds[0]", "fds[-1]"):
        result = session.run(SOCKET + f"say(CALL, {fd}); time.sleep(60)")
        assert result.status is StepStatus.DIED
    assert asked == []


def test_replies_that_are_not_read_end_the_step(session):
    code = SOCKET + "for _ in range(30): say(CALL, fds[-1])\ntime.sleep(60)"
    result = session.run(code, lambda *_: {"text": "x" * 100_000})
    assert result.status is StepStatus.DIED
    assert "does not read" in result.error


def test_a_process_that_dies_during_a_call_is_seen_at_once(session):
    code = f"import os, threading\nthreading.Timer(0.2, lambda: os._exit(1)).start()\n{ASK}"
    started = time.monotonic()
    assert session.run(code, slow(5.0)).status is StepStatus.DIED
    assert time.monotonic() - started < 3


def test_closing_a_session_ends_a_call_that_is_being_answered(sandbox, tmp_path):
    (tmp_path / "notes.md").write_text("x")
    session = sandbox.session(tmp_path)
    threading.Timer(0.5, session.close).start()
    started = time.monotonic()
    assert session.run(ASK, slow(5.0)).cause == "session_closed"
    assert time.monotonic() - started < 3


def test_memory_is_looked_at_while_a_call_is_answered(session, monkeypatch):
    monkeypatch.setattr("datapm_rl.sandbox.conversation._LOOK_CALLING_S", 0.2)
    code = (
        "import os, threading, time\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0: x = bytearray(b'1') * (250 << 20); time.sleep(60)\n"
        f"{ASK}"
    )
    started = time.monotonic()
    assert session.run(code, slow(20.0)).status in (StepStatus.MEMORY, StepStatus.LIMIT)
    assert time.monotonic() - started < 15


def test_a_large_file_reaches_the_owner_and_a_larger_one_is_refused_with_a_reason(tmp_path):
    def size(name, arguments):
        return {"text": str(len(json.dumps(arguments)))}

    (tmp_path / "large").write_bytes(bytes(16 << 20))
    (tmp_path / "larger").write_bytes(bytes((16 << 20) + 1))
    with Sandbox(Limits(wall_s=20), preload=(), workspace_root=tmp_path / "root") as sandbox:
        session = sandbox.session(tmp_path, ["large", "larger"])
        assert int(session.run("query_document('q', 'large')", size).value.strip("'")) > 20_000_000
        assert "tools read at most 16 MB" in session.run("query_document('q', 'larger')", size).value


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("'../../etc/passwd'", "outside the working directory"),
        ("'/etc/hostname'", "outside the working directory"),
        ("'.'", "outside the working directory"),
        ("'link'", "outside the working directory"),
        ("'folder'", "is not a file"),
        ("'pipe'", "is not a file"),
        ("'nowhere.md'", "there is no file"),
        ("'a\\0b'", "null"),
        ("None", "there is no file"),
    ],
)
def test_a_path_that_is_no_file_of_the_workspace_is_an_error_as_text(session, path, problem):
    session.run("import os; os.mkdir('folder'); os.symlink('/etc/passwd', 'link'); os.mkfifo('pipe')")
    asked = []
    result = session.run(f"query_document('q', {path})", lambda *_: asked.append(1))
    assert result.status is StepStatus.OK
    assert result.value[1:].startswith("[Error]: ")
    assert problem in result.value
    assert asked == []


def test_a_path_inside_the_workspace_may_be_absolute_a_link_or_below_a_folder(session):
    session.run("import os; os.mkdir('d'); os.symlink('../notes.md', 'd/link'); open('d/e', 'w').write('e')")
    for path in ("os.path.abspath('notes.md')", "'d/link'", "'d/e'", "'./d/../notes.md'"):
        assert session.run(f"query_document('q', {path})", echo).value == "'query_document: q'"
    assert session.run("os.chdir('d'); query_document('q', '../notes.md')", echo).value == "'query_document: q'"
    session.run("os.chdir('..')")


def test_a_branch_asks_about_its_own_files(session):
    def content(name, arguments):
        return {"text": arguments["content"]}

    with session.branch(check=True) as twin:
        result = twin.run("open('notes.md', 'w').write('x'); " + ASK, content)
        assert (result.value, result.tampered) == ("'eA=='", ())
        assert twin.run("2").value == "2"
    assert session.run(ASK, content).value == "'dGhyZWUgYXBwbGVz'"


def test_a_session_rebuilt_from_its_log_does_not_ask_again(tmp_path):
    (tmp_path / "notes.md").write_text("x")
    asked = []
    with Sandbox(Limits(wall_s=5), preload=(), workspace_root=tmp_path / "root") as sandbox:
        session = sandbox.session(tmp_path, ["notes.md"])
        session.run(f"x = {ASK}", lambda *_: asked.append(1) or {"text": f"reply {len(asked)}"})
        zygote = int(str(sandbox.health()["zygote_pid"]))
        for pid in (*kernel.descendants(zygote), zygote):  # the states too: they outlive the zygote by a moment
            os.kill(pid, 9)
        result = session.run("x")
        assert result.value == "'reply 1'"
        assert (asked, sandbox.health()["rebuilt"], sandbox.health()["diverged"]) == ([1], 1, 0)
