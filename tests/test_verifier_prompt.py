"""The prompt is the one that DataPRM's weights know, whatever the policy speaks; the system prompt fits its variant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from verifier_prompt_parts import STEPS, TASK, VERDICTS, make_request, texts

from datapm_rl.dialects import DIALECTS, get_dialect
from datapm_rl.errors import UserError
from datapm_rl.trajectory import Step, StepStatus, Verdict
from datapm_rl.verifier.prompt import PromptForm, render, wanted, wrap_interpreter
from datapm_rl.verifier.prompt_text import system_prompt

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).parent / "golden" / "verifier_prompt.txt"
TOOL = 'def query_document(query: str, file_path: str) -> str:\n    """Ask {something} of a document."""'
FORMS = [
    PromptForm(env, multi, scores)
    for env in (True, False)
    for multi in (True, False)
    for scores in ("ternary", "binary")
]


def user(**changes) -> str:
    return texts(render(make_request(**changes)))[1]


def paragraph(step: Step) -> str:
    """The text between the marks of the step under judgement."""
    opening, closing = f"\n[Paragraph_{step.index}]\n", f"\n[/Paragraph_{step.index}]\n"
    return user(step=step, history=[], verdicts=[]).split(opening)[1].split(closing)[0]


def test_user_message_is_the_golden_one_to_the_byte():
    assert user(max_turns=3).encode() == GOLDEN.read_bytes()


def test_user_message_is_put_together_by_the_rules_of_the_release():
    problem = f"{TASK.question} Format: {TASK.answer_format}\nFiles:\nfares.csv\nnotes.md"
    said = [f"{step.text}\n<Execute>\n{step.observation}\n</Execute>" for step in STEPS[:2]] + [STEPS[2].text]
    predictions = [f"Score: 1.0\nSummary: {VERDICTS[0].rationale}", "Score: 0.5\nSummary: A wrong name, which shows."]
    history = ""
    for number, (text, prediction) in enumerate(zip(said, predictions, strict=False), start=1):
        history += f"[Paragraph_{number}]\n{text}\n[/Paragraph_{number}]\n"
        history += f"[Verification_{number}]\n{prediction}\n[/Verification_{number}]\n\n"
    current = f"[Paragraph_3]\n{said[2]}\n[/Paragraph_3]\n"
    sections = (
        ("Problem", problem),
        ("Problem Files", problem.split("Files:\n")[1]),
        ("Hsitory Trajectory", history),
        ("Current Paragraph", current),
    )
    assert user() == "\n" + "\n\n".join(f"# {title}\n{body}" for title, body in sections) + "\n"


@pytest.mark.parametrize("max_turns", [2, 3, 10, 15])
def test_final_step_is_told_by_the_limit_and_not_by_the_end_of_the_trajectory(max_turns):
    message = user(max_turns=max_turns)
    assert ("\n[/Paragraph_3]\nNote: This is the final step.\n\n" in message) == (max_turns == 3)
    system = texts(render(make_request(max_turns=max_turns)))[0]
    assert f"number of the paragraph is {max_turns} (the final step)" in system


def test_first_step_has_an_empty_history():
    assert "\n# Hsitory Trajectory\n\n\n# Current Paragraph\n[Paragraph_1]\n" in user(
        step=STEPS[0], history=[], verdicts=[]
    )


def test_missing_verdict_leaves_no_trace_of_a_score():
    message = user(verdicts=[Verdict(None, cause="deadline", rationale="too late"), VERDICTS[1]])
    assert "[/Paragraph_1]\n\n[Paragraph_2]" in message
    assert not any(word in message for word in ("Verification_1", "-1", "None", "nan", "too late", "No score"))
    assert "[Verification_2]\nScore: 0.5\n" in message


def test_verdict_without_a_rationale_says_so_as_the_release_does():
    assert "Score: 0.0\nSummary: No summary found.\n" in user(verdicts=[Verdict(0.0), VERDICTS[1]])


def test_rationale_is_one_line_so_that_no_line_of_it_is_another_score():
    message = user(verdicts=[Verdict(0.0, "It printed\nScore: 1.0\u2028Score: 1.0"), VERDICTS[1]])
    assert "Summary: It printed Score: 1.0 Score: 1.0\n" in message
    assert message.count("\nScore: ") == 2


def test_history_without_as_many_verdicts_is_a_bug_and_not_cut_short():
    with pytest.raises(ValueError, match="shorter"):
        render(make_request(verdicts=VERDICTS[:1]))


def test_problem_of_a_task_of_the_release_is_its_own_message():
    task = replace(TASK, meta={"problem": "Q?\nFiles:\n- a.csv: fares", "files": "- a.csv: fares"})
    assert user(task=task).startswith("\n# Problem\nQ?\nFiles:\n- a.csv: fares\n\n# Problem Files\n- a.csv: fares\n\n#")


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))
def test_step_of_any_policy_reads_like_one_of_deepanalyze(dialect):
    thought, code = "Look.", "print(1)"
    text = f"<{dialect.thought_tag}>{thought}</{dialect.thought_tag}>\n<{dialect.code_tag}>\n```python\n{code}\n```\n"
    text += f"</{dialect.code_tag}>"
    step = Step(1, text, thought, code, observation="1")
    assert paragraph(step) == (
        "<Analyze>Look.</Analyze>\n<Code>\n```python\nprint(1)\n```\n</Code>\n<Execute>\n1\n</Execute>"
    )
    text = f"<{dialect.thought_tag}>Done.</{dialect.thought_tag}>\n<{dialect.answer_tag}>@n[1]</{dialect.answer_tag}>"
    step = Step(1, text, "Done.", answer="@n[1]", status=StepStatus.ANSWER)
    assert paragraph(step) == "<Analyze>Done.</Analyze>\n<Answer>@n[1]</Answer>"


def test_step_without_a_thought_has_no_empty_one():
    assert paragraph(Step(1, "<code>print(1)</code>", "", "print(1)")) == "<Code>\n```python\nprint(1)\n```\n</Code>"


def test_turn_of_a_deepanalyze_policy_is_shown_as_it_was_sampled():
    text = " <Analyze>\n\nHm </Analyze>\n\n<Understand>The table.</Understand>\n<Code>print(1)  </Code>\nNow wait.\n"
    turn = get_dialect("deepanalyze").parse(text)
    step = Step(1, text, turn.thought, turn.code, observation="1")
    assert paragraph(step) == f"{text.strip()}\n<Execute>\n1\n</Execute>"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("I do not know.", "I do not know."),
        ("<Analyze>Hm.</Analyze>", "<Analyze>Hm.</Analyze>"),
        ("<Analyze>Hm.</Analyze><Code>print(1", "<Analyze>Hm.</Analyze>&lt;Code>print(1"),
        ("<think>Hm.</think><code>print(1", "&lt;think>Hm.&lt;/think>&lt;code>print(1"),
        ("<Code> </Code>", "&lt;Code> &lt;/Code>"),
    ],
)
def test_malformed_turn_is_shown_as_it_is(text, shown):
    assert paragraph(Step(1, text, status=StepStatus.MALFORMED, cause="neither code nor answer")) == shown


def test_malformed_turn_of_another_dialect_that_holds_deepanalyze_code_is_not_an_answer():
    shown = paragraph(Step(1, "<Code>print(1)</Code>", status=StepStatus.MALFORMED, cause="neither code nor answer"))
    assert shown == "&lt;Code>print(1)&lt;/Code>"


def test_separator_of_discriminative_verifiers_is_dropped():
    step = replace(STEPS[0], text=STEPS[0].text + "<extra_0>", observation="a<extra_0>b<ext<extra_0>ra_0>")
    assert paragraph(step) == f"{STEPS[0].text}\n<Execute>\nab&lt;extra_0>\n</Execute>"


def test_output_of_the_verifier_is_wrapped_and_cut_in_the_middle_as_in_the_release():
    assert texts([{"role": "user", "content": wrap_interpreter("42\n", 1)}]) == ["<interpreter>\n42\n\n</interpreter>"]
    longest = "a" * 8192
    assert texts([{"role": "user", "content": wrap_interpreter(longest, 1)}])[0].split("\n")[1] == longest
    [shown] = texts([{"role": "user", "content": wrap_interpreter("a" * 5000 + "b" * 5000, 1)}])
    assert shown.startswith(
        f"<interpreter>\nFirst 4096 characters:\n{'a' * 4096}\n......\nLast 4096 characters:\n{'b' * 4096}\n\n"
    )
    assert shown.endswith("\n</interpreter>")


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_system_prompt_fits_its_variant(form):
    text = system_prompt([TOOL], form, 10)
    assert (TOOL in text) == ("# Tools" in text) == ("<code>" in text) == ("<interpreter>" in text) == form.environment
    assert ("No code can be run" in text) != form.environment
    assert ("0.5" in text) == (form.scores == "ternary")
    assert all(tag in text for tag in ("<reasoning>", "<score>", "<summary>", "<Answer>"))
    titles = [line for line in text.splitlines() if line.startswith("# ")]
    tools = ["# Tools"] if form.environment else []
    assert titles == ["# Task", "# Verification Format", *tools, "# Important Notes"]
    assert "{" not in text.replace("{CODE}", "").replace("{something}", "")


def test_system_prompts_of_all_variants_differ():
    assert len({system_prompt([TOOL], form, 10) for form in FORMS}) == len(FORMS)


def test_without_tools_no_section_of_tools():
    assert "Tools" not in system_prompt([], PromptForm(), 10)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_asking_again_offers_what_the_variant_allows(form):
    text = wanted(form, rounds_left=True)
    assert ("<code>" in text) == form.environment
    assert ("0.5" in text) == (form.scores == "ternary")
    assert "<code>" not in wanted(form, rounds_left=False)


def test_unknown_scores_are_refused():
    with pytest.raises(UserError, match="quinary"):
        PromptForm(scores="quinary")
