"""Questions over a variant: five families with closed-form answers.

| family | question | key |
|---|---|---|
| stat | What is the mean of price? | mean_price |
| filtered_stat | What is the mean of price where symbol is ibm? | mean_price |
| filtered_count | How many rows where symbol is ibm? | count_symbol |
| missing | How many missing values of price? | missing_price |
| best_group | Which symbol has the highest mean price? | top_symbol |

A *combo* is a question without its file. Splits separate combos, so a held-out question was never asked of any file.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from datapm_rl.benchmarks.builtin.tables import Table
from datapm_rl.benchmarks.builtin.variants import Variant

OPERATIONS = ("mean", "median", "max", "min", "std")
FAMILIES = {"stat": 2, "filtered_stat": 2, "filtered_count": 1, "missing": 1, "best_group": 2}  # weight in a split


@dataclass(frozen=True)
class Combo:
    """A question of a table. `number` and `category` are columns, `value` a category's value, "" where unused."""

    table: str
    family: str
    number: str = ""
    category: str = ""
    value: str = ""
    operation: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the question needs."""
        return tuple(column for column in (self.category, self.number) if column)


def words(column: str) -> str:
    """A column's name as a question says it."""
    return column.replace("_", " ")


def combos(table: Table) -> list[Combo]:
    """Every question that can be asked of a table, in a fixed order."""
    name, found = table.name, []
    values = {c: sorted(table.frame[c].dropna().unique()) for c in table.categories}
    found += [Combo(name, "stat", n, operation=o) for n in table.numbers for o in OPERATIONS]
    found += [
        Combo(name, "filtered_stat", n, c, v, o)
        for n in table.numbers
        for c in table.categories
        for v in values[c]
        for o in OPERATIONS
    ]
    found += [Combo(name, "filtered_count", "", c, v) for c in table.categories for v in values[c]]
    found += [Combo(name, "missing", n) for n in table.numbers]
    found += [Combo(name, "best_group", n, c) for n in table.numbers for c in table.categories]
    return found


def question(combo: Combo) -> str:
    """The question's text."""
    number, category = words(combo.number), words(combo.category)
    where = f" where {category} is {combo.value}" if combo.value else ""
    return {
        "stat": f"What is the {combo.operation} of {number}?",
        "filtered_stat": f"What is the {combo.operation} of {number}{where}?",
        "filtered_count": f"How many rows{where}?",
        "missing": f"How many missing values of {number}?",
        "best_group": f"Which {category} has the highest mean {number}?",
    }[combo.family]


def answer_key(combo: Combo) -> str:
    """The name in `@name[value]`."""
    return {
        "stat": f"{combo.operation}_{combo.number}",
        "filtered_stat": f"{combo.operation}_{combo.number}",
        "filtered_count": f"count_{combo.category}",
        "missing": f"missing_{combo.number}",
        "best_group": f"top_{combo.category}",
    }[combo.family]


def answer_format(combo: Combo) -> str:
    """The format line, with the rule of rounding."""
    kind = {"best_group": "a name", "filtered_count": "an integer", "missing": "an integer"}
    return f"@{answer_key(combo)}[value], {kind.get(combo.family, 'a number with one decimal')}."


def gold(combo: Combo, clean: pd.DataFrame) -> str | None:
    """The right value from the clean truth; None where the question has no single answer on this file.

    No single answer: an empty or one-row group, a tie of groups, or a value so near to the middle between two
    decimals that the rule of rounding would decide.
    """
    if combo.family == "missing":
        return str(int(clean[combo.number].isna().sum()))
    if combo.family == "best_group":
        means = clean.groupby(combo.category)[combo.number].mean().dropna().sort_values(ascending=False)
        return None if len(means) < 2 or means.iloc[0] - means.iloc[1] < 1e-9 else str(means.index[0])
    rows = clean[clean[combo.category] == combo.value] if combo.value else clean
    if combo.family == "filtered_count":
        return str(len(rows)) if len(rows) else None
    value = getattr(rows[combo.number], combo.operation)()
    tenths = abs(value) * 10
    if pd.isna(value) or abs(tenths - int(tenths) - 0.5) < 1e-6:
        return None
    return f"{value:.1f}"


CLEANING = {  # dirt that needs cleaning -> pandas expression of the clean column; {column} is the raw one
    "sentinel": "{column}.replace(-999, np.nan)",
    "unit": 'pd.to_numeric({column}.str.replace(" u", ""))',
    "comma": 'pd.to_numeric({column}.str.replace(",", ""))',
    "case": "{column}.str.strip().str.lower()",
}


def reference_program(combo: Combo, variant: Variant) -> str:
    """A program that cleans the file and sets `answer` (str) and `clean` (file's header -> cleaned column).

    It runs where the pristine CSV is the working folder's `<table>.csv`. Only the `reference` verifier sees it.
    """

    def column(name: str) -> str:
        return f'["{variant.headers[name]}"]'

    lines = ["import numpy as np", "import pandas as pd", f'df = pd.read_csv("{combo.table}.csv")']
    for name in combo.columns:
        raw = f"df{column(name)}"
        if variant.dirt[name] in CLEANING:
            lines.append(f"{raw} = {CLEANING[variant.dirt[name]].format(column=raw)}")
    lines.append(f"rows = df[df{column(combo.category)} == {combo.value!r}]" if combo.value else "rows = df")
    number = f"rows{column(combo.number)}" if combo.number else ""
    if combo.family == "filtered_count":
        answer = "str(len(rows))"
    elif combo.family == "missing":
        answer = f"str({number}.isna().sum())"
    elif combo.family == "best_group":
        answer = f"str({number}.groupby(rows{column(combo.category)}).mean().idxmax())"
    else:
        answer = f'format({number}.{combo.operation}(), ".1f")'
    clean = ", ".join(f'"{variant.headers[name]}": df{column(name)}' for name in combo.columns)
    return "\n".join([*lines, f"answer = {answer}", f"clean = {{{clean}}}", ""])
