"""What a caller asks of the engine (`Sampling`) and what it gets (`Generation`).

The logprob of a token is that of the distribution the trainer recomputes: log_softmax(logits / temperature) over
the whole vocabulary, before top-p and top-k cut it. Greedy decoding (temperature 0) reports it at temperature 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from datapm_rl.errors import UserError

# What other engines offer and this one does not: fine at the value that means "off", an error otherwise.
_NEUTRAL = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_p": 0.0,
    "min_tokens": 0,
    "n": 1,
}
_NUMBERS = {"temperature": float, "top_p": float, "top_k": int, "max_tokens": int, "seed": int, "ignore_eos": bool}
# Accepted and without effect: logprobs of the sampled tokens and the stop string are always returned.
_IMPLIED = {"logprobs", "include_stop_str_in_output", "skip_special_tokens", "detokenize", "do_sample"}


@dataclass(frozen=True)
class Sampling:
    """How to decode one request.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 keep the whole vocabulary. `max_tokens` None: up to the
    engine's `max_len`. `stop`: strings that end the generation and stay in its tokens. `stop_token_ids` end it as
    well, in addition to the model's EOS tokens (unless `ignore_eos`). `seed` None: the request id is the seed.
    Raises `UserError` on a value outside its range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise UserError(f"temperature must be 0 or more, got {self.temperature}; 0 means greedy decoding")
        if not 0.0 < self.top_p <= 1.0:
            raise UserError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.top_k < 0:
            raise UserError(f"top_k must be 0 (the whole vocabulary) or more, got {self.top_k}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UserError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if any(not text for text in self.stop):
            raise UserError("a stop string must not be empty")

    @classmethod
    def from_dict(cls, params: Mapping[str, Any]) -> Sampling:
        """Read a vLLM- or verl-style dict of sampling parameters; keys with value None count as absent.

        >>> Sampling.from_dict({"max_new_tokens": 8, "top_k": -1, "stop": "</Code>", "logprobs": True})
        Sampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=8, stop=('</Code>',), stop_token_ids=(), \
seed=None, ignore_eos=False)
        """
        left = {key: value for key, value in params.items() if value is not None and key not in _IMPLIED}
        for key, neutral in _NEUTRAL.items():
            if left.pop(key, neutral) != neutral:
                raise UserError(f"the CPU engine does not implement {key}={params[key]}; leave it at {neutral}")
        if "max_new_tokens" in left:
            left["max_tokens"] = left.pop("max_new_tokens")
        unknown = sorted(set(left) - set(cls.__dataclass_fields__))
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise UserError(f"unknown sampling parameter {unknown[0]!r}; the CPU engine knows {known}")
        stop = left.get("stop", ())
        try:
            left["stop"] = (stop,) if isinstance(stop, str) else tuple(str(text) for text in stop)
            left["stop_token_ids"] = tuple(int(token) for token in left.get("stop_token_ids", ()))
            left |= {key: kind(left[key]) for key, kind in _NUMBERS.items() if key in left}
            left["top_k"] = max(left.get("top_k", 0), 0)  # vLLM writes -1 for the whole vocabulary
        except (TypeError, ValueError) as error:
            raise UserError(f"sampling parameters {dict(params)} cannot be read: {error}") from error
        return cls(**left)


@dataclass
class Generation:
    """The tokens of one request, `len(token_ids) == len(logprobs)`; a stop string or EOS token is part of them.

    `stop_reason`: "stop" (`matched` holds the stop string or the token id), "length", or "aborted" (the tokens so
    far). `weight_version` is that of the weights that sampled the first token, `last_weight_version` the last.
    `cached_tokens` of the prompt were not computed again.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_reason: str = "length"
    weight_version: int = 0
    matched: str | int | None = None
    last_weight_version: int = 0
    cached_tokens: int = 0
