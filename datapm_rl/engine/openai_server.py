"""An OpenAI-compatible chat endpoint over the engine, so that it can also serve a verifier.

    GET /health    GET /v1/models    POST /v1/chat/completions   (not streaming)

Beyond OpenAI's fields, with vLLM's names: `top_k`, `stop_token_ids`, `ignore_eos`, `include_stop_str_in_output`
(default false: the text ends before the stop string) and `skip_special_tokens` (default true). A client that goes away
frees its row.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace
from typing import Any

from aiohttp import web

from datapm_rl.engine.engine import CpuEngine
from datapm_rl.engine.sampling import Generation, Sampling
from datapm_rl.errors import InfraError, UserError

_SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "stop", "seed", "stop_token_ids", "ignore_eos")
_PENALTIES = ("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_UNSUPPORTED = ("tools", "functions", "logit_bias", "top_logprobs")
_MAX_CHOICES = 128


def make_app(engine: CpuEngine, tokenizer: Any, model_name: str) -> web.Application:
    """The aiohttp application. Run it with `handler_cancellation=True`, or lost clients keep their rows."""
    endpoint = _Endpoint(engine, tokenizer, model_name)
    app = web.Application(middlewares=[_errors_as_json])
    app.add_routes(
        [
            web.get("/health", endpoint.health),
            web.get("/v1/models", endpoint.models),
            web.post("/v1/chat/completions", endpoint.chat),
        ]
    )
    return app


async def start_server(engine: CpuEngine, tokenizer: Any, host: str, port: int, model_name: str) -> str:
    """Serve until the engine is closed; port 0 takes a free one. Returns "host:port". `UserError`: port taken."""
    runner = web.AppRunner(
        make_app(engine, tokenizer, model_name), handler_cancellation=True, access_log=None, shutdown_timeout=1.0
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise UserError(f"the chat endpoint cannot listen on {host}:{port} ({error.strerror}); name another") from error
    engine.on_close(runner.cleanup)
    return f"{host}:{runner.addresses[0][1]}"


class _Endpoint:
    def __init__(self, engine: CpuEngine, tokenizer: Any, model_name: str):
        self._engine, self._tokenizer, self._model_name = engine, tokenizer, model_name
        self._created = int(time.time())

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok", **self._engine.stats()})

    async def models(self, request: web.Request) -> web.Response:
        card = {"id": self._model_name, "object": "model", "created": self._created, "owned_by": "datapm_rl"}
        return web.json_response({"object": "list", "data": [card | {"max_model_len": self._engine.max_len}]})

    async def chat(self, request: web.Request) -> web.Response:
        body = await _read_json(request)
        _refuse_unsupported(body)
        if body.get("model") not in (None, self._model_name):
            raise UserError(f"the model {body['model']!r} is not served here, {self._model_name!r} is")
        prompt = self._prompt(body.get("messages"))
        sampling = _sampling(body)
        choices = body.get("n") or 1
        if not isinstance(choices, int) or not 1 <= choices <= _MAX_CHOICES:
            raise UserError(f"n must be a whole number from 1 to {_MAX_CHOICES}, got {choices!r}")
        key = f"chatcmpl-{uuid.uuid4().hex}"
        outs = await asyncio.gather(
            *(
                self._engine.generate(
                    prompt,
                    sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + index),
                    f"{key}-{index}",
                )
                for index in range(choices)
            )
        )
        if any(out.stop_reason == "aborted" for out in outs):
            raise InfraError("engine_aborted", "the engine was stopped for a weight update, send the request again")
        return web.json_response(self._answer(key, body, prompt, list(outs)))

    def _prompt(self, messages: Any) -> list[int]:
        """The token ids of a conversation, opened for the assistant's turn."""
        if not isinstance(messages, list) or not messages:
            raise UserError("messages is missing: it must be a list of at least one {role, content}")
        if not getattr(self._tokenizer, "chat_template", None):
            raise UserError(f"the tokenizer of {self._model_name!r} has no chat template, so it cannot serve chats")
        plain = [_plain_message(index, message) for index, message in enumerate(messages)]
        try:
            return self._tokenizer.apply_chat_template(plain, add_generation_prompt=True, return_dict=False)
        except Exception as error:  # a template raises what it likes on roles it does not know
            raise UserError(f"the chat template of {self._model_name!r} refuses the messages: {error}") from error

    def _answer(self, key: str, body: dict[str, Any], prompt: list[int], outs: list[Generation]) -> dict[str, Any]:
        completion = sum(len(out.token_ids) for out in outs)
        return {
            "id": key,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._model_name,
            "choices": [self._choice(index, body, out) for index, out in enumerate(outs)],
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": completion,
                "total_tokens": len(prompt) + completion,
                "prompt_tokens_details": {"cached_tokens": sum(out.cached_tokens for out in outs)},
            },
        }

    def _choice(self, index: int, body: dict[str, Any], out: Generation) -> dict[str, Any]:
        include_stop = bool(body.get("include_stop_str_in_output", False))
        skip_special = bool(body.get("skip_special_tokens", True))
        text = self._tokenizer.decode(
            out.token_ids, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )
        if isinstance(out.matched, str) and not include_stop and out.matched in text:
            text = text[: text.rindex(out.matched)]
        return {
            "index": index,
            "message": {"role": "assistant", "content": text},
            "logprobs": {"content": self._logprobs(out)} if body.get("logprobs") else None,
            "finish_reason": out.stop_reason,
            "stop_reason": out.matched,
        }

    def _logprobs(self, out: Generation) -> list[dict[str, Any]]:
        rows = []
        for token_id, logprob in zip(out.token_ids, out.logprobs, strict=True):
            token = self._tokenizer.decode([token_id])
            rows.append({"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []})
        return rows


async def _read_json(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError as error:
        raise UserError(f"the request body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise UserError("the request body must be a JSON object")
    return body


def _refuse_unsupported(body: dict[str, Any]) -> None:
    if body.get("stream"):
        raise UserError("stream=true is not supported by the CPU engine: send the request without it")
    for key in _UNSUPPORTED:
        if body.get(key):
            raise UserError(f"{key} is not supported by the CPU engine: send the request without it")
    form = body.get("response_format")
    if form and form != {"type": "text"}:
        raise UserError("response_format other than text is not supported by the CPU engine: send it without")


def _sampling(body: dict[str, Any]) -> Sampling:
    params = {key: body[key] for key in (*_SAMPLING, *_PENALTIES) if key in body}
    if body.get("max_completion_tokens") is not None:
        params["max_tokens"] = body["max_completion_tokens"]
    return Sampling.from_dict(params)


def _plain_message(index: int, message: Any) -> dict[str, Any]:
    """A message with text content: a list of text parts becomes one text."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise UserError(f"messages[{index}] must be an object with a role and a content")
    content = message.get("content")
    if isinstance(content, list):
        if any(not isinstance(part, dict) or part.get("type") != "text" for part in content):
            raise UserError(f"messages[{index}] has a part that is not text: the CPU engine reads text only")
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(content, str):
        raise UserError(f"messages[{index}] has no text content")
    return {**message, "content": content}


@web.middleware
async def _errors_as_json(request: web.Request, handler: Any) -> web.StreamResponse:
    """OpenAI's error object for whatever goes wrong: 400 for the caller's fault, 503 for ours."""
    try:
        return await handler(request)
    except UserError as error:
        return _error(400, "invalid_request_error", str(error))
    except InfraError as error:
        return _error(503, "server_error", str(error), code=error.cause)
    except web.HTTPError as error:
        return _error(error.status, "invalid_request_error", f"{request.method} {request.path}: {error.reason}")


def _error(status: int, kind: str, message: str, code: str | None = None) -> web.Response:
    return web.json_response({"error": {"message": message, "type": kind, "param": None, "code": code}}, status=status)
