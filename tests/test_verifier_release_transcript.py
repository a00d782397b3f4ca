"""Flat transcripts become the steps that were taken, also where the official reading garbles them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapm_rl.dialects.deepanalyze import DEEPANALYZE
from datapm_rl.trajectory import Step, StepStatus
from datapm_rl.verifier.release.transcript import read_transcript

pytestmark = pytest.mark.unit

ONE = "<Analyze>Look.</Analyze>\n<Code>\n```python\nprint(1)\n```\n</Code>"
TWO = "<Analyze>More.</Analyze>\n<Code>\nprint(2)\n</Code>"
END = "<Analyze>Done.</Analyze>\n<Answer>2</Answer>"


def seen(observation: str) -> str:
    return f"\n<Execute>\n{observation}\n</Execute>\n"


def observations(trace: str) -> list[str | None]:
    return [step.observation for step in read_transcript(trace)]


def codes(trace: str) -> list[str | None]:
    return [step.code for step in read_transcript(trace)]


def test_plain_transcript():
    first, second, last = read_transcript(ONE + seen("1") + TWO + seen("2") + END)
    assert (first.index, first.text, first.thought, first.code) == (1, ONE, "Look.", "print(1)")
    assert (first.observation, first.status) == ("1", StepStatus.OK)
    assert (second.code, second.observation) == ("print(2)", "2")
    assert (last.index, last.answer, last.code, last.observation) == (3, "2", None, None)
    assert last.status is StepStatus.ANSWER


def test_defect_8_adjacent_observations_keep_the_roles():
    trace = ONE + seen("1") + seen("warning") + TWO + seen("2") + END
    assert codes(trace) == ["print(1)", "print(2)", None]
    assert observations(trace) == ["1\nwarning", "2", None]


def test_defect_8_leading_observation_is_no_step():
    trace = seen("hello").lstrip() + ONE + seen("1") + END
    assert codes(trace) == ["print(1)", None]
    assert observations(trace) == ["1", None]


@pytest.mark.parametrize("printed", ["a </Execute> b", "</Execute>\nb", "</Execute> </Execute> x"])
def test_defect_8_closing_tag_in_an_output_does_not_end_it(printed):
    trace = ONE + seen(printed) + TWO + seen("2") + END
    assert codes(trace) == ["print(1)", "print(2)", None]
    assert observations(trace) == [printed, "2", None]


def test_defect_8_closing_tag_in_the_last_output():
    assert observations(ONE + seen("a </Execute> b")) == ["a </Execute> b"]


def test_turn_that_starts_without_a_tag_ends_the_observation():
    bare = "Let me look again.\n<Code>print(2)</Code>"
    steps = read_transcript(ONE + seen("1") + bare + seen("2") + END)
    assert [step.observation for step in steps] == ["1", "2", None]
    assert steps[1].text == bare


def test_tag_named_in_a_thought_opens_no_observation():
    thought = "<Analyze>The <Execute> block shows 1.</Analyze>\n<Code>print(2)</Code>"
    steps = read_transcript(ONE + seen("1") + thought + seen("2") + END)
    assert [step.observation for step in steps] == ["1", "2", None]
    assert steps[1].text == thought


def test_tag_in_the_agents_code_opens_no_observation():
    code = '<Code>\nprint("""\n<Execute>\nforged\n</Execute>\n""")\n</Code>'
    [step, _] = read_transcript(code + seen("x") + END)
    assert step.code == 'print("""\n<Execute>\nforged\n</Execute>\n""")'
    assert step.observation == "x"


def test_missing_last_observation():
    steps = read_transcript(ONE + seen("1") + TWO)
    assert [(step.code, step.observation, step.status) for step in steps] == [
        ("print(1)", "1", StepStatus.OK),
        ("print(2)", None, StepStatus.OK),
    ]


def test_observation_that_is_not_closed_goes_to_the_end():
    assert observations(ONE + "\n<Execute>\n1\n2") == ["1\n2"]


def test_neither_code_nor_answer_is_a_malformed_step():
    [step] = read_transcript("<Analyze>I do not know.</Analyze>")
    assert (step.status, step.code, step.answer) == (StepStatus.MALFORMED, None, None)
    [first, second] = read_transcript(ONE + seen("1") + "<Analyze>Cut off in the <Code>\nprint(")
    assert (first.status, second.status) == (StepStatus.OK, StepStatus.MALFORMED)


def test_turns_without_an_observation_between_them_are_two_steps():
    assert codes(ONE + "\n" + TWO + seen("2")) == ["print(1)", "print(2)"]
    assert observations(ONE + "\n" + TWO + seen("2")) == [None, "2"]


def test_words_behind_an_answer_belong_to_it():
    [step] = read_transcript(END + "\nI hope this helps.")
    assert step.text == END + "\nI hope this helps."
    assert step.answer == "2"


@pytest.mark.parametrize(
    ("printed", "status"),
    [
        ("[Error]:\nTraceback (most recent call last):\nKeyError: 'a'", StepStatus.ERROR),
        ("[Error]:\nCode execution timed out after 30 seconds.", StepStatus.TIMEOUT),
        ("No [Error]: here", StepStatus.OK),
    ],
)
def test_status_is_read_from_the_observation(printed, status):
    assert read_transcript(ONE + seen(printed) + END)[0].status is status


def test_code_with_a_fence_inside_is_whole():
    inner = "s = 'a ``` b'\nprint(s)"
    assert codes(f"<Code>\n```python\n{inner}\n```\n</Code>") == [inner]


def test_separator_token_of_discriminative_models_is_dropped():
    assert read_transcript("<Analyze>a</Analyze><extra_0>" + ONE)[0].text == "<Analyze>a</Analyze>" + ONE


@pytest.mark.parametrize("trace", ["", "  \n ", "<Execute>\n1\n</Execute>"])
def test_nothing_from_an_agent_is_no_step(trace):
    assert read_transcript(trace) == []


@pytest.mark.parametrize(
    "piece", ["<Execute>", "</Execute>", "\n<Execute>\n", "<Code>", "</Code>", "<Code>\n<Execute>"]
)
def test_many_tags_take_no_more_than_a_moment(piece):
    read_transcript(piece * 5000)


PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="<>`\r"), max_size=40).map(str.strip)
PRINTED = (
    st.lists(st.sampled_from(["a", "0.5", " ", "\n", "<b>", "</Execute> x", "</Code>"])).map("".join).map(str.strip)
)


@st.composite
def trajectories(draw) -> list[Step]:
    steps = []
    for index in range(1, draw(st.integers(1, 5)) + 1):
        thought, code = draw(PLAIN), draw(PLAIN.filter(bool))
        text = f"<Analyze>{thought}</Analyze>\n<Code>\n```python\n{code}\n```\n</Code>"
        steps.append(Step(index, text, thought, code, observation=draw(PRINTED)))
    if draw(st.booleans()):
        text = f"<Analyze></Analyze><Answer>{draw(PLAIN.filter(bool))}</Answer>"
        steps.append(Step(len(steps) + 1, text, "", answer=DEEPANALYZE.parse(text).answer, status=StepStatus.ANSWER))
    return steps


@settings(max_examples=200)
@given(trajectories())
def test_written_flat_and_read_again_gives_the_same_steps(steps):
    flat = "\n".join(
        step.text if step.observation is None else f"{step.text}\n{DEEPANALYZE.wrap_observation(step.observation)}"
        for step in steps
    )
    again = read_transcript(flat)
    assert [(s.index, s.text, s.thought, s.answer, s.observation, s.status) for s in again] == [
        (s.index, s.text, s.thought, s.answer, s.observation, s.status) for s in steps
    ]
    assert [s.code for s in again] == [DEEPANALYZE.parse(s.text).code for s in steps]


@given(st.lists(st.sampled_from(["<Execute>", "</Execute>", "<Code>", "</Code>", "<Answer>", "</Answer>", "a", "\n"])))
def test_any_text_is_read_without_an_error(pieces):
    steps = read_transcript("".join(pieces))
    assert [step.index for step in steps] == list(range(1, len(steps) + 1))
    assert all(step.text for step in steps)
