"""The clean room: an agent's data and files in a session where the agent's code never ran.

Agent code can replace functions of pandas in its own process, and so what a verifier computes in a fork of it. Here
the data crosses in a file, written by a fork of the agent's process and read, as plain values only, by a fork of the
pristine zygote (`inside.transplant`).
"""

from __future__ import annotations

import json
import secrets

from datapm_rl.errors import InfraError
from datapm_rl.sandbox.chain import Chain
from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.trajectory import StepStatus


def carry(source: Chain, room: Chain) -> tuple[str, ...]:
    """Bring the newest variables and files of `source`, a branch of its own, into `room`; names of what is no data.

    Raises StateLost, InfraError: "export_failed" when the agent's process cannot be made to write its data.
    """
    name = f".data-{secrets.token_hex(8)}"
    exported = _names(source.run(str(source.workspace / name), op="export"), "export_failed")
    room.restore(source.states[-1].files)
    refused = _names(room.run(str(room.workspace / name), op="load"), "import_failed")
    (room.workspace / name).unlink(missing_ok=True)
    room.cut(len(room.states) - 1)  # its start is the state with the data
    return tuple(dict.fromkeys((*exported, *refused)))


def _names(result: ExecutionResult, cause: str) -> list[str]:
    if result.status is not StepStatus.OK:
        raise InfraError(cause, result.error or "")
    try:
        names = json.loads(result.value or "")
    except ValueError:
        names = None
    if not isinstance(names, list):
        raise InfraError(cause, "the names are no list")
    return [str(name)[:200] for name in names[:1000]]
