"""Which text between Markdown fences is the code."""

from __future__ import annotations

import pytest

from datapm_rl.dialects.fence import unfenced

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("x = 1", "x = 1"),
        ("\n    x = 1\n", "    x = 1"),
        ("```python\nx = 1\n```", "x = 1"),
        ("```\nx = 1\n```", "x = 1"),
        ("Look:\n```py\nx = 1\n```\nThat is all.", "x = 1"),
        ("```python\nx = 1", "x = 1"),
        ("```python\nx = 1```", "x = 1"),
        ("```python\nx = '''\n```\ny\n```\n'''\n```", "x = '''\n```\ny\n```\n'''"),
        ("```python\nx = 1\n```\n```python\ny = 2\n```", "x = 1"),  # a second block does not run
        ("```python\nx = = 1\n```\nno code\n```", "x = = 1"),  # nothing is Python
        ("```python\n```", ""),
    ],
)
def test_fence_is_taken_off_and_code_that_holds_fences_stays_whole(content, code):
    assert unfenced(content) == code


def test_many_fences_take_no_time():
    assert unfenced("```python\n" + "x = (\n```\n" * 5000).startswith("x = (")
