"""The table of public bugs in docs/training.md: complete, and of tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

TESTS = Path(__file__).parent


def test_table_names_each_bug_once_and_tests_that_exist():
    text = (TESTS.parent / "docs" / "training.md").read_text()
    rows = re.findall(r"^\| (\d+(?:, \d+)*) \|(.*)\|$", text.split("## Public bugs")[1], flags=re.MULTILINE)
    numbers = [int(number) for listed, _ in rows for number in listed.split(", ")]
    assert sorted(numbers) == list(range(1, 56))
    there = {name for file in TESTS.glob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())}
    named = {name for _, row in rows for name in re.findall(r"`(test_\w+)`", row)}
    assert named - there == set()
