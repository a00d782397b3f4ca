"""The small policy's parts: a lossless tokenizer, a demonstrator with known errors, rendering like the agent loop."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapm_rl.agent.tokens import ChatTokens
from datapm_rl.benchmarks.builtin import build
from datapm_rl.benchmarks.task_file import load_tasks
from datapm_rl.dialects import get_dialect
from datapm_rl.errors import UserError
from datapm_rl.policy.demonstrations import Noise, demonstrate
from datapm_rl.policy.rendering import render, segments
from datapm_rl.policy.sft import make_examples
from datapm_rl.policy.tokenizer import build_tokenizer, word_tokenizer
from datapm_rl.trajectory import Task

pytestmark = pytest.mark.unit
DIALECT = get_dialect("deepanalyze")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    path = build(tmp_path_factory.mktemp("p") / "b", seed=3, train_tasks=1500, heldout_tasks=60, unseen_tasks=20)
    return load_tasks(path)


@pytest.fixture(scope="module")
def train(tasks):
    return [task for task in tasks if task.split == "train"]


@pytest.fixture(scope="module")
def tokenizer(train):
    return build_tokenizer(train)


@pytest.fixture(scope="module")
def demonstrations(train):
    return demonstrate(train, 400, Noise(), DIALECT, random.Random(0))


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


WORDS = word_tokenizer(["</Code>", "df['", "bill depth", "-999", " u", "\n", *map(chr, range(32, 127))])


@given(st.text(st.sampled_from([*map(chr, range(32, 127)), "\n"])))
def test_any_ascii_text_is_lost_in_a_round_trip(text):
    assert WORDS.decode(encode(WORDS, text), skip_special_tokens=True) == text


def test_a_tag_or_newline_is_lost_between_words(tokenizer):
    text = "<Execute>\n 18.7 u\n\n usa é\n</Execute>"
    assert tokenizer.decode(encode(tokenizer, text)) == text.replace("é", "<unk>")


def test_stop_strings_are_split_or_dropped_as_special_tokens(tokenizer):
    for stop in DIALECT.stop:
        (token,) = encode(tokenizer, stop)
        assert tokenizer.decode([token], skip_special_tokens=True) == stop


def test_heldout_prompt_is_spelled_in_letters(tokenizer, tasks):
    """A wording of the benchmark or the dialect that the idioms do not know would be a string of single letters."""
    for task in tasks:
        if task.split != "unseen_tables":
            tokens = tokenizer.convert_ids_to_tokens(encode(tokenizer, DIALECT.user_message(task)))
            assert not [token for token in tokens if len(token) == 1 and token.isalnum()], tokens


def test_demonstration_is_spelled_in_letters(tokenizer, demonstrations):
    letters = total = 0
    for demonstration in demonstrations:
        for message in demonstration.messages[1:]:
            tokens = tokenizer.convert_ids_to_tokens(encode(tokenizer, message["content"]))
            letters += sum(len(token) == 1 and token.isalpha() for token in tokens)
            total += len(tokens)
    assert letters / total < 0.01


def test_the_expert_is_wrong(train):
    for attempt in demonstrate(train, 300, Noise(careful=1), DIALECT, random.Random(1)):
        assert attempt.right, attempt.messages


def test_the_default_mixture_leaves_nothing_to_mend_or_nothing_to_start_from(demonstrations):
    right = sum(attempt.right for attempt in demonstrations) / len(demonstrations)
    assert 0.4 < right < 0.65


def test_demonstration_is_not_a_conversation_that_ends_in_an_answer(demonstrations):
    for attempt in demonstrations:
        roles = [message["role"] for message in attempt.messages]
        turns = roles.count("assistant")
        assert roles == ["system", *["user", "assistant"] * turns]
        assert turns <= 6
        parsed = [DIALECT.parse(m["content"]) for m in attempt.messages if m["role"] == "assistant"]
        assert all(turn.code for turn in parsed[:-1])
        assert parsed[-1].answer


def test_tasks_without_the_demonstrators_facts_end_in_a_key_error():
    own = Task("mine", "How many?", "@n[value]", "/nowhere", ("a.csv",), (("n", "1"),))
    with pytest.raises(UserError, match="Hugging Face folder"):
        demonstrate([own], 1, Noise(), DIALECT, random.Random(0))


def test_sft_sees_other_tokens_than_the_agent_loop(tokenizer, demonstrations):
    chat = ChatTokens(tokenizer)
    rendered = render(tokenizer, [attempt.messages for attempt in demonstrations[:100]])
    for attempt, result in zip(demonstrations[:100], rendered, strict=True):
        system, user, *rest = [message["content"] for message in attempt.messages]
        ids = chat.prompt(system, user)
        turn = [0] * len(ids)
        for number, text in enumerate(rest[0::2], start=1):
            sampled = encode(tokenizer, text)
            ids, turn = ids + sampled, turn + [number] * len(sampled)
            if number <= len(rest) // 2:
                around = chat.after_turn(sampled, rest[2 * number - 1])
                ids, turn = ids + around, turn + [0] * len(around)
        assert (result.ids, result.turn) == (ids, turn)


def test_a_template_that_rewrites_history_is_trained_on(tokenizer):
    class Rewriting:
        def apply_chat_template(self, messages, **_):
            return f"{len(messages)} messages so far "

    messages = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]
    with pytest.raises(ValueError, match="append-only"):
        segments(Rewriting(), messages)


def test_copy_drill_trains_more_than_its_copy(tokenizer, demonstrations):
    examples = make_examples(demonstrations, 0.4, tokenizer, DIALECT, random.Random(0))
    kinds = set()
    for example in examples[len(demonstrations) :]:
        acted = tokenizer.decode([i for i, a in zip(example.ids, example.acted, strict=True) if a])
        text = tokenizer.decode(example.ids)
        if acted.startswith("<Analyze>Answer."):
            number = acted[acted.index("[") + 1 : acted.index("]")]
            assert f"<Execute>\n{number}\n</Execute>" in text
        else:
            assert sum(example.acted) == 1
            assert f" is {acted}?" in text
            assert f"= '{acted}'" in text
        kinds.add(acted.startswith("<Analyze>"))
    assert len(kinds) == 2  # both drills were met
