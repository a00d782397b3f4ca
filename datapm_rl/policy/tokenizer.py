"""A closed word-level vocabulary: every tag, idiom, column, value and file name is one token, digits are single.

Copying a column's name then takes one token, which a two-layer model learns in a minute; with BPE it does not.
Any other ASCII text is spelled in single characters, so encoding loses nothing; other characters become `<unk>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from datapm_rl.benchmarks.builtin.questions import OPERATIONS
from datapm_rl.benchmarks.builtin.variants import HEADER_STYLES, header
from datapm_rl.policy import idioms
from datapm_rl.trajectory import Task

PAD, EOS, UNK, USER, ASSISTANT = "<pad>", "<eos>", "<unk>", "<user>", "<assistant>"
SPECIAL = (PAD, EOS, UNK, USER, ASSISTANT)
# Ordinary tokens, so that `skip_special_tokens` keeps them; a tag and its newline are one token.
TAGS = (
    *("<Analyze>", "</Analyze>", "<Code>", "</Code>", "<Answer>", "</Answer>"),
    *("<Execute>", "</Execute>", "<Execute>\n", "\n</Execute>"),
)
UNIT = " u"  # the unit in "18.7 u": a token unless a word goes on (" usa")

# Append-only: what is rendered of a conversation is a prefix of what is rendered of its continuation.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'user' -%}<user>{{ message['content'] }}"
    "{%- elif message['role'] == 'assistant' -%}<assistant>{{ message['content'] }}<eos>"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<assistant>{%- endif -%}"
)


def table_words(paths: Iterable[Path]) -> list[str]:
    """Tokens of a set of CSV files: file names; columns in every header style and in words; categories' values."""
    words: dict[str, None] = {}
    for path in sorted(set(paths)):
        words[path.name] = None
        frame = pd.read_csv(path, dtype=str)
        for name in frame.columns:
            column = name.lower().replace(" ", "_")
            words |= dict.fromkeys([column.replace("_", " "), *(header(column, style) for style in HEADER_STYLES)])
            values = sorted(frame[name].dropna().str.strip().str.lower().unique())
            if values and all(value[0].isalpha() for value in values):
                words |= dict.fromkeys(form for value in values for form in (value, value.upper()))
    return list(words)


def build_tokenizer(tasks: Sequence[Task]) -> PreTrainedTokenizerFast:
    """The tokenizer for a set of tasks, its vocabulary from their files and from the idioms."""
    files = {Path(task.data_dir) / file for task in tasks for file in task.files}
    words = [*TAGS, *idioms.THOUGHTS, *idioms.QUESTION_PIECES, *idioms.template_pieces(), *idioms.OBSERVATION_PIECES]
    words += [*OPERATIONS, *(f"{operation}_" for operation in OPERATIONS), UNIT, *table_words(files)]
    words += ["\n", *(chr(code) for code in range(32, 127))]
    return word_tokenizer(words)


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer that takes the longest of `words` at every place."""
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys([*SPECIAL, *words]))}
    longest_first = sorted((word for word in vocabulary if word not in SPECIAL), key=lambda w: (-len(w), w))
    pattern = "|".join(_escape(word) + ("(?![A-Za-z])" if word == UNIT else "") for word in longest_first)
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        additional_special_tokens=[USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _escape(word: str) -> str:
    return re.escape(word).replace("\\\n", "\\n").replace("\\ ", " ")
