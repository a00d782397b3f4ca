"""A line of parked snapshots: the state after each run of a session or of a branch.

`states[k]` is the state after the k-th run. A run that was stopped (time limit, crash) adds the state before it once
more: variables and files roll back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapm_rl.errors import InfraError
from datapm_rl.sandbox.calls import Answer
from datapm_rl.sandbox.files import FileHistory
from datapm_rl.sandbox.manifest import Manifest
from datapm_rl.sandbox.process import Process
from datapm_rl.sandbox.result import ExecutionResult, Limits
from datapm_rl.sandbox.root import Root, StateLost
from datapm_rl.sandbox.step import RunningStep
from datapm_rl.trajectory import StepStatus

_LAYERS = 14  # Landlock takes 16
_NO_FILES = Manifest({})


@dataclass(eq=False)
class State:
    """What a step left. `process` None: dropped, with its files, to be rebuilt when it is needed."""

    process: Process | None
    files: Manifest


class Chain:
    """Snapshots and workspace of a session or a branch. One `run` at a time, the rest at any time. Thread-safe."""

    def __init__(
        self, root: Root, limits: Limits, slot: Path, writable: frozenset[Path] | None, layers: int, offset: int
    ):
        """`writable`: where a branch may change files, None: not a branch. `offset`: runs before it."""
        self.root, self.limits, self.workspace = root, limits, slot
        self._writable = writable
        self._layers = layers
        self._offset = offset
        root.hold()
        try:
            self._files = FileHistory(slot, root.folder.store(), root.folder.uid)
        except OSError as error:
            root.release()
            raise StateLost(f"the session's folder is gone ({error})", ours=True) from None
        self.states: list[State] = []
        self._step: RunningStep | None = None
        self._closed = False
        self._lock = threading.Lock()  # guards the fields above; held for a fork at most, never for a step

    @classmethod
    def start(cls, root: Root, limits: Limits, sources: Sequence[Path]) -> Chain:
        """Of a new root, with copies of the data files under their base names. Raises StateLost, InfraError."""
        slot = root.folder.take(frozenset({root.first}))
        assert slot is not None
        chain = cls(root, limits, slot, None, 1, 0)
        root.zygote.hold(root.process)
        try:
            with chain._disk():
                chain.states.append(State(root.process, chain._files.start(list(sources))))
        except BaseException:
            root.zygote.forget(root.process)
            chain.close()
            raise
        return chain

    def branch(self, step: int) -> Chain | None:
        """A chain that starts from a state of this one; None when it must be rebuilt from the code log instead."""
        with self._lock:
            self._check_open()
            state = self.states[step]
            writable = (self.root.folder.slots if self._writable is None else self._writable) - {self.workspace}
            if state.process is None or not state.process.alive() or self._layers >= _LAYERS:
                return None
            slot = self.root.folder.take(writable)
            if slot is None:
                return None
            try:
                twin = Chain(self.root, self.limits, slot, writable, self._layers + 1, self._offset + step)
            except StateLost:
                return None
            self.root.zygote.hold(state.process)
        twin.states.append(State(state.process, state.files))
        try:
            twin.restore(state.files)
        except StateLost:
            twin.close()
            return None
        except BaseException:
            twin.close()
            raise
        return twin

    def run(self, code: str, check: bool = False, op: str = "run", answer: Answer | None = None) -> ExecutionResult:
        """Run code in the newest state; `op` "export" or "load": see `inside.transplant`; `answer`: it may call.

        Raises StateLost, or InfraError when nothing was run or its result is lost.
        """
        if not self.root.process.alive():
            raise StateLost("the session's first process has ended", ours=True)
        before = self.files()  # what the owner put there since the last run stays
        with self._lock:
            self._check_open()
            source = self.states[-1].process
            if source is None:
                raise StateLost("it was dropped", ours=True)
            request = self._request(op, code, check, answer is not None)
            step = self._step = RunningStep(self.root, self.limits, self.workspace, source, request, answer)
        process, result = step.finish()
        try:
            if result.status is StepStatus.DIED and self.root.is_safe and self.root.lost():
                raise StateLost("the session's first process has ended", ours=True)
            if process is None:
                self.restore(before)
            files = before if process is None else self.files()
            with self._lock:
                self._check_open()
                self.states.append(State(process or source, files))
                if process is None:
                    self.root.zygote.hold(source)
        except (InfraError, StateLost):
            if process is not None:
                self.root.zygote.forget(process)
            raise
        finally:
            self._step = None
        return result

    def files(self) -> Manifest:
        """What is in the workspace now."""
        with self._disk():
            return self._files.commit()

    def restore(self, files: Manifest) -> None:
        """Have these files, of this chain or another, in the workspace."""
        with self._disk():
            self._files.restore(files)

    def repeat(self) -> None:
        """One more state, the same as the newest: a run that left nothing."""
        with self._lock:
            self._check_open()
            state = self.states[-1]
            if state.process is not None:
                self.root.zygote.hold(state.process)
            self.states.append(State(state.process, state.files))

    def drop(self, step: int) -> None:
        """Let go of a state's process; the start and the newest stay."""
        with self._lock:
            if 0 < step < len(self.states) - 1:
                self._drop(self.states[step])

    def cut(self, steps: int) -> None:
        """Forget the first states, as if the chain were a branch made after them."""
        with self._lock:
            for state in self.states[:steps]:
                self._drop(state)
            self.states = self.states[steps:]
            self._offset += steps

    def close(self) -> None:
        """Kill the processes and give the workspace back. Again is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._step is not None:
                self._step.stop()  # the thread that waits for it lets go of it
            for state in self.states:
                self._drop(state)
        self._files.close()
        self.root.folder.give_back(self.workspace)
        self.root.release()

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with self._lock:
                self._check_open()  # else the workspace was taken away
            if self.root.lost():
                raise StateLost("the zygote has ended, and the workspaces with it", ours=True) from None
            raise InfraError("disk", f"the workspace cannot be read or written ({error})") from error

    def _drop(self, state: State) -> None:
        if state.process is not None:
            self.root.zygote.forget(state.process)
            state.process, state.files = None, _NO_FILES  # copies that no manifest refers to are deleted

    def _check_open(self) -> None:
        if self._closed:
            raise InfraError("session_closed", "the session was closed")

    def _request(self, op: str, code: str, check: bool, calls: bool) -> dict[str, Any]:
        first_of_branch = self._writable is not None and len(self.states) == 1
        return {
            "op": op,
            "code": code,
            "number": self._offset + len(self.states),
            "keep": self.limits.output_kb << 10,
            # the snapshot that a branch starts from is at home in the original's workspace
            "cwd": str(self.workspace) if first_of_branch else None,
            "changeable": sorted(map(str, self._writable or ())) if first_of_branch else None,
            "check": check,
            "calls": calls,
        }
