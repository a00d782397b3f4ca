"""Who answers the tools: models behind endpoints named by the environment, with a cache, and a record of each call."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cachetools

from datapm_rl.chat.client import EndpointChat
from datapm_rl.chat.types import Chat
from datapm_rl.dialects.escape import printable
from datapm_rl.errors import UserError, cause_of
from datapm_rl.verifier.tools.document import ask_document, text_of
from datapm_rl.verifier.tools.image import ask_image, media_type
from datapm_rl.verifier.tools.known import TOOLS
from datapm_rl.verifier.tools.question import Question, ToolError

_QUERY_MAX = 20_000  # characters
_RECORDED = 2000  # characters of a query or file name in a record
_ANSWERS = 1024  # kept

Make = Callable[[Sequence[str], str, str | None], Chat]
"""From addresses, the model's name and the API key to who is asked."""


@dataclass(frozen=True)
class ToolModel:
    """Who answers a tool: `name` is the model's."""

    chat: Chat
    name: str


class ToolBox:
    """The tools of a verifier. For one event loop; equal questions are asked once."""

    def __init__(self, models: Mapping[str, ToolModel | None], context_chars: int = 60_000, deadline_s: float = 240.0):
        """`models`: by the tool's name; None: no endpoint is configured, which the tool says when it is used.

        `context_chars`: characters of a document that the model takes at once. `deadline_s`: of one question.
        UserError: a tool is not known.
        """
        for name in models:
            if name not in TOOLS:
                raise UserError(f"prm.tools names {name!r}, which is no tool; give {', '.join(TOOLS)}")
        self._models = dict(models)
        self._context_chars, self._deadline_s = context_chars, deadline_s
        self._answers: cachetools.LRUCache[tuple[str, ...], str] = cachetools.LRUCache(_ANSWERS)
        self._asked: dict[tuple[str, ...], tuple[Question, asyncio.Task[str]]] = {}

    @classmethod
    def from_environment(
        cls, names: Sequence[str], environment: Mapping[str, str] | None = None, make: Make = EndpointChat
    ) -> ToolBox:
        """Endpoints by DOC_OPENAI_BASE_URL, DOC_OPENAI_API_KEY and DOC_MODEL_NAME; IMG_... for images.

        Several addresses are parted by commas. UserError: a tool is not known, an address is none.
        """
        environment = os.environ if environment is None else environment
        models: dict[str, ToolModel | None] = dict.fromkeys(names)
        for name in models.keys() & TOOLS.keys():
            tool = TOOLS[name]
            urls = [url.strip() for url in environment.get(f"{tool.prefix}_OPENAI_BASE_URL", "").split(",")]
            if any(urls):
                model = environment.get(f"{tool.prefix}_MODEL_NAME") or tool.model
                key = environment.get(f"{tool.prefix}_OPENAI_API_KEY") or None
                models[name] = ToolModel(make([url for url in urls if url], model, key), model)
        return cls(models)

    @property
    def names(self) -> tuple[str, ...]:
        """The tools offered."""
        return tuple(self._models)

    @property
    def signatures(self) -> tuple[str, ...]:
        """Python signature and docstring of each, for the verifier's prompt."""
        return tuple(TOOLS[name].signature for name in self._models)

    async def answer(
        self, name: str, arguments: Mapping[str, Any], calls: list[dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        """{"text": the answer, or "[Error]: ..."} to a call from the sandbox; never raises.

        `calls` gets a record: tool, query, file, cached (or asked by another at the same time), seconds, tokens, error.
        """
        started = time.monotonic()
        record: dict[str, Any] = {
            "tool": name[:_RECORDED],
            "query": str(arguments.get("query"))[:_RECORDED],
            "file": str(arguments.get("name"))[:_RECORDED],
            "cached": False,
            "seconds": 0.0,
            "tokens": 0,
            "error": None,
        }
        if calls is not None:
            calls.append(record)
        try:
            text = await self._answer(name, arguments, record)
        except ToolError as error:
            record["error"], text = str(error), f"[Error]: {error}"
        except Exception as error:  # the boundary: the sandbox learns the cause, not the address that details name
            record["error"] = f"{cause_of(error)}: {error}"[:_RECORDED]
            text = f"[Error]: the model behind {name} did not answer ({cause_of(error)})"
        finally:
            record["seconds"] = time.monotonic() - started
        return {"text": text}

    async def _answer(self, name: str, arguments: Mapping[str, Any], record: dict[str, Any]) -> str:
        if name not in self._models:
            raise ToolError(f"there is no tool {name[:100]} here; there is {', '.join(self._models) or 'none'}")
        model = self._models[name]
        if model is None:
            variable = f"{TOOLS[name].prefix}_OPENAI_BASE_URL"
            raise ToolError(f"{name} has no endpoint ({variable} is not set); go on without it")
        query, file, content = _checked(arguments)
        text = text_of(file, content) if name == "query_document" else media_type(file, content)
        key = (hashlib.sha256(content).hexdigest(), query, name, model.name)
        if key in self._answers:
            record["cached"] = True
            return self._answers[key]
        record["cached"] = key in self._asked
        if key not in self._asked:
            question = Question(model.chat, TOOLS[name].sampling, self._deadline_s)
            if name == "query_document":
                asking = ask_document(question, query, file, text, self._context_chars)
            else:
                asking = ask_image(question, query, file, content)
            task = asyncio.create_task(asking)
            self._asked[key] = question, task
            task.add_done_callback(functools.partial(self._keep, key))
        question, task = self._asked[key]
        try:
            return await asyncio.shield(task)  # one who is cancelled does not end it for the others
        finally:
            record["tokens"] = 0 if record["cached"] else question.tokens

    def _keep(self, key: tuple[str, ...], task: asyncio.Task[str]) -> None:
        del self._asked[key]
        if not task.cancelled() and task.exception() is None:
            self._answers[key] = task.result()


def _checked(arguments: Mapping[str, Any]) -> tuple[str, str, bytes]:
    """(query, file, content) of a call. ToolError: code in the sandbox made it up."""
    query, file, content = (arguments.get(name) for name in ("query", "name", "content"))
    if not (isinstance(query, str) and isinstance(file, str) and isinstance(content, str)):
        raise ToolError("a call has a query, a file's name and its content, as texts")
    if len(query) > _QUERY_MAX:
        raise ToolError(f"the query has {len(query)} characters; ask in at most {_QUERY_MAX}")
    try:
        return printable(query), printable(file[:_RECORDED]), base64.b64decode(content, validate=True)
    except ValueError as error:
        raise ToolError(f"the content is not base64 ({error})") from None
