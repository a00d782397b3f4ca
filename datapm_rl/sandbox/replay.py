"""`replay_compat="dataprm"`: a session that keeps its state as the official DataPRM interpreter does, by replay.

For parity with its published numbers only; a live `Session` is faster and has none of the traits below.
"""

from __future__ import annotations

import threading
from pathlib import Path

from datapm_rl.errors import InfraError
from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.sandbox.script import run_in, silenced
from datapm_rl.sandbox.session import Session
from datapm_rl.trajectory import StepStatus


class ReplaySession:
    """Takes over a new session. Each run is one script, the history and the new code, in a fresh state.

    It sees the files as the run before left them, and has one time limit, `Limits.wall_s`, for all of the script. If
    it ends with exit code 0, the script becomes the history, without its calls of `print` and `query_document`.

    Kept on purpose, because the released weights and numbers come with it:

    * code that fails is forgotten whole, what it had assigned before the exception too; its files stay;
    * the history runs again at each step: files are appended to again, time and money are spent again, and a loop of
      many quick steps ends in a timeout;
    * what is removed is removed with its effects (`print(d.pop())`), also inside functions and loops; anything else
      that prints (`sys.stdout.write`, `pprint`) prints again at each step;
    * `sys.exit(0)` is a success and stays in the history, so no later code is reached;
    * the last expression is not shown, what a success wrote to stderr is lost, `pd` and `np` must be imported, and
      tracebacks count lines from the start of the history and show library frames.

    Not kept: the sandbox's isolation, limits and environment hold (no network, no keys, data files are
    copies, processes that a step leaves are killed, no script file lies in the workspace); a step that was stopped
    (time limit, crash) rolls files back; `os._exit(0)` is `died` and not a success; `random` and NumPy's generator
    start with the session's seed, so they repeat themselves; threads are not waited for. Finding the code in a
    model's reply is the dialect's task.

    Thread-safe, one call at a time; `close` at any time. After it, a run is an INFRA_ERROR, "session_closed".
    """

    def __init__(self, session: Session):
        self._start = session  # never runs anything: every script starts from its state
        self._newest = session  # has the newest files
        self._history = ""
        self._log: list[str] = []
        self._first = 0  # runs before this branch was made
        self._closed = False
        self._lock = threading.Lock()

    @property
    def workspace(self) -> Path:
        """The folder with the files as the newest run left them. Another one after each run."""
        return self._newest.workspace

    def run(self, code: str) -> ExecutionResult:
        """Run the history and this code. Blocks; never raises for what the code does.

        `stdout` is what was printed to stdout alone; `error` of code that failed is what it wrote to stderr, with the
        traceback; `value` is None. A lost sandbox is made up for by running all earlier code again, as often and in
        the order in which it ran. INFRA_ERROR: the run does not count and may be tried again.
        """
        with self._lock:
            try:
                result = self._run(code)
            except InfraError as error:
                return ExecutionResult(StepStatus.INFRA_ERROR, error=error.detail or None, cause=error.cause)
            self._log.append(code)
            return result

    @staticmethod
    def official_output(result: ExecutionResult) -> str:
        """The text that the official interpreter shows for a result. Raises InfraError for an INFRA_ERROR."""
        if result.status is StepStatus.INFRA_ERROR:
            raise InfraError(result.cause or "unknown", result.error or "")
        if result.status is StepStatus.OK:
            return result.stdout.strip()
        stdout = "" if result.status is StepStatus.TIMEOUT else result.stdout
        return "[Error]:\n" + (stdout + (result.error or "")).strip()

    def branch(self, step: int | None = None) -> ReplaySession:
        """A session of its own with the history and the files after the `step`-th run (0: the start; default: newest).

        The newest state is copied; an earlier one is made by running the code up to it in the start's files, as the
        official verifier does for every step. Raises InfraError when the state cannot be had, ValueError for a wrong
        step.
        """
        with self._lock:
            self._check_open()
            newest = len(self._log) - self._first
            if step is not None and not 0 <= step <= newest:
                raise ValueError(f"no step {step}: the session has {newest} runs")
            count = self._first + (newest if step is None else step)
            twin = self._copied() if count == len(self._log) else self._repeated(count)
            twin._log, twin._first = self._log[:count], count
            return twin

    def close(self) -> None:
        """End processes and remove the workspace. Branches live on. Again is harmless."""
        self._closed = True
        self._newest.close()
        self._start.close()

    def __enter__(self) -> ReplaySession:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InfraError("session_closed", "the session was closed")

    def _run(self, code: str) -> ExecutionResult:
        script = f"{self._history}\n{code}" if self._history else code
        self._check_open()
        try:
            session, result = self._run_in_fresh_state(script)
        except InfraError:
            self._check_open()
            self._take(self._repeated(len(self._log)))
            session, result = self._run_in_fresh_state(script)
        self._renew(session)
        if result.status is StepStatus.OK:
            self._history = silenced(script)
        return result

    def _run_in_fresh_state(self, script: str) -> tuple[Session, ExecutionResult]:
        session = self._newest.fresh()
        workspace = session.workspace
        result = run_in(session, script, self._start._sandbox.limits.wall_s)
        if result.status is StepStatus.INFRA_ERROR:
            session.close()
            raise InfraError(result.cause or "unknown", result.error or "")
        if session.workspace != workspace:  # rebuilt meanwhile, from a code log that knows nothing of earlier files
            session.close()
            raise InfraError("workspace_lost", "the files of earlier steps are gone")
        return session, result

    def _renew(self, session: Session) -> None:
        """`session` has the newest files now."""
        if self._newest is not self._start:
            self._newest.close()
        self._newest = session
        if self._closed:  # meanwhile
            session.close()

    def _take(self, other: ReplaySession) -> None:
        """The files and the history of another, which ends."""
        self._renew(other._newest if other._newest is not other._start else other._start.fresh())
        self._history = other._history
        other._start.close()

    def _copied(self) -> ReplaySession:
        twin = ReplaySession(self._start.branch(0))
        try:
            twin._newest, twin._history = self._newest.fresh(), self._history
        except InfraError:
            twin.close()
            return self._repeated(len(self._log))
        return twin

    def _repeated(self, count: int) -> ReplaySession:
        twin = ReplaySession(self._start.branch(0))
        for code in self._log[:count]:
            result = twin.run(code)
            if result.status is StepStatus.INFRA_ERROR:
                twin.close()
                raise InfraError(result.cause or "unknown", result.error or "")
        return twin
