"""From the body of an answer to a `ChatReply`. What is not a reply is `endpoint_malformed`: nothing is guessed."""

from __future__ import annotations

import json
import math
from typing import Any

from datapm_rl.chat.failure import EndpointFailure, malformed
from datapm_rl.chat.types import ChatReply, ChatSampling
from datapm_rl.dialects.escape import printable

_EXCERPT = 120


def parse_reply(body: bytes, sampling: ChatSampling, seconds: float) -> ChatReply:
    """Read a chat completion. The text ends before the first stop string, also where an endpoint includes it."""
    answer = read_json(body)
    try:
        choice = answer["choices"][0]
        content, finish = choice["message"]["content"], choice["finish_reason"]
    except (KeyError, IndexError, TypeError):
        raise malformed(f"not a chat completion: {_excerpt(body)}") from None
    _check_finish(finish)
    if content is None and finish == "length":
        content = ""  # a reasoning model that was cut before it came to its answer
    if not isinstance(content, str):
        raise malformed(f"the reply's content is {type(content).__name__}, not text")
    text, stopped_at = printable(content), choice.get("stop_reason")  # vLLM's: the stop string, if it was one
    if finish == "stop" and (included := [stop for stop in sampling.stop if stop in text]):
        stopped_at = min(included, key=text.find)
        text = text[: text.find(stopped_at)]
    usage = answer.get("usage") or {}
    return ChatReply(
        text=text,
        finish=finish,
        stopped_at=stopped_at if stopped_at in sampling.stop else None,
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        seconds=seconds,
        top=_top(choice) if sampling.top_logprobs else [],
    )


def read_json(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; NaN and infinities are not JSON."""
    try:
        answer = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise malformed(f"not JSON: {_excerpt(body)}") from None
    if not isinstance(answer, dict):
        raise malformed(f"not a JSON object: {_excerpt(body)}")
    return answer


def _check_finish(finish: Any) -> None:
    if finish in ("stop", "length"):
        return
    if finish == "content_filter":
        raise EndpointFailure("endpoint_rejected", "the endpoint's content filter withheld the reply")
    if finish in ("abort", "aborted", "error"):  # vLLM's words, for a weight update and for a failure of its own
        raise EndpointFailure("endpoint_error", f"the endpoint ended the reply early (finish_reason {finish})", True)
    raise malformed(f"unknown finish_reason {finish!r}")


def _count(usage: Any, key: str) -> int:
    """A token count; 0 where the endpoint does not tell."""
    if not isinstance(usage, dict):
        raise malformed(f"usage is not an object: {usage!r}")
    count = usage.get(key) or 0
    if not isinstance(count, int) or count < 0:
        raise malformed(f"usage.{key} is not a count: {count!r}")
    return count


def _top(choice: dict[str, Any]) -> list[dict[str, float]]:
    """Per token, candidate -> log-probability; of candidates with the same text the first, which is the likeliest."""
    try:
        rows = [
            {item["token"]: float(item["logprob"]) for item in reversed(token["top_logprobs"])}
            for token in choice["logprobs"]["content"]
        ]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise malformed("the reply has no top_logprobs, though they were asked for") from None
    if not all(math.isfinite(value) for row in rows for value in row.values()):
        raise malformed("a log-probability is not finite")
    return rows


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _excerpt(body: bytes) -> str:
    return body[:_EXCERPT].decode("utf-8", "replace") or "nothing"
