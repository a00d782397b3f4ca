"""What the demonstrator can say: thoughts, code templates and the texts around them.

A template has holes ({column}, {value}, ...). The demonstrator fills them; the tokenizer takes the pieces between
the holes as single tokens. So a turn is a handful of tokens, and copying a column's name is one look-up.
"""

from __future__ import annotations

import string

LIST_COLUMNS = "List the columns."
CHECK_VALUES = "Check the values."
COMPUTE = "Compute the result."
CLEAN_AND_COMPUTE = "Clean and compute."
WRONG_NAME = "Wrong column name."
ANSWER = "Answer."
THOUGHTS = (LIST_COLUMNS, CHECK_VALUES, COMPUTE, CLEAN_AND_COMPUTE, WRONG_NAME, ANSWER)

LOAD = "import pandas as pd, numpy as np\ndf = pd.read_csv('{file}')\n"
SHOW_COLUMNS = "print(list(df.columns))"
SHOW_SMALLEST = "print(df['{column}'].min())\n"
SHOW_WORDS = "print(df['{column}'].unique().tolist())\n"

FIXES = {  # dirt -> the statement that mends it
    "sentinel": "df['{column}'] = df['{column}'].replace(-999, np.nan)\n",
    "unit": "df['{column}'] = pd.to_numeric(df['{column}'].str.replace(' u', ''))\n",
    "comma": "df['{column}'] = pd.to_numeric(df['{column}'].str.replace(',', ''))\n",
    "case": "df['{column}'] = df['{column}'].str.strip().str.lower()\n",
}
_FILL_ZERO = "df['{column}'] = df['{column}'].fillna(0)\n"
_COERCE = "df['{column}'] = pd.to_numeric(df['{column}'], errors='coerce')\n"
WRONG_FIXES = {  # dirt -> a statement that runs and leaves wrong data behind
    "sentinel": _FILL_ZERO,
    "nan": _FILL_ZERO,
    "unit": _COERCE,
    "comma": _COERCE,
    "case": "df['{column}'] = df['{column}'].str.lower()\n",
}

COMPUTATIONS = {  # family -> program; {operation} as in the question
    "stat": "print(round(df['{number}'].{operation}(), 1))",
    "filtered_stat": "print(round(df[df['{category}'] == '{value}']['{number}'].{operation}(), 1))",
    "filtered_count": "print((df['{category}'] == '{value}').sum())",
    "missing": "print(df['{number}'].isna().sum())",
    "best_group": "print(df.groupby('{category}')['{number}'].mean().idxmax())",
}
WRONG_COMPUTATIONS = {  # a slip of the demonstrator; the other families slip in the operation
    "filtered_count": "print((df['{category}'] != '{value}').sum())",
    "missing": "print(df['{number}'].notna().sum())",
    "best_group": "print(df.groupby('{category}')['{number}'].max().idxmax())",
}
WRONG_OPERATION = {"mean": "median", "median": "mean", "max": "min", "min": "max", "std": "mean"}

ANSWER_TEXT = "@{key}[{answer}]"

QUESTION_PIECES = (
    "What is the ",
    " of ",
    " where ",
    " is ",
    "?",
    "How many rows",
    "How many missing values of ",
    "Which ",
    " has the highest mean ",
    " Format: @",
    "[value], a number with one decimal.",
    "[value], an integer.",
    "[value], a name.",
    "\nFiles:\n",
    "count_",
    "missing_",
    "top_",
)
OBSERVATION_PIECES = (
    "['",
    "', '",
    "']",
    "[nan, '",
    "', nan, '",
    "', nan]",
    "nan",
    "-999",
    "-999.0",
    "The code printed nothing.",
    "[Error]:\n",
    "KeyError: '",
    "TypeError: Cannot perform reduction '",
    "' with string dtype",
    "TypeError: dtype 'str' does not support operation '",
    "TypeError: type str doesn't define __round__ method",
    "AttributeError: Can only use .str accessor with string values, not floating",
    "AttributeError: Can only use .str accessor with string values, not integer",
    "ValueError: could not convert string to float: '",
    'ValueError: Unable to parse string "',
    '" at position ',
    "ValueError: Encountered all NA values",
    "NameError: name 'df' is not defined",
    "NameError: name 'np' is not defined",
    "NameError: name 'pd' is not defined",
)


def template_pieces() -> list[str]:
    """The texts between the holes of every template above, each once, in a fixed order."""
    templates = [LOAD, SHOW_COLUMNS, SHOW_SMALLEST, SHOW_WORDS, ANSWER_TEXT]
    for group in (FIXES, WRONG_FIXES, COMPUTATIONS, WRONG_COMPUTATIONS):
        templates += group.values()
    return list(dict.fromkeys(text for t in templates for text, _, _, _ in string.Formatter().parse(t) if text))
