"""What does not fit is cut in the stated order and recorded; what must stay is there to the byte."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verifier_prompt_parts import STEPS, make_request, texts

from datapm_rl.errors import InfraError, UserError
from datapm_rl.trajectory import Step, Verdict
from datapm_rl.verifier.budget import MESSAGE_TOKENS, Budget, Kind, Part, estimate_tokens, tokenizer_count
from datapm_rl.verifier.prompt import render, wrap_interpreter

pytestmark = pytest.mark.unit
settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")


def step(index: int, chars: int) -> Step:
    code = f"x_{index} = 1\n" + "#" * chars
    return Step(index, f"<code>{code}</code>", f"thought {index} " + "t" * chars, code, observation=str(index) * chars)


def conversation(history: int = 3, chars: int = 5000, outputs: int = 0) -> list[dict]:
    past = [step(index, chars) for index in range(1, history + 1)]
    verdicts = [Verdict(0.5, f"rationale {index} " + "r" * 300) for index in range(1, history + 1)]
    messages = render(make_request(step(history + 1, chars), past, verdicts))
    for number in range(1, outputs + 1):
        said = {"role": "assistant", "content": f"<reasoning>{number}</reasoning><code>print({number})</code>"}
        messages += [said, {"role": "user", "content": wrap_interpreter(f"{number}" * chars, number)}]
    return messages


def size(messages: list[dict]) -> int:
    return sum(len(text) + MESSAGE_TOKENS for text in texts(messages))


def cut_at(messages: list[dict], tokens: int) -> list[str]:
    return Budget(tokens, len).fit(messages)[1]


def test_conversation_that_fits_is_not_touched():
    messages = conversation()
    fitted, cut = Budget(size(messages), len).fit(messages)
    assert ([message["content"] for message in fitted], cut) == (texts(messages), [])


def test_oldest_observation_is_shortened_first_and_only_as_many_as_needed():
    messages = conversation()
    assert cut_at(messages, size(messages) - 1) == ["observation 1: 5000 -> 600 characters"]
    assert cut_at(messages, size(messages) - 5000) == [f"observation {k}: 5000 -> 600 characters" for k in (1, 2)]


def test_shortened_observation_keeps_its_head_and_tail_and_says_what_is_missing():
    messages = render(make_request(history=[replace(STEPS[0], observation="a" * 2000 + "b" * 2000), STEPS[1]]))
    shown = Budget(size(messages) - 1, len).fit(messages)[0][1]["content"]
    middle = "... (3400 characters left out) ..."
    assert f"\n<Execute>\n{'a' * 300}\n{middle}\n{'b' * 300}\n</Execute>\n[/Paragraph_1]\n" in shown


def test_every_stage_comes_in_the_stated_order():
    messages, seen, tokens = conversation(2, 3000, outputs=2), [], 10**6
    stages = []
    while True:
        tokens = min(tokens, size(messages)) - 50
        try:
            cut = cut_at(messages, tokens)
        except InfraError:
            break
        stages += [entry for entry in cut if entry not in seen]
        seen += [entry for entry in cut if entry not in seen]
    short, gone = "3000 -> 600 characters", "3000 -> 0 characters"
    writing = [f"{what} {k}" for k in (1, 2) for what in ("thought", "code")]
    lengths = {name: 3010 if name.startswith("thought") else 3008 for name in writing}
    assert stages == [
        *(f"{name}: {short}" for name in ("observation 1", "observation 2", "output 1")),
        *(f"{name}: {gone}" for name in ("observation 1", "observation 2", "output 1")),
        *(f"{name}: {lengths[name]} -> 600 characters" for name in writing),
        *(f"{name}: {lengths[name]} -> 0 characters" for name in writing),
        f"output 2: {short}",
    ]


@given(st.integers(0, 4), st.integers(0, 3), st.integers(0, 3000), st.floats(0, 1))
def test_result_fits_and_what_must_stay_is_there(history, outputs, chars, share):
    messages = conversation(history, chars, outputs)
    limit = int(size(messages) * share)
    try:
        fitted, cut = Budget(limit, len).fit(messages)
    except InfraError:
        return
    assert sum(len(message["content"]) + MESSAGE_TOKENS for message in fitted) <= limit
    assert [message["role"] for message in fitted] == [message["role"] for message in messages]
    whole, shown = texts(messages)[1], fitted[1]["content"]
    assert shown.partition("[Paragraph_1]")[0] == whole.partition("[Paragraph_1]")[0]
    assert shown.partition("# Current Paragraph")[2] == whole.partition("# Current Paragraph")[2]
    for index in range(1, history + 1):
        block = f"\n[/Paragraph_{index}]\n[Verification_{index}]\nScore: 0.5\nSummary: rationale {index} {'r' * 300}\n"
        assert block in shown
    assert [m["content"] for m in fitted if m["role"] != "user"] == [
        m["content"] for m in messages if m["role"] != "user"
    ]
    assert (not cut) == (size(messages) <= limit)


def test_what_cannot_fit_is_an_infrastructure_error_that_says_by_how_much():
    messages = conversation()
    with pytest.raises(InfraError, match=r"\d+ tokens remain after all cuts, 3000 fit") as raised:
        Budget(3000, len).fit(messages)
    assert raised.value.cause == "context_exceeded"


def test_cut_of_a_short_part_that_would_make_it_longer_is_not_made():
    messages = [{"role": "user", "content": [Part("ab", Kind.OBSERVATION, "observation 1"), Part("x" * 50)]}]
    with pytest.raises(InfraError):
        Budget(50, len).fit(messages)


def test_cut_that_leaves_a_header_alone_on_its_line_breaks_it():
    text = "a" * 291 + "# Problem" + "b" * 1000 + "# Problem\n" + "c" * 290  # a cut falls right before and after
    messages = [{"role": "user", "content": [Part(text, Kind.OBSERVATION, "observation 1")]}]
    [message] = Budget(1000, len).fit(messages)[0]
    assert "# Problem" not in message["content"].splitlines()


def test_nothing_is_counted_more_often_than_it_changes():
    messages, counted = conversation(8), []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    parts = sum(1 if isinstance(m["content"], str) else len(m["content"]) for m in messages)
    cut = Budget(size(messages) // 2, count).fit(messages)[1]
    assert len(counted) <= parts + 2 * len(cut)


def test_messages_given_are_left_as_they_are():
    messages = conversation()
    before = texts(messages)
    Budget(size(messages) - 1, len).fit(messages)
    assert texts(messages) == before


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("", 0, 0),
        ("12345.678", 9, 9),  # Qwen: a token per digit
        ("import pandas as pd\ndf = pd.read_csv('a.csv')\nprint(df.head())\n", 21, 40),
        ("数据分析的结果如下", 6, 14),
        ("😀" * 10, 10, 20),
        ("-" * 80, 1, 10),
        ("the quick brown fox", 4, 8),
    ],
)
def test_estimate_is_above_what_tokenizers_give_and_not_far(text, least, most):
    assert least <= estimate_tokens(text) <= most


@given(st.text(st.characters(exclude_categories=("Cs",))), st.text(st.characters(exclude_categories=("Cs",))))
def test_estimate_of_a_text_is_never_below_half_of_its_parts(left, right):
    assert 2 * estimate_tokens(left + right) + 2 >= estimate_tokens(left) + estimate_tokens(right)


def test_tokenizer_of_a_folder_counts_its_tokens(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    count = tokenizer_count(str(tmp_path))
    assert [count("a b a"), count(""), count("a c")] == [3, 0, 2]


@pytest.mark.parametrize("content", [None, json.dumps({"model": 1})])
def test_folder_without_a_tokenizer_is_said_to_be_none(tmp_path, content):
    if content:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        tokenizer_count(str(tmp_path))
