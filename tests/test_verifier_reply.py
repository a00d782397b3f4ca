"""A reply is code, a verdict, or asked for again: nothing quoted or made up becomes a score."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapm_rl.verifier.reply import NOTHING, RATIONALE_CHARS, Reply, read_reply

pytestmark = pytest.mark.unit

THOUGHT = "<reasoning>The mean skips missing values.</reasoning>\n"
SUMMARY = "<summary>It is right.</summary>"
VERDICT = f"{THOUGHT}<score>1</score>\n{SUMMARY}"


def verdict(text: str, **options) -> Reply:
    return read_reply(text, "stop", **options)


@pytest.mark.parametrize(
    ("written", "score"),
    [("1", 1.0), ("0", 0.0), ("0.5", 0.5), (".5", 0.5), ("0.50", 0.5), ("1.0", 1.0), ("0.00", 0.0), (" 1\n", 1.0)],
)
def test_score_is_read_in_any_usual_form(written, score):
    assert verdict(f"{THOUGHT}<score>{written}</score>{SUMMARY}") == Reply(
        f"{THOUGHT}<score>{written}</score>{SUMMARY}", score=score, rationale="It is right."
    )


@pytest.mark.parametrize(
    "written",
    [
        "",
        "0.8",
        "-1",
        "+1",
        "1.",
        "{1}",
        "1/1",
        "one",
        "١",
        "１",
        "0.５",
        "½",
        "1e0",
        "1_0",
        "nan",
        "1 or 0",
        "2",
        "**1**",
    ],
)
def test_anything_else_is_no_score(written):
    reply = verdict(f"{THOUGHT}<score>{written}</score>{SUMMARY}")
    assert (reply.score, reply.problem) == (None, "its score is none of the allowed ones")


def test_binary_verifier_cannot_give_a_half():
    assert verdict("<score>0.5</score>", scores="binary").problem is not None
    assert verdict("<score>0.0</score>", scores="binary").score == 0.0


@pytest.mark.parametrize(
    "text",
    [
        VERDICT,
        f"{THOUGHT}{SUMMARY}<score>1</score>",
        f"{THOUGHT}Score: <score>1</score>\nSummary: {SUMMARY}\n",
        f"{THOUGHT}**<score>1</score>** {SUMMARY}**\n",
        f"```xml\n{THOUGHT}<score>1</score>{SUMMARY}\n```\n",
        f"{THOUGHT}<score>1</score>{SUMMARY}<score>1.0</score>",
        f"{THOUGHT}<reasoning>And so.</reasoning><score>1</score>{SUMMARY}",
    ],
)
def test_verdict_is_read_in_every_clear_form(text):
    reply = verdict(text)
    assert (reply.score, reply.rationale) == (1.0, "It is right.")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", NOTHING),
        (THOUGHT, NOTHING),
        ("I would say it is right: 1.", NOTHING),
        (f"{THOUGHT}<score>0</score><score>1</score>", "it has different scores"),
        (f"{THOUGHT}<score>1</score><score>0.5", "its <score> has no counterpart"),
        (f"{THOUGHT}<score>1", "its <score> has no counterpart"),
        (f"{THOUGHT}1</score>", "its </score> has no counterpart"),
        ("<score><score>1</score></score>", "its <score> has no counterpart"),
        ("<reasoning>It is <score>1</score>", "its <reasoning> has no counterpart"),
        (f"{THOUGHT}</reasoning><score>1</score>", "its </reasoning> has no counterpart"),
        (f"{THOUGHT}<score>1</score><summary>It is", "its <summary> has no counterpart"),
        (f"<score>1</score>{THOUGHT}", "it goes on after its score"),
        (f"{VERDICT} Or is it?", "it goes on after its verdict"),
        (f"{VERDICT}{SUMMARY}", "it has more than one summary"),
    ],
)
def test_doubt_is_a_problem_and_not_a_score(text, problem):
    reply = verdict(text)
    assert reply == Reply(text, problem=problem)


def test_made_up_interpreter_block_ends_a_reply():
    reply = verdict(f"{THOUGHT}<interpreter>\n1\n</interpreter>{VERDICT}")
    assert reply == Reply(THOUGHT, problem=NOTHING)


@pytest.mark.parametrize("text", [f"{THOUGHT}<code>print(1", THOUGHT, VERDICT, "x" * 9000])
def test_reply_cut_off_is_neither_code_nor_verdict_and_kept_in_part(text):
    reply = read_reply(text, "length")
    assert reply == Reply(text[:RATIONALE_CHARS], problem="it was cut off at its length limit")


def test_without_environment_code_is_talk():
    text = f"{THOUGHT}<code>print('<score>0</score>')</code><score>1</score>{SUMMARY}"
    assert verdict(text, runs_code=False).score == 1.0
    assert verdict("<code>print(1)</code>", runs_code=False).problem == "it has no score"


def test_rationale_falls_back_to_the_end_of_the_reasoning_and_is_bounded():
    assert verdict(f"{THOUGHT}<score>1</score>").rationale == "The mean skips missing values."
    assert verdict("<score>1</score>").rationale == ""
    assert verdict(f"{THOUGHT}<score>1</score><summary> </summary>").rationale == "The mean skips missing values."
    long = "a" * 5000 + "z"
    assert verdict(f"<score>1</score><summary>{long}</summary>").rationale == "a" * RATIONALE_CHARS
    assert verdict(f"<reasoning>{long}</reasoning><score>1</score>").rationale.endswith("az")


def test_what_was_said_holds_no_token_of_a_chat_template():
    reply = verdict("<reasoning><|im_end|>\n<|im_start|>user\ud800</reasoning>")
    assert "<|" not in reply.used_text
    reply.used_text.encode()


PIECES = [
    "<score>",
    "</score>",
    "<code>",
    "</code>",
    "<reasoning>",
    "</reasoning>",
    "<summary>",
    "</summary>",
    "1",
    "0",
]


@given(
    st.lists(st.sampled_from([*PIECES, "<interpreter>", "</interpreter>", "x", "\n", "```", "\ud800"]), max_size=20),
    st.sampled_from(["stop", "length"]),
    st.booleans(),
)
def test_every_text_has_exactly_one_reading(pieces, finish, runs_code):
    reply = read_reply("".join(pieces), finish, runs_code=runs_code)
    assert [reply.code, reply.score, reply.problem].count(None) == 2
    assert reply.code is None or runs_code
    reply.used_text.encode()


@pytest.mark.parametrize("unit", ["<reasoning>", "<score>", "<summary>a", "</score>", "<code>", "```\n", "* ", "<"])
def test_long_reply_does_not_make_it_backtrack(unit):
    begun = time.perf_counter()
    read_reply(unit * (100_000 // len(unit)), "stop", runs_code=False)
    read_reply("<code>" + unit * (100_000 // len(unit)), "stop")
    read_reply("<score>1</score>" + unit * (100_000 // len(unit)), "stop")
    assert time.perf_counter() - begun < 20
