"""Whatever bytes an endpoint sends, they are the reply that they say or no reply; nothing else comes of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapm_rl.chat import ChatSampling
from datapm_rl.chat.failure import EndpointFailure
from datapm_rl.chat.reply import parse_reply

pytestmark = pytest.mark.unit

ATOMS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["stop", "length", "abort"])
)
ANY_JSON = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["choices", "message", "content", "token", "logprob", "usage"]), inner)
    ),
    max_leaves=8,
)
FIELDS = [
    ("choices",),
    ("choices", 0),
    ("choices", 0, "finish_reason"),
    ("choices", 0, "message"),
    ("choices", 0, "message", "content"),
    ("choices", 0, "logprobs"),
    ("choices", 0, "logprobs", "content"),
    ("choices", 0, "logprobs", "content", 0),
    ("choices", 0, "logprobs", "content", 0, "top_logprobs"),
    ("choices", 0, "logprobs", "content", 0, "top_logprobs", 0),
    ("choices", 0, "logprobs", "content", 0, "top_logprobs", 0, "token"),
    ("choices", 0, "logprobs", "content", 0, "top_logprobs", 0, "logprob"),
    ("usage",),
    ("usage", "prompt_tokens"),
]


def good() -> dict:
    token = {"token": "1", "top_logprobs": [{"token": "1", "logprob": -0.1}]}
    choice = {"message": {"content": "<score>1</score>"}, "finish_reason": "stop", "logprobs": {"content": [token]}}
    return {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}


def text_or_cause(body: bytes) -> str:
    try:
        reply = parse_reply(body, ChatSampling(top_logprobs=1), 0.1)
    except EndpointFailure as failure:
        return failure.cause
    assert reply.finish in ("stop", "length")
    return f"text: {reply.text}"


@given(st.sampled_from(FIELDS), ANY_JSON)
def test_a_field_of_another_kind_makes_no_other_reply(path, value):
    answer = good()
    *way, last = path
    place = answer
    for key in way:
        place = place[key]
    place[last] = value
    body = json.dumps(answer).encode()
    end = text_or_cause(body)
    if end not in ("endpoint_malformed", "endpoint_error"):
        content = json.loads(body)["choices"][0]["message"]["content"]
        assert end == "text: " + (content or "").encode("utf-8", "backslashreplace").decode()


@given(st.integers(0, 300))
def test_a_reply_that_is_cut_anywhere_is_none(length):
    whole = json.dumps(good()).encode()
    assert text_or_cause(whole[: min(length, len(whole) - 1)]) == "endpoint_malformed"


@given(st.binary() | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_any_other_bytes_are_malformed(body):
    assert text_or_cause(body) == "endpoint_malformed"


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"choices": ' + b"9" * 10_000 + b"}",
        json.dumps(good()).replace("-0.1", "1e999").encode(),
        json.dumps(good()).replace("-0.1", "1" + "0" * 400).encode(),
    ],
)
def test_bodies_that_upset_parsers_are_malformed(body):
    assert text_or_cause(body) == "endpoint_malformed"
