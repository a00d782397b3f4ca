"""What a call sends, and what it makes of the reply."""

from __future__ import annotations

import contextlib

import pytest
from chat_served import HELLO, QUICK, complete, served
from stub_answers import Answer, status
from stub_endpoint import StubEndpoint

from datapm_rl.chat.client import EndpointChat
from datapm_rl.errors import InfraError

pytestmark = pytest.mark.unit


async def failure(chat, **sampling) -> InfraError:
    with pytest.raises(InfraError) as caught:
        await complete(chat, **sampling)
    return caught.value


async def test_a_request_holds_the_sampling_and_nothing_that_was_not_asked_for():
    async with served("ok", api_key="sk-mine") as (stub, chat):
        await complete(chat)
        await complete(
            chat, stop=("</code>",), seed=3, top_k=0, top_logprobs=0, max_tokens=7, temperature=0.0, top_p=1.0
        )
    defaults = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "max_tokens": 8192}
    assert stub.requests[0] == {"model": "stub", "messages": HELLO} | defaults
    sampling = {"temperature": 0.0, "top_p": 1.0, "max_tokens": 7, "stop": ["</code>"], "seed": 3}
    assert stub.requests[1] == {"model": "stub", "messages": HELLO} | sampling
    assert stub.headers[0]["Authorization"] == "Bearer sk-mine"


async def test_the_key_of_the_environment_stays_at_home(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    async with served("ok") as (stub, chat):
        await complete(chat)
    assert "sk-of-somebody-else" not in str(stub.headers)


async def test_a_reply_ends_before_the_stop_string_even_if_the_endpoint_includes_it():
    async with served(["<code>1</code>", Answer("<code>1</code> and", finish="length")]) as (_, chat):
        assert (await complete(chat, stop=("</score>", "</code>"))).text == "<code>1"
        cut = await complete(chat, stop=("</code>",))
    assert (cut.text, cut.finish) == ("<code>1</code> and", "length")


async def test_the_reasoning_beside_the_content_is_left_out():
    thinking = {"reasoning_content": "<score>1</score>"}
    async with served([Answer("said", message=thinking), Answer(None, "length", message=thinking)]) as (_, chat):
        assert (await complete(chat)).text == "said"
        cut = await complete(chat)
    assert (cut.text, cut.finish) == ("", "length")


async def test_usage_that_is_missing_counts_as_zero():
    async with served(Answer("ok", usage=None)) as (_, chat):
        reply = await complete(chat)
    assert (reply.prompt_tokens, reply.completion_tokens) == (0, 0)
    assert reply.seconds > 0


async def test_lone_surrogates_in_a_reply_can_go_back_in_the_next_turn():
    async with served("\ud800 odd") as (_, chat):
        text = (await complete(chat)).text
        await complete(chat, [*HELLO, {"role": "assistant", "content": text}])
    assert text == "\\ud800 odd"


async def test_top_logprobs_come_per_token_and_their_absence_is_malformed():
    rows = [[("+", -0.1), ("-", -2.4)], [("a", -0.5), ("a", -1.5)]]
    content = [{"token": "x", "top_logprobs": [{"token": t, "logprob": p} for t, p in row]} for row in rows]
    endless = [{"token": "x", "top_logprobs": [{"token": "x", "logprob": "-inf"}]}]
    script = [
        Answer(choice={"logprobs": {"content": content}}),
        Answer(choice={"logprobs": {"content": endless}}),
        "ok",
    ]
    async with served(script) as (stub, chat):
        assert (await complete(chat, top_logprobs=2)).top == [{"+": -0.1, "-": -2.4}, {"a": -0.5}]
        assert (stub.requests[0]["logprobs"], stub.requests[0]["top_logprobs"]) == (True, 2)
        assert (await failure(chat, top_logprobs=2)).cause == "endpoint_malformed"
        assert (await complete(chat)).top == []


async def test_an_endpoint_that_rejects_top_k_is_asked_without_from_then_on():
    def script(body, index):
        return status(400, "Unrecognized request argument supplied: top_k") if "top_k" in body else "ok"

    async with served(script) as (stub, chat):
        for _ in range(3):
            assert (await complete(chat)).text == "ok"
    assert ["top_k" in body for body in stub.requests] == [True, False, False, False]


async def test_a_rejection_that_names_top_k_for_ever_is_a_rejection():
    async with served(status(422, "top_k and more")) as (stub, chat):
        assert (await failure(chat)).cause == "endpoint_rejected"
    assert len(stub.requests) == 2


@pytest.mark.parametrize(
    "answer",
    [
        status(400, "too long", code="context_length_exceeded"),
        status(400, "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens."),
        status(400, "'max_tokens' is too large: 8192. This model's maximum context length is 4096 tokens"),
        status(400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
        status(400, "The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
        status(400, "the request exceeds the available context size", type="exceed_context_size_error"),
        status(400, "Your input exceeds the context window of this model."),
        status(422, "`inputs` tokens + `max_new_tokens` must be <= 4096."),
        status(413, "prompt is too long: 210000 tokens > 200000 maximum"),
        Answer(status=400, body=b'{"detail": "input is too long for this model"}'),
    ],
)
async def test_a_prompt_that_is_too_long_has_its_own_cause_in_every_wording(answer):
    async with served(answer) as (stub, chat):
        assert (await failure(chat)).cause == "context_exceeded"
    assert len(stub.requests) == 1


async def test_no_message_holds_the_key_or_the_login():
    async with StubEndpoint(status(401, "Incorrect API key: sk-secret")) as stub:
        url = stub.url.replace("//", "//me:hidden@")
        async with contextlib.aclosing(EndpointChat([url], "stub", "sk-secret", retry=QUICK)) as chat:
            error = await failure(chat)
    assert error.cause == "endpoint_rejected"
    assert "Incorrect API key: ***" in error.detail
    assert "hidden" not in str(error)
