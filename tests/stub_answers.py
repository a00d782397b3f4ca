"""What a `StubEndpoint` answers: replies, errors, faults of the connection, and bodies that are no reply."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What one request gets. Without `body`, a chat completion with `text`; `message` and `choice` are merged into it.

    `fault`: "hang" (no answer), "hang_after_headers", "cut" (half of the body, then the connection is closed),
    "reset" (no answer, the connection is reset), "drip" (a byte every 20 ms).
    """

    text: str | None = "ok"
    finish: str | None = "stop"
    usage: tuple[int, int] | None = (10, 5)  # tokens of the prompt, of the reply
    latency_s: float | None = None  # None: by the stub's own latency
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"
    fault: str | None = None
    message: dict[str, Any] = field(default_factory=dict)
    choice: dict[str, Any] = field(default_factory=dict)

    def payload(self) -> bytes:
        """The body of the response."""
        if self.body is not None:
            return self.body
        message = {"role": "assistant", "content": self.text} | self.message
        choice = {"index": 0, "message": message, "finish_reason": self.finish, "logprobs": None} | self.choice
        answer = {"id": "stub", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice]}
        if self.usage:
            prompt, reply = self.usage
            answer["usage"] = {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}
        return json.dumps(answer).encode()


Script = str | Answer | Sequence[str | Answer] | Callable[[dict[str, Any], int], str | Answer]


def status(number: int, /, message: str = "scripted", retry_after: str | None = None, **error: Any) -> Answer:
    """An error in OpenAI's form; `error` adds to or replaces its `type`, `param` and `code`."""
    body = {"error": {"message": message, "type": "stub_error", "param": None, "code": None} | error}
    headers = {"Retry-After": retry_after} if retry_after is not None else {}
    return Answer(status=number, headers=headers, body=json.dumps(body).encode())


MALFORMED = {
    "empty": Answer(body=b""),
    "not_json": Answer(body=b'{"choices": [{"mess'),
    "html": Answer(body=b"<html><body>Bad gateway</body></html>", content_type="text/html"),
    "not_utf8": Answer(body=b'{"choices": "\xff\xfe"}'),
    "a_list": Answer(body=b"[]"),
    "error_object": Answer(body=b'{"error": {"message": "overloaded"}}'),
    "no_choices": Answer(body=b'{"choices": []}'),
    "choices_null": Answer(body=b'{"choices": null}'),
    "no_message": Answer(body=b'{"choices": [{"finish_reason": "stop"}]}'),
    "content_null": Answer(text=None),
    "content_parts": Answer(message={"content": [{"type": "text", "text": "1"}]}),
    "content_number": Answer(message={"content": 1}),
    "finish_unknown": Answer(finish="tired"),
    "finish_null": Answer(finish=None),
    "usage_negative": Answer(usage=(-1, 5)),
    "nan": Answer(body=b'{"choices": [{"message": {"content": "1"}, "finish_reason": "stop", "score": NaN}]}'),
}


def lognormal(mean_s: float, sigma: float, seed: int = 0) -> Callable[[], float]:
    """A seeded latency with this mean; `sigma` is the deviation of its logarithm (0: constant)."""
    draw = random.Random(seed)
    return lambda: draw.lognormvariate(math.log(mean_s) - sigma**2 / 2, sigma)
