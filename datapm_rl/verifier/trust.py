"""Whether a branch of the agent's state can be trusted: its process may hold replaced functions of pandas or NumPy.

Each branch is checked (`datapm_rl.sandbox.inside.pristine`). What was replaced marks the step's verdict, and the
policy says what else happens:

    mark        nothing
    clean_room  the verifier gets the agent's data in a process where the agent's code never ran; a process that does
                not hand over its data scores 0
    zero        the step's score is 0
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Protocol

from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.trajectory import Verdict
from datapm_rl.verifier.base import CodeRunner

POLICIES = ("mark", "clean_room", "zero")


class BranchingSession(Protocol):
    """The agent's session, as far as branches of it are concerned: behind an actor or local."""

    async def probe(self, code: str, step: int | None = None, clean: bool = False) -> ExecutionResult:
        """Run code once on a throwaway branch."""
        ...

    def branch(self, step: int | None = None, clean: bool = False) -> AbstractAsyncContextManager[CodeRunner]:
        """A private copy of the state after the `step`-th run."""
        ...


class CheckedBranches:
    """The branches of a session at one state that a verifier may use: `probe` and `branch` of a VerificationRequest.

    `tampered`: what the checks found, so far.
    """

    def __init__(self, session: BranchingSession, runs: int, policy: str):
        """`runs`: the state is the one after so many runs."""
        self._session, self._runs, self._policy = session, runs, policy
        self.tampered: tuple[str, ...] = ()

    async def probe(self, code: str) -> ExecutionResult:
        """Run code once on a throwaway branch."""
        if not self._clean:
            result = await self._session.probe(code, self._runs)
            self.tampered = result.tampered or self.tampered
            if not self._clean:
                return result
        return await self._session.probe(code, self._runs, clean=True)

    @asynccontextmanager
    async def branch(self) -> AsyncIterator[CodeRunner]:
        """A branch to run several pieces of code on."""
        if not self.tampered:
            self.tampered = (await self._session.probe("", self._runs)).tampered
        async with self._session.branch(self._runs, clean=self._clean) as twin:
            yield twin

    def judged(self, verdict: Verdict) -> Verdict:
        """The verdict, marked, and set to 0 if that is the policy. A verdict missing for other reasons stays so."""
        if not self.tampered:
            return verdict
        verdict = replace(verdict, tampered=list(self.tampered))
        sabotaged = verdict.cause == "export_failed"  # the process cannot be made to hand over its data
        if not sabotaged and (self._policy != "zero" or verdict.score is None):
            return verdict
        what = ", ".join(self.tampered)
        return replace(
            verdict, score=0.0, cause=None, rationale=f"the code replaced {what}. {verdict.rationale}".rstrip()
        )

    @property
    def _clean(self) -> bool:
        return self._policy == "clean_room" and bool(self.tampered)
