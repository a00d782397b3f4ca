"""The notebook that a SandboxFusion server runs for one step, started by `fusion_supervisor` and sent as source.

The standard library only, and nothing newer than Python 3.10.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import signal
import sys
import types
from typing import Any

_PR_SET_PDEATHSIG = 1


def serve(job: dict[str, Any], reports: int, go: int) -> None:
    """Replay in silence, say so, run the step when told to, report. `reports`, `go`: pipes. Ends the process."""
    end, read, write, dumps = os._exit, os.read, os.write, json.dumps  # agent code may replace what it finds in modules
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the server kills the supervisor only
    output = os.dup(1)
    streams: list[Any] = [sys.stdout, sys.stderr]
    for stream in streams:
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    silence = os.open(os.devnull, os.O_WRONLY)
    cells = types.ModuleType("notebook")
    exec(compile(job["sources"]["notebook"], "<notebook>", "exec"), cells.__dict__)
    cells.redirect_output(os.dup(silence))
    try:
        names = _prepare(job)
    except BaseException:
        cells.redirect_output(os.dup(output))
        raise
    namespace = cells.new_namespace(names)

    def run(code: str, number: int, target: int) -> dict[str, Any]:
        cells.redirect_output(os.dup(target))
        result: dict[str, Any] = cells.run_cell(code, namespace, f"<step {number}>", job["keep"])
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the agent may have closed it
                stream.flush()
        return result

    statuses = [run(step["code"], step["number"], silence)["status"] for step in job["steps"]]
    write(reports, dumps(statuses).encode() + b"\n")
    read(go, 1)
    result = run(job["code"], job["number"], output)
    data = dumps(result).encode() + b"\n"
    while data:
        data = data[write(reports, data) :]
    end(0)


def _prepare(job: dict[str, Any]) -> dict[str, str]:
    """Load and seed what the session starts with; of the names to bind, those whose module the server has."""
    names = {short: name for short, name in job["names"].items() if importlib.util.find_spec(name)}
    for name in names.values():
        importlib.import_module(name)
    importlib.import_module("random").seed(job["seed"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(job["seed"] % 2**32)
    return names
