"""Why a request got no reply: the causes of `Chat.complete`, and which of them are worth another try."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from datapm_rl.errors import InfraError

if TYPE_CHECKING:
    import openai  # takes half a second, which a check of settings need not

_MAX_WORDS = 300
_REFUSES_S, _OVERLOADED_S, _REST_MAX_S = 30.0, 1.0, 60.0
_ENDPOINT_AT_FAULT = frozenset({"endpoint_unreachable", "endpoint_timeout", "endpoint_error", "endpoint_malformed"})
_RETRIED_STATUS = frozenset({408, 409, 425, 429})
_CONTEXT_STATUS = frozenset({400, 413, 422})
_CONTEXT_WORDS = re.compile(
    r"context[ _-]?(length|window|size)"  # OpenAI, vLLM, SGLang, llama.cpp, Ollama
    r"|longer than the maximum (model|input) length|reduce the length of"  # vLLM
    r"|takes prompt and response up to"  # datapm_rl/engine
    r"|maximum prompt length|prompt is too long|input is too long|too many tokens"  # hosted models
    r"|input token count.{0,40}exceeds"  # Gemini
    r"|inputs.{0,40}(must be <=|must have less than)",  # text-generation-inference
    re.IGNORECASE,
)


class EndpointFailure(InfraError):
    """A request without a reply. `retried`: another try may succeed, not before `retry_after` seconds from now."""

    def __init__(self, cause: str, detail: str, retried: bool = False, retry_after: float = 0.0):
        super().__init__(cause, detail)
        self.retried, self.retry_after = retried, retry_after

    @property
    def alive(self) -> bool:
        """The endpoint works, though it refused this request."""
        return self.cause not in _ENDPOINT_AT_FAULT

    @property
    def rest_s(self) -> float:
        """Seconds for which another endpoint, if there is one, is the better choice."""
        if self.cause == "endpoint_rejected":  # a wrong key, no such model: more than one request will meet it
            return _REFUSES_S
        least = _OVERLOADED_S if self.cause == "endpoint_overloaded" else 0.0
        return min(max(self.retry_after, least), _REST_MAX_S)

    def told_by(self, url: str, secret: str | None) -> EndpointFailure:
        """The same with the endpoint's address in front, on one line, cut to 300 characters, without the API key."""
        words = self.detail.replace(secret, "***") if secret else self.detail
        words = " ".join(words.split())[:_MAX_WORDS]
        return EndpointFailure(self.cause, f"{url}: {words}", self.retried, self.retry_after)


def malformed(detail: str) -> EndpointFailure:
    """The endpoint answered with something that is not a reply."""
    return EndpointFailure("endpoint_malformed", detail, retried=True)


def unreachable(error: BaseException) -> EndpointFailure:
    """No connection, or it was lost before the answer was complete."""
    known = error.__cause__ or error  # the client's own words are "Connection error."
    return EndpointFailure("endpoint_unreachable", f"{type(known).__name__}: {known}", retried=True)


def refused(error: openai.APIStatusError) -> EndpointFailure:
    """An HTTP status that is no success, classified, in the endpoint's own words."""
    status, words = error.status_code, own_words(error)
    detail = f"{status}: {words}"
    if status >= 500:
        return EndpointFailure("endpoint_error", detail, True, _retry_after(error))
    if status < 400:
        return malformed(detail)
    if status == 429:
        return EndpointFailure("endpoint_overloaded", detail, True, _retry_after(error))
    if status in _CONTEXT_STATUS and _CONTEXT_WORDS.search(f"{error.code} {error.type} {words}"):
        return EndpointFailure("context_exceeded", detail)
    return EndpointFailure("endpoint_rejected", detail, status in _RETRIED_STATUS, _retry_after(error))


def own_words(error: openai.APIStatusError) -> str:
    """What the endpoint says: OpenAI's `error.message`, FastAPI's `detail`, or the body as it is."""
    body: Any = error.body
    if isinstance(body, dict):
        body = body.get("message") or body.get("detail") or body
    return body if isinstance(body, str) else json.dumps(body)


def _retry_after(error: openai.APIStatusError) -> float:
    """Seconds to wait by the header Retry-After (a number or a date, RFC 9110); 0 without it."""
    text = error.response.headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):  # no date, or one without its zone
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
