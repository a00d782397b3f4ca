"""Dirty CSV variants of a clean table.

A variant is a sample of rows, one header style for the whole file and one kind of dirt per column. Its clean truth
stays known, so gold answers come from the truth and not from any way of cleaning. The dirt is of two sorts:

* *silent*: a sentinel -999, letter case and stray blanks. A program that ignores it runs and prints a wrong answer;
* *grounding*: header style and numbers as text. A program that guesses raises, and can look and mend.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pandas as pd

from datapm_rl.benchmarks.builtin.tables import Table

HEADER_STYLES = ("snake", "title", "upper")
SENTINEL = -999
ROWS = (40, 60, 80)  # rows of a variant, one is drawn
MISSING_SHARE = 0.12
NUMBER_DIRT = ("ok", "sentinel", "sentinel", "nan", "text", "text")  # drawn with equal weight
CATEGORY_DIRT = ("ok", "case", "case")
CASE_WEIGHTS = (0.55, 0.25, 0.20)  # as is, UPPER CASE, leading blank


def header(column: str, style: str) -> str:
    """A column's name in a header style.

    >>> [header("bill_depth", style) for style in HEADER_STYLES]
    ['bill_depth', 'Bill Depth', 'BILL_DEPTH']
    """
    words = column.split("_")
    if style == "title":
        return " ".join(word.title() for word in words)
    return "_".join(words).upper() if style == "upper" else "_".join(words)


def number_text(value: float) -> str:
    """A number as people write it: at most two decimals, no trailing zeros; "" if it is missing."""
    return "" if pd.isna(value) else f"{value:.2f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Variant:
    """One dirty file.

    `dirty`: cells as text, columns named as in the file. `clean`: the truth, columns named as in the table.
    `headers`: table's name -> file's name. `dirt`: table's name -> ok, sentinel, nan, unit, comma or case.
    """

    name: str
    table: Table
    headers: dict[str, str]
    dirt: dict[str, str]
    dirty: pd.DataFrame
    clean: pd.DataFrame


def make_variant(table: Table, number: int, seed: int) -> Variant:
    """The `number`-th variant of a table: the same for the same seed."""
    rng = random.Random(f"{seed}/{table.name}/{number}")
    noise = np.random.default_rng(rng.randrange(2**32))
    size = min(len(table.frame), rng.choice(ROWS))
    rows = np.sort(noise.choice(len(table.frame), size, replace=False))
    clean = table.frame.iloc[rows].reset_index(drop=True)
    style = rng.choice(HEADER_STYLES)
    headers = {column: header(column, style) for column in (*table.categories, *table.numbers)}
    dirt: dict[str, str] = {}
    dirty: dict[str, list[str]] = {}
    for column in table.categories:
        dirt[column] = rng.choice(CATEGORY_DIRT)
        dirty[headers[column]] = _category_cells(clean[column], dirt[column], noise)
    for column in table.numbers:
        kind = rng.choice(NUMBER_DIRT)
        if kind in ("sentinel", "nan"):
            clean[column] = _with_gaps(clean[column], noise)
        dirt[column], dirty[headers[column]] = _number_cells(clean[column], kind)
    return Variant(f"{table.name}_{number}", table, headers, dirt, pd.DataFrame(dirty), clean)


def _with_gaps(column: pd.Series, noise: np.random.Generator) -> pd.Series:
    gaps = noise.random(len(column)) < MISSING_SHARE
    gaps[noise.integers(len(column))] = True  # at least one
    return column.mask(gaps)


def _number_cells(column: pd.Series, kind: str) -> tuple[str, list[str]]:
    """(dirt as it came out, cells). Text is "18.7 u" for small numbers, "3,750" for a column with thousands."""
    if kind == "text" and column.abs().max() >= 1000:
        return "comma", ["" if pd.isna(v) else f"{v:,.2f}".rstrip("0").rstrip(".") for v in column]
    if kind == "text":
        return "unit", ["" if pd.isna(v) else f"{number_text(v)} u" for v in column]
    if kind == "sentinel":
        return kind, [number_text(SENTINEL if pd.isna(v) else v) for v in column]
    return kind, [number_text(v) for v in column]


def _category_cells(column: pd.Series, kind: str, noise: np.random.Generator) -> list[str]:
    words = ["" if pd.isna(value) else value for value in column]
    if kind == "ok":
        return words
    forms = noise.choice(len(CASE_WEIGHTS), len(words), p=CASE_WEIGHTS)
    return [(word, word.upper(), f" {word}" if word else "")[form] for word, form in zip(words, forms, strict=True)]
