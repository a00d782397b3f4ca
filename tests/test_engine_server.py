"""The chat endpoint speaks OpenAI's language, with one clear sentence for each bad request."""

import asyncio

import aiohttp
import pytest
import torch

from datapm_rl.engine import CpuEngine
from datapm_rl.engine.openai_server import start_server
from datapm_rl.engine.tiny import byte_tokenizer, random_model
from datapm_rl.errors import UserError

pytestmark = pytest.mark.unit
torch.set_num_threads(1)

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def engine():
    engine = CpuEngine(random_model(), byte_tokenizer(), max_batch=8)
    yield engine
    await engine.close()


@pytest.fixture
async def client(engine):
    address = await start_server(engine, byte_tokenizer(), "127.0.0.1", 0, "tiny")
    async with aiohttp.ClientSession(f"http://{address}") as session:
        yield session


async def chat(client, **body):
    async with client.post("/v1/chat/completions", json={"messages": HELLO} | body) as response:
        return response.status, await response.json()


async def test_a_chat_is_answered_with_usage_and_finish_reason(client):
    status, answer = await chat(client, model="tiny", max_tokens=7, temperature=0, ignore_eos=True, logprobs=True)
    assert status == 200
    assert answer["object"] == "chat.completion"
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["role"] == "assistant"
    assert len(choice["logprobs"]["content"]) == 7
    assert all(row["logprob"] <= 0 for row in choice["logprobs"]["content"])
    prompt = byte_tokenizer().apply_chat_template(HELLO, add_generation_prompt=True, return_dict=False)
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (
        len(prompt),
        7,
        7 + len(prompt),
    )
    parts = [{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]
    _, same = await chat(client, messages=parts, max_tokens=7, temperature=0, ignore_eos=True)
    assert same["choices"][0]["message"] == choice["message"]


async def test_choices_differ_and_a_seed_repeats_them(client):
    ask = {"n": 3, "max_tokens": 12, "seed": 5, "ignore_eos": True}
    texts = [[choice["message"]["content"] for choice in (await chat(client, **ask))[1]["choices"]] for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3
    free = {
        (await chat(client, max_tokens=12, ignore_eos=True))[1]["choices"][0]["message"]["content"] for _ in range(3)
    }
    assert len(free) == 3


async def test_the_text_ends_before_the_stop_string_unless_it_is_asked_for(client):
    ask = {"seed": 1, "max_tokens": 200, "ignore_eos": True}
    whole = (await chat(client, **ask))[1]["choices"][0]["message"]["content"]
    stop = next(char for char in whole if char.isascii() and char.isalpha())
    _, cut = await chat(client, **ask, stop=stop)
    assert cut["choices"][0]["message"]["content"] == whole[: whole.index(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop"
    _, kept = await chat(client, **ask, stop=[stop], include_stop_str_in_output=True)
    assert kept["choices"][0]["message"]["content"] == whole[: whole.index(stop) + 1]


async def test_the_next_turn_of_a_conversation_reuses_the_prefix_of_the_last(client):
    _, first = await chat(client, max_tokens=5, temperature=0)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    more = [*HELLO * 9, {"role": "assistant", "content": "yes"}]
    _, second = await chat(client, messages=more, max_tokens=5, temperature=0)
    _, third = await chat(client, messages=[*more, *HELLO], max_tokens=5, temperature=0)
    assert third["usage"]["prompt_tokens_details"]["cached_tokens"] >= second["usage"]["prompt_tokens"] - 1


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"messages": None}, "messages is missing"),
        ({"messages": ["hi"]}, "messages[0] must be an object"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "not text"),
        ({"messages": [{"role": "user", "content": "x" * 2000}]}, "the engine takes prompt and response up to 1024"),
        ({"stream": True}, "stream=true is not supported"),
        ({"tools": [{}]}, "tools is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temperature": -1}, "temperature must be 0 or more"),
        ({"max_tokens": "many"}, "cannot be read"),
        ({"presence_penalty": 0.5}, "does not implement presence_penalty"),
        ({"n": 0.5}, "n must be a whole number"),
        ({"model": "gpt"}, "'gpt' is not served here"),
    ],
)
async def test_a_bad_request_gets_400_and_one_sentence(client, body, sentence):
    status, answer = await chat(client, **body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert sentence in answer["error"]["message"]
    assert "\n" not in answer["error"]["message"]


async def test_a_body_that_is_not_json_and_a_path_that_is_not_there(client):
    async with client.post("/v1/chat/completions", data="{") as response:
        assert response.status == 400
        assert "not JSON" in (await response.json())["error"]["message"]
    async with client.get("/v1/nothing") as response:
        assert response.status == 404
        assert "/v1/nothing" in (await response.json())["error"]["message"]


async def test_a_tokenizer_without_chat_template_says_so(engine):
    bare = byte_tokenizer()
    bare.chat_template = None
    address = await start_server(engine, bare, "127.0.0.1", 0, "tiny")
    async with aiohttp.ClientSession(f"http://{address}") as session:
        status, answer = await chat(session)
    assert status == 400
    assert "no chat template" in answer["error"]["message"]


async def test_a_client_that_goes_away_frees_its_rows(engine, client):
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(chat(client, n=4, max_tokens=900, ignore_eos=True), 0.15)
    async with asyncio.timeout(1.0):  # 900 tokens take longer
        while engine.stats()["running"] or not engine.stats()["steps"]:
            await asyncio.sleep(0.01)
    assert engine.stats()["generated_tokens"] < 4 * 900


async def test_an_abort_is_503_and_says_to_send_it_again(engine, client):
    task = asyncio.create_task(chat(client, max_tokens=900, ignore_eos=True))
    while not engine.stats()["running"]:
        await asyncio.sleep(0.005)
    await engine.abort_all()
    status, answer = await task
    assert status == 503
    assert "again" in answer["error"]["message"]


async def test_health_models_and_a_port_that_is_taken(engine, client):
    async with client.get("/health") as response:
        assert (await response.json())["status"] == "ok"
    async with client.get("/v1/models") as response:
        assert (await response.json())["data"][0]["id"] == "tiny"
    port = client._base_url.port
    with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}"):
        await start_server(engine, byte_tokenizer(), "127.0.0.1", port, "tiny")
