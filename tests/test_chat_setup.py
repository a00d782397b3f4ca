"""What a chat finds out without being told: the model's name, the event loop it is in, settings that cannot work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from chat_served import complete, served
from stub_answers import Answer, status
from stub_endpoint import StubEndpoint

from datapm_rl.chat.client import EndpointChat
from datapm_rl.errors import InfraError, UserError

pytestmark = pytest.mark.unit


async def test_the_model_is_asked_for_once_by_all_together():
    async with served("ok", models=["first", "second"], model=None) as (stub, chat):
        await asyncio.gather(*(complete(chat) for _ in range(10)))
        await complete(chat)
    assert stub.models_asked == 1
    assert {body["model"] for body in stub.requests} == {"first"}


async def test_a_caller_that_leaves_during_the_lookup_takes_nobody_along():
    async with served("ok", models=Answer(body=b'{"data": [{"id": "m"}]}', latency_s=0.2), model=None) as (_, chat):
        first, second = (asyncio.create_task(complete(chat)) for _ in range(2))
        await asyncio.sleep(0.1)
        first.cancel()
        assert (await second).text == "ok"


@pytest.mark.parametrize(
    ("models", "cause"),
    [
        (status(503), "endpoint_error"),
        (status(404), "endpoint_rejected"),
        ((), "endpoint_malformed"),
        (Answer(fault="cut"), "endpoint_unreachable"),
        (Answer(fault="hang"), "endpoint_timeout"),
    ],
)
async def test_a_list_of_models_that_fails_has_the_same_causes(models, cause):
    async with served("ok", models=models, model=None) as (stub, chat):
        with pytest.raises(InfraError, match=cause):
            await complete(chat, deadline_s=0.5)
    assert stub.requests == []


def test_an_object_made_outside_a_loop_serves_one_loop_after_the_other():
    stub = StubEndpoint()

    async def once(chat):
        async with stub:
            if chat is None:
                return EndpointChat([stub.url], "stub", max_in_flight=1)
            replies = await asyncio.gather(*(complete(chat) for _ in range(3)))
            await chat.aclose()
            return [reply.text for reply in replies]

    chat = asyncio.run(once(None))
    assert asyncio.run(once(chat)) == asyncio.run(once(chat)) == ["ok"] * 3


@pytest.mark.parametrize("url", ["localhost:8000/v1", "ftp://host/v1", "http:///v1", "http://host:port/v1", ""])
def test_an_address_that_is_none_is_refused_at_once(url):
    with pytest.raises(UserError, match="not of the form"):
        EndpointChat([url])


def test_other_settings_that_cannot_work_are_refused_at_once():
    with pytest.raises(UserError, match="no address"):
        EndpointChat([])
    with pytest.raises(UserError, match="API key"):
        EndpointChat(["http://host/v1"], api_key="sk-1\n")
    with pytest.raises(UserError, match="max_in_flight"):
        EndpointChat(["http://host/v1"], max_in_flight=0)


async def test_the_stub_runs_as_a_process(tmp_path):
    (tmp_path / "script.py").write_text(
        "def script(body, index):\n    return f'{index}: ' + body['messages'][0]['content']\n"
    )
    program = [sys.executable, str(Path(__file__).with_name("stub_endpoint.py")), "--script"]
    with subprocess.Popen([*program, f"{tmp_path}/script.py:script"], stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip()
            async with contextlib.aclosing(EndpointChat([url])) as chat:
                assert [(await complete(chat)).text for _ in range(2)] == ["0: hello", "1: hello"]
            async with aiohttp.ClientSession() as session, session.get(f"{url}/models") as response:
                assert response.status == 200
        finally:
            os.kill(process.pid, signal.SIGTERM)
    assert process.returncode == 0
