"""How failures are named: the one place that classifies them (docs/architecture.md, "Error model").

Three kinds, and only three:

* an *agent error* (its code raised, timed out, ran out of memory; no answer) is data: an observation or an
  outcome of 0. It is never an exception of ours;
* an *infrastructure error* (sandbox lost, verifier unreachable, grader down, deadline hit) makes a value
  *missing with a cause*. It is an `InfraError` on its way to the place that records the cause;
* a *user error* (bad configuration, unreadable data) is a `UserError`: one sentence that says what, where and
  what to do. Entry points print it and exit with 2.
"""

from __future__ import annotations


class UserError(Exception):
    """Bad input from the user. The message is one sentence: what is wrong, where, and what to do."""


class InfraError(Exception):
    """A part of ours failed. `cause` is a short stable word, used as a metric name (`missing/<cause>`)."""

    def __init__(self, cause: str, detail: str = ""):
        super().__init__(f"{cause}: {detail}" if detail else cause)
        self.cause = cause
        self.detail = detail

    def __reduce__(self):  # travels between Ray actors
        return (InfraError, (self.cause, self.detail))


def cause_of(error: BaseException) -> str:
    """The stable cause word of any exception caught at a boundary.

    >>> cause_of(InfraError("sandbox_lost", "actor died"))
    'sandbox_lost'
    >>> cause_of(ConnectionRefusedError())
    'unreachable'
    """
    while type(error).__module__.startswith("ray.") or hasattr(error, "as_instanceof_cause"):
        inner = getattr(error, "cause", None)  # Ray's wrapper of what a remote call raised
        if not isinstance(inner, BaseException) or inner is error:
            return "deadline" if isinstance(error, TimeoutError) else "actor_lost"
        error = inner
    if isinstance(error, InfraError):
        return error.cause
    if isinstance(error, TimeoutError):
        return "deadline"
    if isinstance(error, ConnectionError):
        return "unreachable"
    return f"bug_{type(error).__name__}"
