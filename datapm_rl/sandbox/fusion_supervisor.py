"""The program that a SandboxFusion server runs for one step; it starts the notebook in a process of its own.

Sent as source, and so is what comes with it (`fusion_notebook`, `inside/notebook`, `output`): the standard library
only, and nothing newer than Python 3.10.

It reads a job from stdin. The notebook, a new interpreter, never has the job's nonce, so nothing that agent code prints
can be taken for this program's two lines on the server's stdout: `<nonce> running` when the step's clock starts, and
in the end `<nonce> <a dict as JSON, compressed, base64>`.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
import types
import zlib
from typing import Any

_OUTPUT_MAX = 64 << 20  # bytes printed in one step, above which it is killed
_REPORT_MAX = 4 << 20  # bytes
_PR_SET_DUMPABLE = 4
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # a replay walks sets in the same order
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUTF8": "1",
    "MPLBACKEND": "Agg",
    "JOBLIB_MULTIPROCESSING": "0",
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")},
}
_BOOT = """import json, os, sys
job = json.load(sys.stdin)
space = {"__name__": "fusion_notebook"}
exec(compile(job["sources"]["fusion_notebook"], "<fusion_notebook>", "exec"), space)
space["serve"](job, int(sys.argv[1]), int(sys.argv[2]))
"""


def supervise(script: str) -> None:
    """What the server calls. `script`: the file in which the server put this program, among the agent's files."""
    with contextlib.suppress(OSError, AttributeError):  # so that the notebook cannot read this process's memory
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    with contextlib.suppress(OSError):
        os.unlink(script)
    job = json.load(sys.stdin)
    nonce = job.pop("nonce")
    output, output_end = os.pipe()
    reports, reports_end = os.pipe()
    go_end, go = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _BOOT, str(reports_end), str(go_end)],
        stdin=subprocess.PIPE,
        stdout=output_end,
        stderr=output_end,
        pass_fds=[reports_end, go_end],
        env={**os.environ, **_ENVIRONMENT, "HOME": os.getcwd(), "TMPDIR": os.getcwd()},
        start_new_session=True,
    )
    for end in (output_end, reports_end, go_end):
        os.close(end)
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(job).encode())
        result = _watch(job, nonce, output, reports, go)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    packed = zlib.compress(json.dumps(result, ensure_ascii=False).encode())
    print(nonce, base64.b64encode(packed).decode(), flush=True)


def _watch(job: dict[str, Any], nonce: str, output: int, reports: int, go: int) -> dict[str, Any]:
    """Follow the notebook to its end. {"failed", "detail"} if the step never began."""
    module = types.ModuleType("output")
    exec(compile(job["sources"]["output"], "<output>", "exec"), module.__dict__)
    printed = module.OutputBuffer(job["keep"])
    os.set_blocking(output, False)
    began = 0.0  # the step's start, 0.0: still replaying
    until = time.monotonic() + job["replay_s"]
    waiting, received = [output, reports], b""
    while True:
        ready = select.select(waiting, [], [], max(0.0, until - time.monotonic()))[0]
        if output in ready and not _drain(output, printed):
            waiting.remove(output)
        if reports in ready:
            data = os.read(reports, 1 << 16)
            received += data
            if (not data and b"\n" not in received) or len(received) > _REPORT_MAX:
                return _ended(began, printed, "died", "the step's process ended (exit, crash or killed)")
        line, found, rest = received.partition(b"\n")
        if found and not began:
            if line.decode("ascii", "replace") != json.dumps([step["status"] for step in job["steps"]]):
                return {"failed": "replay_diverged", "detail": f"the replayed steps were {str(line[:500])[1:]}"}
            print(nonce, "running", flush=True)  # before the step can end this process
            received, began = rest, time.monotonic()
            until = began + job["wall_s"]
            with contextlib.suppress(BrokenPipeError):
                os.write(go, b"\n")
        elif found:
            _drain(output, printed)
            return {**_checked(line), "stdout": printed.text(), "wall_s": time.monotonic() - began}
        elif printed.total > _OUTPUT_MAX:
            return _ended(began, printed, "output", f"more than {_OUTPUT_MAX >> 20} MB printed")
        elif time.monotonic() >= until:
            return _ended(began, printed, "timeout", f"time limit of {job['wall_s']:g} s exceeded")


def _drain(output: int, printed: Any) -> bool:
    """Take what was printed so far. False when there will be no more."""
    with contextlib.suppress(BlockingIOError):
        while printed.total <= _OUTPUT_MAX:
            data = os.read(output, 1 << 16)
            if not data:
                return False
            printed.feed(data)
    return True


def _ended(began: float, printed: Any, status: str, error: str) -> dict[str, Any]:
    if not began:
        cause = "replay_slow" if status == "timeout" else "replay_lost"
        return {"failed": cause, "detail": printed.text()[-500:]}
    wall_s = time.monotonic() - began
    return {"status": status, "value": None, "error": error, "stdout": printed.text(), "wall_s": wall_s}


def _checked(line: bytes) -> dict[str, Any]:
    """The notebook's report. Agent code lives in the same process and may have written it."""
    with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):
        report = json.loads(line)
        status, value, error = report["status"], report["value"], report["error"]
        if status in ("ok", "error", "memory", "limit") and {type(value), type(error)} <= {str, type(None)}:
            return {"status": status, "value": _clean(value), "error": _clean(error)}
    return {"status": "died", "value": None, "error": "the step's report is forged"}


def _clean(text: str | None) -> str | None:
    """Without lone surrogates."""
    return text if text is None else text.encode("utf-8", "backslashreplace").decode("utf-8")
