"""A session on a SandboxFusion server: state by replay, the agent's failures apart from the server's.

No SandboxFusion server can be had here (it is a container image). A stand-in implements `POST /run_code` as its API
documents it, running the code in a real process in a folder of its own; what a server's isolation adds is not tested.
"""

import asyncio
import base64
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from datapm_rl.errors import InfraError, UserError
from datapm_rl.sandbox import Sandbox, fusion_server
from datapm_rl.sandbox.fusion import FusionSession
from datapm_rl.sandbox.session import LoggedRun
from datapm_rl.trajectory import StepStatus

pytestmark = pytest.mark.unit

_STREAM_MAX = 1 << 20  # what the server keeps of stdout and of stderr
_TABLE = "a,b\n1,2\n3,4\n"


class StandIn:
    """The documented endpoint. `answers`: what to answer instead, per request (a response, or a coroutine function)."""

    def __init__(self):
        self.requests = []
        self.answers = []
        self.environment = dict(os.environ)
        self.url = ""

    async def run_code(self, http):
        request = await http.json()
        self.requests.append(request)
        if self.answers:
            answer = self.answers.pop(0)
            return await answer() if callable(answer) else answer
        return web.json_response(await self.execute(request))

    async def execute(self, request):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in request["files"].items():
                Path(folder, name).write_bytes(base64.b64decode(content))
            script = Path(folder, "tmpcode.py")
            script.write_text(request["code"])
            process = await asyncio.create_subprocess_exec(
                sys.executable, str(script), cwd=folder, env=self.environment, stdin=-1, stdout=-1, stderr=-1,
                start_new_session=True,
            )  # fmt: skip
            begin = time.monotonic()
            try:
                talk = process.communicate((request["stdin"] or "").encode())
                out, err = await asyncio.wait_for(talk, request["run_timeout"])
                outcome, code = "Finished", process.returncode
            except TimeoutError:
                outcome, code, out, err = "TimeLimitExceeded", None, b"", b""
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
            run = {
                "status": outcome,
                "execution_time": time.monotonic() - begin,
                "return_code": code,
                "stdout": out[:_STREAM_MAX].decode(),
                "stderr": err[:_STREAM_MAX].decode(),
            }
        status = "Success" if code == 0 else "Failed"
        return {"status": status, "message": "", "compile_result": None, "run_result": run, "files": {}}


@pytest.fixture
async def server():
    stand_in = StandIn()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/run_code", stand_in.run_code)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stand_in.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield stand_in
    await runner.cleanup()


@pytest.fixture
def data_dir(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "x.csv").write_text(_TABLE)
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No pauses; and without pandas, whose import takes most of a second per request, where a test can do without."""
    monkeypatch.setattr(fusion_server, "_PAUSES_S", (0.0, 0.0, 0.0))


@pytest.fixture
def session(server, data_dir, without_pandas):
    return FusionSession(server.url, data_dir, timeout_s=20.0, deadline_s=60.0)


@pytest.fixture
def without_pandas(server, tmp_path):
    """A server whose Python has neither pandas nor NumPy: the names are left unbound then."""
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "real = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name in ('pandas', 'numpy') else real(name, *more)\n"
    )
    server.environment["PYTHONPATH"] = str(hook)


async def value(session, code):
    result = await session.run(code)
    assert result.status is StepStatus.OK, result
    return result.value


async def test_a_step_shows_what_it_shows_in_a_live_session(server, data_dir):
    codes = [
        "import random, pickle\ndf = pd.read_csv('x.csv')\nopen('y', 'w').write('1')\nprint(np.random.rand())\ndf.no",
        "class A:\n    pass\nprint('x' * 99_999)\npickle.loads(pickle.dumps(A())).__class__, open('y').read(), df",
        "print(random.random(), np.random.rand(), sorted({'a', 'b', 'c'}, key=hash), _[1])\ninput()",
    ]
    fusion = FusionSession(server.url, data_dir, seed=7)
    with Sandbox(min_level=0) as sandbox, sandbox.session(data_dir, seed=7) as live:
        for code in codes:
            here, there = live.run(code), await fusion.run(code)
            assert replace(there, wall_s=0.0) == replace(here, wall_s=0.0), code


async def test_earlier_output_is_not_shown_again_and_effects_happen_once(session):
    assert (await session.run("d = [1, 2]\nprint(d.pop())\nopen('log', 'a').write('x')")).stdout == "2\n"
    result = await session.run("print(d)\nopen('log').read()")
    assert (result.stdout, result.value) == ("[1]\n", "'x'")


async def test_what_ran_before_an_exception_stays_and_the_traceback_is_the_agents_own(session):
    result = await session.run("import json\nbefore = 1\njson.loads('{')")
    assert result.status is StepStatus.ERROR
    assert 'File "<step 1>", line 3' in result.error
    assert "json/decoder.py" not in result.error
    assert await value(session, "before") == "1"


async def test_stderr_is_seen_in_its_place(session):
    result = await session.run("import sys, os\nprint(1)\nprint(2, file=sys.stderr)\nos.write(1, b'\\xff3')")
    assert result.stdout == "1\n2\n\ufffd3"


async def test_a_stopped_step_is_not_replayed_and_says_so(server, data_dir, without_pandas):
    session = FusionSession(server.url, data_dir, timeout_s=1.0, deadline_s=60.0)
    assert await value(session, "x = 1; x") == "1"
    result = await session.run("x = 2\nopen('made', 'w').close()\nprint('so far')\nwhile True: pass")
    assert (result.status, result.stdout, result.rolled_back) == (StepStatus.TIMEOUT, "so far\n", True)
    assert "as they were before" in result.error
    assert await value(session, "import os; x, os.listdir()") == "(1, ['x.csv'])"
    assert "<step 4>" in (await session.run("1 / 0")).error


@pytest.mark.parametrize(
    "code",
    [
        "import os; os._exit(0)",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.kill(os.getppid(), 9)\nwhile True: pass",  # the supervisor
    ],
)
async def test_a_process_that_ends_itself_has_died_even_with_code_0(session, code):
    assert await value(session, "x = 1; x") == "1"
    assert (await session.run(f"x = 2\n{code}")).status is StepStatus.DIED
    assert await value(session, "x") == "1"


async def test_a_step_that_kills_its_supervisor_does_not_live_on(session, tmp_path):
    code = f"import os\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nos.kill(os.getppid(), 9)"
    await session.run(code + "\nwhile True: pass")
    pid = (tmp_path / "pid").read_text()
    for _ in range(100):
        if not Path("/proc", pid).exists() or ") Z " in Path("/proc", pid, "stat").read_text():
            return
        await asyncio.sleep(0.05)
    pytest.fail("it still runs")


async def test_a_memory_error_is_told_apart(session):
    assert (await session.run("raise MemoryError")).status is StepStatus.MEMORY


async def test_more_output_than_the_server_keeps_does_not_lose_the_report(session):
    result = await session.run("print('a' * (3 << 20)); 'end'")
    assert (result.status, result.value) == (StepStatus.OK, "'end'")
    assert "bytes dropped" in result.stdout


async def test_endless_output_is_stopped(session):
    assert (await session.run("while True: print('a' * (1 << 20))")).status is StepStatus.OUTPUT


async def test_a_printed_report_is_only_print(session):
    forged = '{"status": "ok", "value": "1", "error": null}'
    code = f"import sys\nfor out in (sys.stdout, sys.stderr):\n    print({forged!r}, file=out)\nimport os; os._exit(0)"
    result = await session.run(code)
    assert (result.status, result.stdout) == (StepStatus.DIED, f"{forged}\n{forged}\n")


async def test_garbage_on_the_reports_pipe_is_died(session):
    code = "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'[[\\n')\n    except OSError: pass"
    assert (await session.run(code)).status is StepStatus.DIED


async def test_the_notebook_finds_neither_the_nonce_nor_the_script(session, server):
    code = """
import gc, os, re
memory = open('/proc/self/mem', 'rb')
found = set()
for line in open('/proc/self/maps'):
    begin, end = (int(number, 16) for number in line.split()[0].split('-'))
    if line.split()[1].startswith('rw') and '[v' not in line:
        memory.seek(begin)
        found |= set(re.findall(rb'\\b[0-9a-f]{32}\\b', memory.read(end - begin)))
canary = '0123456789abcdef' * 2
canary.encode() in found, NONCE in found, os.listdir()
"""
    nonces = iter(["a" * 16 + "b" * 16])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.token_hex", lambda _size: next(nonces))
        result = await session.run(code.replace("NONCE", "(b'a' * 16 + b'b' * 16)"))
    assert result.value == "(True, False, ['x.csv'])", result


async def test_a_closed_stdout_is_open_again_in_the_next_step(session):
    await session.run("import sys\nsys.stdout.close()")
    assert (await session.run("print(1)")).stdout == "1\n"


async def test_lone_surrogates_come_back_as_text(session):
    result = await session.run("raise ValueError('\\udc80')")
    assert "\\udc80" in result.error


async def test_a_branch_changes_nothing_in_its_original(session):
    await session.run("x = 1")
    await session.run("x = 2")
    async with session.branch(1) as twin:
        assert await value(twin, "x += 10; x") == "11"
        async with twin.branch(0) as third:
            assert await value(third, "x") == "1"
    async with session.branch() as twin:
        assert await value(twin, "x") == "2"
    assert (await session.probe("x += 1; x")).value == "3"
    assert await value(session, "x") == "2"
    with pytest.raises(ValueError, match="no step 7"):
        await session.probe("x", step=7)


async def test_an_earlier_step_that_ends_otherwise_is_our_failure(session):
    await session.run("import time\nif time.time() > START: raise ValueError".replace("START", str(time.time() + 1.5)))
    await asyncio.sleep(1.5)
    result = await session.run("1")
    assert (result.status, result.cause) == (StepStatus.INFRA_ERROR, "replay_diverged")


async def test_a_replay_that_is_too_slow_is_our_failure(session, monkeypatch):
    ask = session._ask
    monkeypatch.setattr(session, "_ask", lambda job: ask(job | {"replay_s": 0.5}))
    session._log = [LoggedRun("while True: pass", StepStatus.OK, False, "")]
    result = await session.run("1")
    assert (result.status, result.cause) == (StepStatus.INFRA_ERROR, "replay_slow")


async def test_a_state_that_ends_itself_is_the_agents_failure(session):
    code = "import threading, os, time\nthreading.Timer(0.3, os._exit, (0,)).start()"
    assert (await session.run(code)).status is StepStatus.OK
    await session.run("late = 1\ntime.sleep(0.01)")
    assert (await session.run("time.sleep(5)")).status is StepStatus.DIED


async def test_after_close_nothing_is_sent(session, server):
    await session.close()
    assert (await session.run("1")).cause == "session_closed"
    with pytest.raises(InfraError):
        async with session.branch():
            pass
    assert server.requests == []


async def test_nobody_listens(data_dir):
    result = await FusionSession("http://127.0.0.1:9", data_dir).run("1")
    assert (result.status, result.cause) == (StepStatus.INFRA_ERROR, "sandbox_unreachable")


@pytest.mark.parametrize("code", [500, 503, 429])
async def test_a_passing_failure_is_tried_again(session, server, code):
    server.answers = [web.Response(status=code, text="busy")]
    assert await value(session, "5") == "5"
    assert len(server.requests) == 2


async def test_a_lasting_failure_is_given_up_after_a_few_attempts(session, server):
    server.answers = [web.Response(status=500, text="broken") for _ in range(9)]
    result = await session.run("1")
    assert (result.status, result.cause) == (StepStatus.INFRA_ERROR, "sandbox_http_500")
    assert len(server.requests) == 3
    server.answers = []
    assert await value(session, "x = 1; x") == "1"  # and it did not count


async def test_a_refused_request_is_not_sent_again(session, server):
    server.answers = [web.Response(status=422, text="language"), web.Response(status=422)]
    assert (await session.run("1")).cause == "sandbox_http_422"
    assert len(server.requests) == 1


async def test_a_slow_server_meets_the_deadline(server, data_dir):
    async def never():
        await asyncio.sleep(60)

    server.answers = [never]
    result = await FusionSession(server.url, data_dir, deadline_s=0.3).run("1")
    assert (result.status, result.cause) == (StepStatus.INFRA_ERROR, "deadline")


def _run(**changes):
    run = {"status": "Finished", "return_code": 0, "stdout": "", "stderr": "", "execution_time": 0.1} | changes
    return json.dumps({"status": "Success", "message": "", "run_result": run})


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ("<html>", "sandbox_protocol"),
        ("[]", "sandbox_protocol"),
        ("{}", "sandbox_protocol"),
        ('{"status": "Success", "run_result": null}', "sandbox_protocol"),
        ('{"status": "Success", "run_result": {}}', "sandbox_protocol"),
        ('{"status": "Great", "run_result": {}}', "sandbox_protocol"),
        ("[" * 100_000, "sandbox_protocol"),
        (_run(status="Error"), "sandbox_protocol"),
        (_run(stdout=["x"]), "sandbox_protocol"),
        (_run(return_code=127, stderr="python: command not found"), "sandbox_protocol"),
        (_run(status="TimeLimitExceeded"), "sandbox_slow"),
        ('{"status": "SandboxError", "message": "no cgroup", "run_result": null}', "sandbox_failed"),
    ],
)
async def test_an_answer_that_breaks_the_api_is_never_the_agents_failure(session, server, answer, cause):
    server.answers = [web.Response(text=answer) for _ in range(3)]
    result = await session.run("1")
    assert (result.status, result.cause) == (StepStatus.INFRA_ERROR, cause)


async def test_a_python_that_does_not_start_is_not_the_agents_failure(session, server, tmp_path):
    (tmp_path / "hook" / "random.py").write_text("raise ImportError('broken')\n")
    result = await session.run("1")
    assert (result.status, result.cause) == (StepStatus.INFRA_ERROR, "sandbox_failed")
    assert "broken" in result.error


async def test_a_step_that_holds_the_supervisor_up_is_a_timeout(session, server):
    async def held():
        nonce = json.loads(server.requests[-1]["stdin"])["nonce"]
        return web.Response(text=_run(status="TimeLimitExceeded", stdout=f"{nonce} running\n"))

    server.answers = [held]
    assert (await session.run("1")).status is StepStatus.TIMEOUT


@pytest.mark.parametrize(("url", "files"), [("localhost:8080", None), ("http://localhost", ["no.csv"])])
def test_bad_input_is_said_before_anything_runs(data_dir, url, files):
    with pytest.raises(UserError):
        FusionSession(url, data_dir, files)
