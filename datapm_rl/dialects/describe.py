"""The pieces from which a dialect words a result."""

from __future__ import annotations

import re

from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.trajectory import StepStatus

_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Exit|Iteration|Group)(?::|$)")
_STOPPED = {
    StepStatus.TIMEOUT: "the code ran out of time",
    StepStatus.MEMORY: "the code ran out of memory",
    StepStatus.OUTPUT: "the code printed too much",
    StepStatus.LIMIT: "the code used too many resources",
    StepStatus.DIED: "the code ended its own process",
    StepStatus.INFRA_ERROR: "the code could not be run",
}


def shown(result: ExecutionResult) -> str:
    """What was printed and, on a line of its own, the value of the last expression; "" if there is neither."""
    parts = [result.stdout.lstrip("\n").rstrip(), (result.value or "").rstrip()]
    return "\n".join(part for part in parts if part)


def failed(result: ExecutionResult) -> bool:
    """Whether the code did not run to its end."""
    return result.status is not StepStatus.OK


def error_text(result: ExecutionResult) -> str:
    """The whole traceback, or a sentence if there is none."""
    return (result.error or "").strip() or _STOPPED.get(result.status, "the code failed")


def error_line(result: ExecutionResult) -> str:
    """The traceback's last line; of a message over several lines the one that names the exception."""
    lines = error_text(result).splitlines()
    named = [line for line in lines if _EXCEPTION.match(line)]
    return (named or lines)[-1].strip()
