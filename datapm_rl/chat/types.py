"""What a call of a language model takes and gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

Message = dict[str, Any]
"""{"role": "system" | "user" | "assistant", "content": text, or a list of OpenAI content parts}"""


@dataclass(frozen=True)
class ChatSampling:
    """How to sample a reply. The defaults are DataPRM's (its release, `--temperature --top_p --top_k`).

    `top_k` 0 or less keeps every token, and is not sent. `top_logprobs` > 0 asks for that many alternatives per
    token (`ChatReply.top`).
    """

    temperature: float = 0.7
    top_p: float = 0.9
    top_k: int = 20
    max_tokens: int = 8192
    stop: tuple[str, ...] = ()
    seed: int | None = None
    top_logprobs: int = 0


@dataclass(frozen=True)
class ChatReply:
    """One reply. `text` ends before the stop string; `finish` is "stop" or "length".

    Token counts are 0 where the endpoint does not tell them. `seconds` go from the call to the reply, with queueing and
    retries. `top`: per token, candidate -> log-probability; empty unless asked for. `stopped_at`: the stop string that
    ended the text, if the endpoint tells (vLLM's `stop_reason`).
    """

    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    top: list[dict[str, float]] = field(default_factory=list)
    stopped_at: str | None = None


class Chat(Protocol):
    """An endpoint, or what stands for one."""

    async def complete(self, messages: list[Message], sampling: ChatSampling, deadline_s: float) -> ChatReply:
        """One reply within `deadline_s` seconds, retries included.

        InfraError with a cause: endpoint_unreachable, endpoint_timeout, endpoint_overloaded, endpoint_error (5xx),
        endpoint_rejected (4xx), endpoint_malformed, endpoint_down (the breaker is open for longer than the deadline),
        context_exceeded (the endpoint says that the prompt is too long).
        """
        ...
