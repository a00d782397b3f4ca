"""One request to a SandboxFusion server: `POST /run_code`, tried again when the failure may pass.

Its answer (server code of 2025): `status` Success, Failed or SandboxError, `message`, and `run_result` with a `status`
of its own (Finished, TimeLimitExceeded, Error), `return_code`, `stdout`, `stderr` (the first MB of each).
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from typing import Any

import aiohttp

from datapm_rl.errors import InfraError

_PAUSES_S = (0.0, 1.0, 3.0, 9.0)  # before each attempt, times 0.5 to 1.5
_ANSWER_MAX = 32 << 20  # bytes
_PASSING = ("sandbox_unreachable", "sandbox_failed", "sandbox_http_429")


@dataclass(frozen=True)
class Command:
    """How the program ended on the server. `detail`: its exit code and the end of its stderr, for messages."""

    stdout: str
    timed_out: bool
    detail: str


async def run_code(url: str, request: dict[str, Any]) -> Command:
    """Send a request, up to 4 times; it must be one that may run twice. Cancel it at the deadline.

    Raises InfraError: "sandbox_unreachable", "sandbox_http_<code>", "sandbox_failed" (the server says so itself),
    "sandbox_protocol" (the answer is not what the API promises).
    """
    body = await asyncio.to_thread(lambda: json.dumps(request).encode())  # tables of many MB
    for pause_s in _PAUSES_S:
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
        try:
            return _command(await _post(f"{url}/run_code", body))
        except InfraError as error:
            failure = error
        if failure.cause not in _PASSING and not failure.cause.startswith("sandbox_http_5"):
            break
    raise failure


async def _post(url: str, body: bytes) -> bytes:
    headers = {"Content-Type": "application/json"}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as client,
            client.post(url, data=body, headers=headers, allow_redirects=False) as response,
        ):
            answer = bytearray()
            async for chunk in response.content.iter_chunked(1 << 16):
                answer += chunk
                if len(answer) > _ANSWER_MAX:
                    raise InfraError("sandbox_protocol", f"an answer of more than {_ANSWER_MAX >> 20} MB")
            if response.status != 200:
                raise InfraError(f"sandbox_http_{response.status}", answer[:500].decode("utf-8", "replace"))
            return bytes(answer)
    except (aiohttp.ClientError, OSError) as error:
        raise InfraError("sandbox_unreachable", f"{url}: {error or type(error).__name__}") from None


def _command(answer: bytes) -> Command:
    try:
        fields = json.loads(answer)
        status, run = fields["status"], fields["run_result"]
        if status == "SandboxError":
            raise InfraError("sandbox_failed", str(fields.get("message"))[-500:])
        if status not in ("Success", "Failed"):
            raise ValueError(f"status {status!r}")
        outcome, stdout, stderr = run["status"], run["stdout"] or "", run["stderr"] or ""
        if outcome not in ("Finished", "TimeLimitExceeded") or not isinstance(stdout, str):
            raise ValueError(f"run_result {str(run)[:200]}")
        detail = f"exit code {run.get('return_code')}: {str(stderr)[-500:]}"
        return Command(stdout, outcome == "TimeLimitExceeded", detail)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InfraError("sandbox_protocol", f"{type(error).__name__} {error} in {answer[:200]!r}") from None
