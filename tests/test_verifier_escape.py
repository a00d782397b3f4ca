"""Untrusted text: markup is broken in every disguise, everything else comes through byte for byte, in linear time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapm_rl.verifier.escape import harmless

pytestmark = pytest.mark.unit
settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")

NAMES = ("reasoning", "code", "interpreter", "score", "summary", "Analyze", "Execute", "Answer", "Code")
TAGS = [f"<{slash}{name}>" for name in NAMES for slash in ("", "/")]
MARKERS = ["[Paragraph_1]", "[/Paragraph_1]", "[Verification_12]", "[/Verification_12]", "[Paragraph_"]
HEADERS = ["# Problem", "# Problem Files", "# Hsitory Trajectory", "# Current Paragraph"]
NOTE = "Note: This is the final step."
BENIGN = [
    "if a<b and c > d: x = [1, 2][0]",
    "best <score and rest > 3",
    "if best<score:\n    code = summary[code]",
    "def f(x: List[int]) -> dict[str, list[float]]: ...",
    "df[paragraph_lengths], df['[Paragraph]'], paragraph_1, [verification_rate(x) for x in y]",
    '<table border="1" class="dataframe"><tr><td>1</td><th>score</th></tr></table>',
    "<class 'pandas.DataFrame'> <NA> <bound method DataFrame.summary of code>",
    "<scores> <codec> <summary_table> <my-score> <score_1> </codes>",
    "# Problems\n## The problem files are:\n# Problem 1\nx = 1  # Problem\n# Current Paragraph is 3",
    "Note: This is the final step. Then save.\nScore: 1.0\nSummary: fine",
    "&lt;score&gt;1&lt;/score&gt; «Paragraph» ‹3› 〈x〉 ＜ ＞ ［1］ 【注】",
    "日本語 русский текст é\u0301 👩‍👩‍👧 \x1b[31mred\x1b[0m \t\r\n",
]


@pytest.mark.parametrize("text", BENIGN)
def test_benign_text_comes_through_byte_for_byte(text):
    assert harmless(text) == text


@given(st.text(st.characters(exclude_characters="<[#", exclude_categories=("Cs",))))
def test_text_without_brackets_and_hashes_is_never_touched(text):
    assert harmless(text) == text


@given(st.lists(st.sampled_from([*"<>[]/#_ \n", "score", "Paragraph", "Problem", "1", "&lt;", "|", "\u200b"])))
def test_harmless_twice_is_harmless_once(pieces):
    once = harmless("".join(pieces))
    assert harmless(once) == once


def wide(text: str) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)


DISGUISES = {
    "plain": lambda mark: mark,
    "upper": str.upper,
    "zero-width in the name": lambda mark: mark[:4] + "\u200b" + mark[4:],
    "zero-width after the bracket": lambda mark: mark[0] + "\u2060\ufeff" + mark[1:],
    "soft hyphen, twice": lambda mark: mark[:3] + "\xad\xad" + mark[3:],
    "combining stroke": lambda mark: mark[:4] + "\u0336" + mark[4:],
    "full width": wide,
    "full-width letters": lambda mark: mark[0] + wide(mark[1:-1]) + mark[-1],
    "Cyrillic": lambda mark: mark.translate(str.maketrans("aceopsy", "асеорѕу")),
    "inner spaces": lambda mark: mark[0] + " " + mark[1:-1] + "\n\t " + mark[-1],
}
TAG_DISGUISES = DISGUISES | {
    "spaces around the slash": lambda mark: mark.replace("<", "< ").replace("/", " / "),
    "control characters": lambda mark: mark.replace("<", "<\x00\x01"),
    "self-closing": lambda mark: mark.replace(">", "/>"),
    **{
        f"brackets {pair}": lambda mark, pair=pair: mark.replace("<", pair[0]).replace(">", pair[1])
        for pair in ("‹›", "〈〉", "〈〉", "﹤﹥", "⟨⟩", "❮❯", "«»", "《》", "ᐸᐳ", "<＞")
    },
}


@pytest.mark.parametrize("name", TAG_DISGUISES)
def test_tag_is_broken_in_every_disguise(name):
    for tag in TAGS:
        hidden = TAG_DISGUISES[name](tag)
        shown = harmless(f"it printed {hidden}1 and more")
        assert shown == f"it printed {'&lt;' + hidden[1:]}1 and more", tag


def test_tag_with_an_attribute_is_broken():
    assert harmless('<score value="1">') == '&lt;score value="1">'


@pytest.mark.parametrize("name", DISGUISES)
def test_marker_is_broken_in_every_disguise(name):
    for marker in MARKERS[:-1]:
        hidden = DISGUISES[name](marker)
        assert harmless(f"x{hidden}y") == f"x&#91;{hidden[1:]}y", marker


def test_marker_without_its_end_is_broken():
    assert harmless("[Paragraph_") == "&#91;Paragraph_"
    assert harmless("[/verification_3") == "&#91;/verification_3"


@pytest.mark.parametrize("name", [name for name in DISGUISES if name != "inner spaces"])
@pytest.mark.parametrize("ending", ["\n", "\r", "\r\n", "\u2028", "\x85", "\x0b"])
def test_line_that_is_a_header_or_the_note_is_broken(name, ending):
    for header in HEADERS:
        hidden = DISGUISES[name](header)
        shown = harmless(f"a{ending}{hidden}{ending}b")
        assert shown == f"a{ending}&#35;{hidden[1:]}{ending}b"
        assert harmless(hidden) == "&#35;" + hidden[1:]
    hidden = DISGUISES[name](NOTE)
    colon = hidden.index("：" if "：" in hidden else ":")
    assert harmless(f"a{ending}{hidden}{ending}b") == f"a{ending}{hidden[:colon]}&#58;{hidden[colon + 1 :]}{ending}b"


@pytest.mark.parametrize(
    "line", ["  # Problem  ", "## Problem", "#Problem", "# problem\u3000files", "# History Trajectory"]
)
def test_header_written_a_little_differently_is_broken(line):
    assert harmless(f"a\n{line}\nb") == "a\n" + line.replace("#", "&#35;", 1) + "\nb"


@pytest.mark.parametrize("token", ["<|im_end|>", "<|im_start|>system", "<｜User｜>", "</s>", "<eos>", "<extra_0>"])
def test_token_of_a_chat_template_is_broken(token):
    assert harmless(token) == "&lt;" + token[1:]


def test_lone_surrogate_can_be_encoded():
    assert harmless("a\udcff.csv").encode() == b"a\\udcff.csv"


MILLION = 1_000_000
UNITS = [
    "<",
    "< ",
    "<s\u200b",
    "<score ",
    "<score",
    "[ /",
    "[Paragraph",
    "#",
    "# ",
    "#\n",
    "\n",
    " ",
    "Note ",
    "\u200b",
]


@pytest.mark.parametrize("unit", UNITS)
def test_a_million_characters_do_not_make_it_backtrack(unit):
    begun = time.perf_counter()
    harmless(unit * (MILLION // len(unit)))
    harmless(unit[0] + unit[-1] * MILLION)
    assert time.perf_counter() - begun < 20  # a tenth of a second; quadratic time would be hours
