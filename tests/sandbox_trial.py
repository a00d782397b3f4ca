"""One case tried in a session of its own, and what must hold afterwards whatever the case did."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from sandbox_cases import Case
from sandbox_host import WORDS, Host
from sandbox_processes import holds_soon, processes

from datapm_rl.sandbox import ExecutionResult, Sandbox, Session

_BEFORE = "canary = 41\nwith open('before.txt', 'w') as f: _ = f.write('kept')"
_STATE = "(canary, open('before.txt').read(), sorted(__import__('os').listdir('.')))"
_KEPT = "(41, 'kept', ['before.txt', 'data.csv'])"


class Trial:
    """`other`: a session that lives through all cases, with `theirs = 7` and OTHER_SECRET in its secret.txt."""

    def __init__(self, case: Case, sandbox: Sandbox, host: Host, other: Session):
        self.case, self.sandbox, self.host, self.other = case, sandbox, host, other
        self.problems: list[str] = []
        self.shown: dict[str, object] = {}

    def run(self) -> dict[str, object]:
        """What the step gave, and a sentence for each thing that did not hold."""
        start = time.monotonic()
        before = len(processes())
        descriptors = len(os.listdir("/proc/self/fd"))
        try:
            self._session()
        except Exception:
            self.problems.append(f"the supervisor raised {traceback.format_exc(limit=-4)[-1500:]}")
        self._must(
            holds_soon(lambda: len(processes()) <= before), f"2 s later there are still {processes()}, {before} before"
        )
        self._must(holds_soon(lambda: len(os.listdir("/proc/self/fd")) <= descriptors), "descriptors were left open")
        self._must(self.other.run("theirs").value == "7", "the other session lost its variable")
        self._must((self.other.workspace / "secret.txt").read_text() == "OTHER_SECRET", "the other's file changed")
        self.problems += self.host.problems()
        took = round(time.monotonic() - start, 2)
        return {"case": self.case.name, "problems": self.problems, "took": took, **self.shown}

    def _session(self) -> None:
        case, fill = self.case, self.host.fill
        with contextlib.ExitStack() as stack:
            session = self.sandbox.session(self.host.data, seed=1)
            stack.callback(self._close, session)
            session.run(_BEFORE)
            if case.before:
                self._look(session.run(case.before), ("ok",), "the step before")
            with self._branches(session, case.branch == "during"):
                result = self._timed(session, fill(case.code, OTHER_WS=self.other.workspace), "the step")
            self.shown = {name: str(getattr(result, name))[-3000:] for name in ("stdout", "value", "error", "wall_s")}
            self.shown["status"] = result.status.value
            self._look(result, case.statuses, "the step")
            self._must(case.prints in f"{result.stdout}{result.error}", f"{case.prints!r} was not printed")
            time.sleep(case.pause_s)
            if case.poisons:
                self._poisoned(session)
            else:
                self._goes_on(session, result)
            if case.branch == "after":
                self._branch(stack.enter_context(session.branch()))
            asked = time.monotonic()
            self._must(bool(self.sandbox.health()["alive"]), "the sandbox is dead")
            self._must(time.monotonic() - asked < 1.0, "the supervisor did not answer within 1 s")

    def _goes_on(self, session: Session, result: ExecutionResult) -> None:
        follow = self._timed(session, "print(1 + 1)", "the next step")
        self._must(follow.stdout == "2\n" and follow.status.value == "ok", f"the next step gave {follow}")
        self._must(session.run("canary").value == "41", "the state before the step is lost")
        if result.status.value in ("timeout", "output", "died") or result.rolled_back:
            state = self._timed(session, _STATE, "the look at the state")
            self._must(state.value == _KEPT, f"not rolled back: {state}")
        if self.case.after:
            self._look(self._timed(session, self.case.after, "the step after"), ("ok",), "the step after")

    def _poisoned(self, session: Session) -> None:
        for code in ("1", "__import__('os')._exit(1)", "1"):
            follow = self._timed(session, code, "a later step")
            self._must(follow.status.value != "infra_error", f"a later failure is called ours: {follow}")
            if code == "1" and follow.status.value != "ok":
                return  # it stays like that

    def _branch(self, twin: Session) -> None:
        self._must(not _finds_secret(twin.workspace), "the branch has the host's secret")
        result = self._timed(twin, "print(canary, open('before.txt').read())", "the branch's step")
        self._must(result.stdout == "41 kept\n" or self.case.poisons, f"the branch gave {result}")
        self._must(result.status.value != "infra_error", f"the branch's failure is called ours: {result}")
        if self.case.in_branch:
            self._look(self._timed(twin, self.case.in_branch, "a step of the branch"), ("ok",), "a step of the branch")
        size = sum(
            os.lstat(os.path.join(at, name)).st_blocks for at, _, names in os.walk(twin.workspace) for name in names
        )
        self._must(
            size * 512 < 2 * self.sandbox.limits.workspace_mb << 20, f"the branch's files take {size * 512} bytes"
        )

    @contextlib.contextmanager
    def _branches(self, session: Session, wanted: bool) -> Iterator[None]:
        """Make branches while a step runs."""
        ended = threading.Event()

        def make() -> None:
            while not ended.wait(0.05):
                with session.branch() as twin:
                    self._branch(twin)

        thread = threading.Thread(target=make)
        if wanted:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            if wanted:
                thread.join()

    def _timed(self, session: Session, code: str, what: str) -> ExecutionResult:
        start = time.monotonic()
        result = session.run(code)
        took = time.monotonic() - start
        limit = self.sandbox.limits.wall_s
        self._must(  # much slack: it must end, and other work may have the cores
            took < limit + 10, f"{what} took {took:.1f} s, limit {limit:g} s ({result.status}: {result.error})"
        )
        self._must(result.wall_s < limit + 2, f"{what} is said to have run {result.wall_s:.1f} s, limit {limit:g} s")
        return result

    def _look(self, result: ExecutionResult, statuses: tuple[str, ...], what: str) -> None:
        self._must(
            result.status.value in statuses, f"{what} gave {result.status} ({result.error}), not one of {statuses}"
        )
        texts = [text or "" for text in (result.stdout, result.value, result.error)]
        most = (self.sandbox.limits.output_kb << 10) + 4096
        self._must(max(map(len, texts)) < most, f"{what} gave more output than is to be kept")
        for word in WORDS:  # a traceback may quote the code
            self._must(
                word not in texts[0] + texts[1],
                f"{what} printed {word}: {[line for line in (texts[0] + texts[1]).splitlines() if word in line][:9]}",
            )

    def _close(self, session: Session) -> None:
        start = time.monotonic()
        workspace = session.workspace
        session.close()
        self._must(time.monotonic() - start < 5, "close took more than 5 s")
        self._must(holds_soon(lambda: not workspace.exists()), "the workspace is still there")

    def _must(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)


def _finds_secret(workspace: Path) -> bool:
    for folder, _, names in os.walk(workspace):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    if b"OUTSIDE_SECRET" in file.read(1 << 20):
                        return True
    return False
