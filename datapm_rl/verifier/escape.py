"""Untrusted text in which none of the verifier's markup can appear.

Whatever others wrote (task, file names, agent, outputs, answers of tools, rationales that may quote them) goes through
`harmless` before it stands in a prompt. It breaks, by an HTML entity in place of one character:

* tags of the verifier and of the dialect that steps are rendered in, in any case, with spaces, invisible characters,
  look-alike brackets or letters, or an attribute;
* `[Paragraph_..`, `[/Paragraph_..`, `[Verification_..`, `[/Verification_..`, with the same disguises;
* lines that are one of the prompt's section headers or its note on the final step;
* tokens of chat templates (`dialects.escape`), which an endpoint would take for the end of a message.

Everything else stays as it is, byte for byte. Time is linear in the text: whatever repeats is possessive.
"""

from __future__ import annotations

import re

from datapm_rl.dialects.escape import escape_tags, printable

_TAGS = ("reasoning", "code", "interpreter", "score", "summary", "Analyze", "Execute", "Answer", "extra_0")
"""The verifier's tags, those of a rendered step, and a token of discriminative verifiers."""

_OPENING = r"<\u02c2\u1438\u2039\u227a\u2329\u276c\u276e\u2770\u27e8\u27ea\u29fc\u3008\u300a\ufe64\uff1c\xab"
_CLOSING = r">\u02c3\u1433\u203a\u227b\u232a\u276d\u276f\u2771\u27e9\u27eb\u29fd\u3009\u300b\ufe65\uff1e\xbb"
_SQUARE = r"\[\u27e6\u2772\u3010\u3014\uff3b"
_BREAKS = r"\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"
# Control characters, soft hyphen, combining marks, fillers, zero-width and direction marks, variation selectors, tags.
_INVISIBLE = (
    r"\0-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad\u0300-\u036f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e01ef"
)
_GAP = rf"[ \t\xa0\u1680\u2000-\u200a\u202f\u205f\u3000{_INVISIBLE}]"  # within a line
_INNER = rf"[\s/\\\u2044\u2215\uff0f{_INVISIBLE}]"  # within a tag or marker, around its name
_SIMILAR = {  # Cyrillic and Greek letters drawn like Latin ones
    "a": "аα", "c": "сϲ", "d": "ԁ", "e": "е", "g": "ɡ", "h": "һ", "i": "іι", "j": "ј", "m": "м", "o": "оο", "p": "рρ",
    "r": "г", "s": "ѕ", "t": "тτ", "u": "υ", "v": "ν", "w": "ԝ", "x": "хχ", "y": "уү",
}  # fmt: skip


def _spelt(words: str) -> str:
    """A pattern for words in any disguise; upper and lower case are the flags' business."""
    return f"{_GAP}++".join("".join(map(_letter, word)) for word in words.split())


def _letter(letter: str) -> str:
    full_width = chr(ord(letter) + 0xFEE0)
    return f"[{letter}{full_width}{_SIMILAR.get(letter.lower(), '')}][{_INVISIBLE}]*+"


def _any_of(*names: str) -> str:
    return f"(?:{'|'.join(map(_spelt, names))})"


_TAG = re.compile(  # also `<` before a bar that `dialects.escape` does not know, and a tag with an attribute
    rf"[{_OPENING}](?=\uff5c|{_INNER}*+{_any_of(*_TAGS)}(?:{_INNER}*+[{_CLOSING}]|\s[\w-]{{1,40}}=[\"']))",
    re.IGNORECASE,
)
_MARKER = re.compile(
    rf"[{_SQUARE}](?={_INNER}*+({_any_of('Paragraph', 'Verification')})[_\uff3f]{_INNER}*+(\d?))", re.IGNORECASE
)
_START, _END = f"(?<![^{_BREAKS}])", f"(?![^{_BREAKS}])"  # of a line
_TITLES = _any_of("Problem Files", "Problem", "Hsitory Trajectory", "History Trajectory", "Current Paragraph")
_HEADER = re.compile(rf"{_START}({_GAP}*+)[#\uff03](?=(?:[#\uff03]|{_GAP})*+{_TITLES}{_GAP}*+{_END})", re.IGNORECASE)
_NOTE = re.compile(
    rf"{_START}({_GAP}*+{_spelt('Note')}{_GAP}*+)[:\uff1a]"
    rf"(?={_GAP}*+{_spelt('This is the final step')}(?:[.\uff0e]|{_GAP})*+{_END})",
    re.IGNORECASE,
)


def harmless(text: str) -> str:
    """The text without markup, and without lone surrogates, so that it can be encoded. Idempotent.

    >>> harmless("a<b, List[int] <td> </ SCORE > [/Paragraph_2]")
    'a<b, List[int] <td> &lt;/ SCORE > &#91;/Paragraph_2]'
    """
    text = escape_tags(printable(text), ())
    text = _TAG.sub("&lt;", text)
    text = _MARKER.sub(_broken_marker, text)
    text = _HEADER.sub(r"\1&#35;", text)
    return _NOTE.sub(r"\1&#58;", text)


def _broken_marker(marker: re.Match[str]) -> str:
    name, digit = marker.groups()
    return marker[0] if name.islower() and not digit else "&#91;"  # `df[paragraph_lengths]` is code
