"""An OpenAI-compatible endpoint that answers by script: replies, latencies and faults, over real connections.

    async with StubEndpoint(["first reply", status(503), Answer(fault="cut"), Answer("last", latency_s=0.1)]) as stub:
        ...  # talk to stub.url; the last entry of a list is repeated
        stub.requests, stub.max_concurrent, stub.disconnects

The script is one answer, a list of them, or a function (request body, index of the request) -> answer; a plain text is
an answer with that reply. As a process, printing its url:

    python tests/stub_endpoint.py --port 0 --reply TEXT | --script FILE.py:FUNCTION
        [--latency SECONDS] [--sigma S] [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import math
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from stub_answers import Answer, Script, lognormal


class StubEndpoint:
    """The server, in the running loop. `stop` and `start` again keep its port: an outage.

    `models` answers /v1/models: names, or an `Answer`.
    """

    def __init__(
        self,
        script: Script = "ok",
        latency: float | Callable[[], float] = 0.0,
        models: Sequence[str] | Answer = ("stub",),
        host: str = "127.0.0.1",
        port: int = 0,
    ):
        self.requests: list[dict[str, Any]] = []  # the bodies
        self.headers: list[dict[str, str]] = []  # the headers of each
        self.models_asked = 0
        self.concurrent = self.max_concurrent = 0  # requests under way
        self.disconnects = 0  # clients that went away before their answer was complete
        self._script, self._models = script, models
        self._latency = latency if callable(latency) else itertools.repeat(latency).__next__
        self._host, self._port = host, port
        self._runner: web.AppRunner | None = None
        self._stopping = asyncio.Event()

    @property
    def url(self) -> str:
        """The base url for clients."""
        return f"http://{self._host}:{self._port}/v1"

    async def start(self) -> None:
        """Listen."""
        app = web.Application(client_max_size=2**28)
        app.add_routes([web.get("/v1/models", self._list_models), web.post("/v1/chat/completions", self._chat)])
        self._stopping = asyncio.Event()
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port and every connection."""
        self._stopping.set()
        if self._runner:
            await self._runner.cleanup()

    async def __aenter__(self) -> StubEndpoint:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def _list_models(self, request: web.Request) -> web.StreamResponse:
        self.models_asked += 1
        if isinstance(self._models, Answer):
            return await self._send(request, self._models)
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in self._models]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        answer = self._next(body)
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        return await self._send(request, answer)

    def _next(self, body: dict[str, Any]) -> Answer:
        index = len(self.requests)
        if callable(self._script):
            answer = self._script(body, index)
        elif isinstance(self._script, str | Answer):
            answer = self._script
        else:
            answer = self._script[min(index, len(self._script) - 1)]
        return Answer(answer) if isinstance(answer, str) else answer

    async def _send(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        self.concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        try:
            await self._pause(self._latency() if answer.latency_s is None else answer.latency_s)
            return await self._write(request, answer)
        except (asyncio.CancelledError, ConnectionError):
            if answer.fault not in ("cut", "reset") and not self._stopping.is_set():
                self.disconnects += 1
            raise
        finally:
            self.concurrent -= 1

    async def _write(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        payload = answer.payload()
        if answer.fault is None:
            return web.Response(
                body=payload, status=answer.status, headers=answer.headers, content_type=answer.content_type
            )
        if answer.fault == "hang":
            await self._pause(math.inf)
        transport = request.transport
        assert transport is not None
        if answer.fault == "reset":
            reset_on_close = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset_on_close)
            transport.abort()
            return web.Response()
        response = web.StreamResponse(status=answer.status, headers=answer.headers)
        response.content_type, response.content_length = answer.content_type, len(payload)
        await response.prepare(request)
        if answer.fault == "hang_after_headers":
            await self._pause(math.inf)
        elif answer.fault == "cut":
            await response.write(payload[: len(payload) // 2])
            transport.close()
        elif answer.fault == "drip":
            for byte in payload:
                await response.write(bytes([byte]))
                await self._pause(0.02)
        else:
            raise ValueError(f"unknown fault {answer.fault!r}")
        return response

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not beyond the end of the server."""
        if seconds > 0:
            try:
                await asyncio.wait_for(self._stopping.wait(), None if math.isinf(seconds) else seconds)
            except TimeoutError:
                return


def _script_of(place: str) -> Script:
    path, _, name = place.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return getattr(module, name)


async def _serve(args: argparse.Namespace) -> None:
    script = _script_of(args.script) if args.script else args.reply
    latency = lognormal(args.latency, args.sigma, args.seed) if args.latency else 0.0
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with StubEndpoint(script, latency, port=args.port) as stub:
        print(stub.url, flush=True)
        await ended.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="an OpenAI-compatible endpoint that answers by script")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--reply", default="ok")
    parser.add_argument("--script", help="FILE.py:FUNCTION, with FUNCTION(body, index) -> Answer or text")
    parser.add_argument("--latency", type=float, default=0.0, help="mean seconds of an answer")
    parser.add_argument("--sigma", type=float, default=0.0, help="deviation of the latency's logarithm")
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(_serve(parser.parse_args()))
