"""Code of a reply: taken out of its fence, and what the model made up after it is not kept."""

from __future__ import annotations

import pytest

from datapm_rl.dialects.fence import unfenced
from datapm_rl.verifier.reply import Reply, read_reply

pytestmark = pytest.mark.unit

THOUGHT = "<reasoning>The mean skips missing values.</reasoning>\n"
VERDICT = f"{THOUGHT}<score>1</score>\n<summary>It is right.</summary>"


def read(text: str) -> Reply:
    return read_reply(text, "stop")


def test_code_is_taken_up_to_the_stop_string():
    reply = read(f"{THOUGHT}<code>\n```python\nprint(1)\n```\n")
    assert reply == Reply(f"{THOUGHT}<code>\n```python\nprint(1)\n```\n</code>", code="print(1)")


def test_code_in_reasoning_that_was_never_closed_is_run():
    assert read("<reasoning>Look.\n<code>print(1)").code == "print(1)"
    assert read("<reasoning>Look.<code>print(1)</code><reasoning>x</reasoning><score>1</score>").code == "print(1)"


@pytest.mark.parametrize(
    "after",
    [
        "\n<interpreter>\n1\n</interpreter>\n" + VERDICT,
        VERDICT,
        "\n<code>print(2)</code>",
        "\n<score>1</score>",
        "</code></reasoning>",
    ],
)
def test_what_follows_code_is_made_up_and_not_kept(after):
    reply = read(f"{THOUGHT}<code>print(1)</code>{after}")
    assert reply == Reply(f"{THOUGHT}<code>print(1)</code>", code="print(1)")


def test_score_before_code_does_not_count():
    assert read(f"{VERDICT}<code>print(1)").code == "print(1)"


def test_made_up_output_inside_code_that_was_not_closed_is_dropped():
    reply = read(f"{THOUGHT}<code>\n```python\nprint(1)\n```\n<interpreter>\n2\n</interpreter>{VERDICT}")
    assert reply.code == "print(1)"
    assert "interpreter" not in reply.used_text
    assert reply.used_text.endswith("```</code>")


@pytest.mark.parametrize("content", ["", "\n", "\n```python\n```\n"])
def test_empty_code_is_a_problem(content):
    assert read(f"<code>{content}").problem == "its <code> is empty"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("print(1)", "print(1)"),
        ("\n  x = 1\n  y = 2\n", "  x = 1\n  y = 2"),
        ("\n```python\nprint(1)\n```\n", "print(1)"),
        ("```py\nprint(1)```", "print(1)"),
        ("```python print(1) ```", "print(1)"),
        ("\n```\nprint(1)\n", "print(1)"),
        ("Now:\n```python\nprint(1)\n```\nDone.", "print(1)"),
        ('```python\ns = """\n```\ninner\n```\n"""\nprint(s)\n```', 's = """\n```\ninner\n```\n"""\nprint(s)'),
        ("```python\nprint('```')\n```", "print('```')"),
    ],
)
def test_code_leaves_its_fence_and_keeps_fences_of_its_own(content, code):
    assert unfenced(content) == code


def test_complete_code_of_a_reply_cut_off_later_is_run():
    assert read_reply(f"{THOUGHT}<code>print(1)</code> and so", "length").code == "print(1)"
