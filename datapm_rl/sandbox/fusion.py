"""Sessions on a SandboxFusion server (github.com/bytedance/SandboxFusion), for those who run one already.

The server keeps nothing between two requests, so each one sends the data files and the code of all earlier steps,
which run again in silence before the new one: a step costs as much as the whole session so far.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import inspect
import json
import os
import secrets
import zlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from datapm_rl.errors import InfraError, UserError, cause_of
from datapm_rl.sandbox import fusion_notebook, fusion_supervisor, output
from datapm_rl.sandbox.fusion_server import Command, run_code
from datapm_rl.sandbox.inside import notebook
from datapm_rl.sandbox.result import ExecutionResult, Limits
from datapm_rl.sandbox.session import LoggedRun
from datapm_rl.sandbox.workspace import data_files
from datapm_rl.trajectory import StepStatus

_START_S = 60.0  # for an interpreter to start and load pandas on a busy server
_KEEP = Limits().output_kb << 10
_ROLLED_BACK = "; variables and files are as they were before this step"
_SOURCES = {
    "fusion_notebook": inspect.getsource(fusion_notebook),
    "notebook": inspect.getsource(notebook),
    "output": inspect.getsource(output),
}
_CODE = inspect.getsource(fusion_supervisor) + "\n\nsupervise(__file__)\n"


class FusionSession:
    """A session by replay. Satisfies `datapm_rl.verifier.base.CodeRunner`.

    `url`: the server's, "http://host:8080". `data_dir`, `files`, `seed`: as for `Sandbox.session`; the files are read
    now and sent with each request. `timeout_s`: seconds of one step, without the replay. `deadline_s`: seconds
    of one call, with replay, queueing at the server and retries: well above. `language`: the server's name for its
    Python.

    A step sees what it sees in a `Session`: notebook semantics, `pd` and `np`, copies of the data files under their
    base names, an exception keeps what ran before it, a stopped step leaves nothing. Unlike there, isolation and all
    limits but `timeout_s` and the printed text (64 KB) are the server's, threads of earlier steps run again, what
    reads the clock or the network differs in each replay, and a daemon that a step leaves is the server's to kill.

    Raises UserError for a wrong URL and for data that is not there.
    """

    def __init__(
        self,
        url: str,
        data_dir: str | os.PathLike[str],
        files: Sequence[str] | None = None,
        seed: int = 0,
        timeout_s: float = 30.0,
        deadline_s: float = 300.0,
        language: str = "python",
    ):
        if not url.startswith(("http://", "https://")):
            raise UserError(
                f"SandboxFusion url {url!r} does not start with http:// or https://; give the server's address"
            )
        self._url = url.rstrip("/")
        self._language = language
        self._files = {path.name: base64.b64encode(path.read_bytes()).decode() for path in data_files(data_dir, files)}
        self._seed = seed
        self._timeout_s = timeout_s
        self._deadline_s = deadline_s
        self._log: list[LoggedRun] = []
        self._first = 0  # log entries before this branch was made
        self._closed = False
        self._lock = asyncio.Lock()

    async def run(self, code: str) -> ExecutionResult:
        """Run code in the session's state; never raises. INFRA_ERROR: the run does not count, and may be tried again.

        Causes: "sandbox_unreachable", "sandbox_http_<code>", "sandbox_failed" (the server says that it has failed),
        "sandbox_protocol" (it answers something else than its API promises), "sandbox_slow" (it did not get to the
        step in time), "deadline", "replay_slow", "replay_diverged" (an earlier step ended otherwise this time),
        "session_closed".
        """
        async with self._lock:
            result = await self._execute(code, self._log)
            if result.status is not StepStatus.INFRA_ERROR:
                self._log.append(LoggedRun.of(code, result))
            return result

    async def probe(self, code: str, step: int | None = None) -> ExecutionResult:
        """Run code once in a throwaway `branch`; never raises but ValueError for a wrong step."""
        return await self._execute(code, self._log[: self._end(step)])

    @contextlib.asynccontextmanager
    async def branch(self, step: int | None = None) -> AsyncIterator[FusionSession]:
        """A session of its own that starts from the state after the `step`-th run (0: the start; default: newest).

        Raises InfraError("session_closed"), ValueError for a wrong step.
        """
        if self._closed:
            raise InfraError("session_closed", "the session was closed")
        end = self._end(step)
        twin = copy.copy(self)
        twin._log, twin._first, twin._lock = self._log[:end], end, asyncio.Lock()
        try:
            yield twin
        finally:
            await twin.close()

    async def close(self) -> None:
        """No more runs. The server has nothing to forget."""
        self._closed = True

    def _end(self, step: int | None) -> int:
        newest = len(self._log) - self._first
        if step is not None and not 0 <= step <= newest:
            raise ValueError(f"no step {step}: the session has {newest} runs")
        return self._first + (newest if step is None else step)

    async def _execute(self, code: str, log: Sequence[LoggedRun]) -> ExecutionResult:
        try:
            if self._closed:
                raise InfraError("session_closed", "the session was closed")
            async with asyncio.timeout(self._deadline_s):
                return await self._run(code, log)
        except (InfraError, TimeoutError) as error:
            text = str(error) or f"no answer within {self._deadline_s:g} s"
            return ExecutionResult(StepStatus.INFRA_ERROR, error=text, cause=cause_of(error))

    async def _run(self, code: str, log: Sequence[LoggedRun]) -> ExecutionResult:
        """Raises InfraError."""
        steps = [
            {"number": number, "code": run.code, "status": run.status.value}
            for number, run in enumerate(log, 1)
            if not run.rolled_back
        ]
        job = {
            "sources": _SOURCES,
            "names": {"pd": "pandas", "np": "numpy"},
            "seed": self._seed,
            "steps": steps,
            "replay_s": _START_S + len(steps) * (2 * self._timeout_s + 5),  # it may be busier than it was
            "number": len(log) + 1,
            "code": code,
            "wall_s": self._timeout_s,
            "keep": _KEEP,
        }
        report = await self._ask(job)
        if report.get("failed") == "replay_lost":
            report = await self._ask(job)
        if report.get("failed") != "replay_lost":
            return _result(report)
        if not steps:
            raise InfraError("sandbox_failed", f"its Python does not start: {report['detail']}")
        return _result({"status": "died", "error": "the state before this step ends when it is made again"})

    async def _ask(self, job: dict[str, Any]) -> dict[str, Any]:
        nonce = secrets.token_hex(16)
        request = {
            "language": self._language,
            "code": _CODE,
            "stdin": json.dumps({**job, "nonce": nonce}),
            "files": self._files,
            "compile_timeout": _START_S,
            "run_timeout": job["replay_s"] + job["wall_s"] + _START_S,
        }
        return _report(await run_code(self._url, request), nonce)


def _report(command: Command, nonce: str) -> dict[str, Any]:
    """What the program reports; that the agent's code ended it or held it up when there is no report."""
    lines = [line[len(nonce) + 1 :] for line in command.stdout.splitlines() if line.startswith(f"{nonce} ")]
    if not lines:
        cause = "sandbox_slow" if command.timed_out else "sandbox_protocol"
        raise InfraError(cause, f"the program did not get to the step, {command.detail}")
    if lines[-1] != "running":
        with contextlib.suppress(ValueError, zlib.error):  # cut off
            report: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(lines[-1], validate=True)))
            return report
    if command.timed_out:
        return {"status": "timeout", "error": "time limit exceeded"}
    return {"status": "died", "error": f"the step's supervisor ended, {command.detail}"}


def _result(report: dict[str, Any]) -> ExecutionResult:
    if "failed" in report:
        raise InfraError(report["failed"], report["detail"])
    status, error = StepStatus(report["status"]), report["error"]
    stopped = status in (StepStatus.TIMEOUT, StepStatus.OUTPUT, StepStatus.DIED)
    error = error + _ROLLED_BACK if stopped else error
    value, wall_s = report.get("value"), report.get("wall_s", 0.0)
    return ExecutionResult(status, report.get("stdout", ""), value, error, wall_s, rolled_back=stopped)
