"""Looking at data is told from computing with it."""

from __future__ import annotations

import pytest

from datapm_rl.verifier.reference_looks import only_shows, printed_by, uses_missing_count

pytestmark = pytest.mark.unit

FRAMES = frozenset({"df"})


@pytest.mark.parametrize(
    "code",
    [
        "print(list(df.columns))",
        "df.head()",
        "print(df)",
        "print(df[['a', 'b']])",
        "print('columns', df.columns.tolist())",
        "print(f'types: {df.dtypes}')",
        "df.info()\nx = 1",
        "print(df['a'].min())",
        "print(df['a'].unique().tolist(), df['b'].nunique())",
        "print(df['a'].value_counts().head(3))",
        "print(df.isna().sum())",
        "print(df['a'].isna().any())",
        "df.shape",
        "for c in df.columns:\n    print(c, df[c].dtype)",
        "print(df.loc[3, 'a'])",
        "print(df.sort_values('a').head())",
    ],
)
def test_looking(code):
    assert printed_by(code, FRAMES, counts_missing=False).looking


@pytest.mark.parametrize(
    "code",
    [
        "print(round(df['a'].min(), 1))",
        "print(df['a'].mean())",
        "print((df['a'] == 'x').sum())",
        "print(df.groupby('a')['b'].mean().idxmax())",
        "print(df['a'].value_counts().idxmax())",
        "print(df['a'].notna().sum())",
        "print(df.loc[df['a'] > 3, 'b'].mean())",
        "m = df['a'].mean()\nprint('mean', m)",
        "print(df.columns)\nprint(df['a'].mean())",
        "len(rows)",
        "print(1 + 2)",
    ],
)
def test_computing(code):
    printed = printed_by(code, FRAMES, counts_missing=False)
    assert printed.anything
    assert not printed.looking


@pytest.mark.parametrize(
    "code", ["x = 1", "print('done')", "df['a'].fillna(0, inplace=True)", "print(", "def f():\n    return 1", ""]
)
def test_silent(code):
    assert not printed_by(code, FRAMES, counts_missing=False).anything


def test_count_of_missing_values_is_the_computation_when_that_is_the_question():
    code = "print(df['a'].isna().sum())"
    assert printed_by(code, FRAMES, counts_missing=False).looking
    assert not printed_by(code, FRAMES, counts_missing=True).looking
    assert printed_by("print(df.isna().sum())", FRAMES, counts_missing=True).looking


def test_only_the_references_answer_says_that_missing_values_are_the_question():
    assert uses_missing_count("answer = str(df['a'].isna().sum())")
    assert not uses_missing_count("df = df[~df['a'].isna()]\nanswer = str(len(df))")
    assert not uses_missing_count("not python")


def test_columns_of_looks_are_named():
    printed = printed_by("print(df['a'].unique())\nprint(df['b'].min())", FRAMES, counts_missing=False)
    assert printed.columns == {"a", "b"}
    assert not printed.whole
    assert printed_by("print(df.columns)", FRAMES, counts_missing=False).whole


@pytest.mark.parametrize(
    ("code", "shows"),
    [
        ("print(df['a'].min())", True),
        ("print(list(df.columns))\nprint(round(df.groupby('a')['b'].mean(), 1))", True),
        ("df = 1", False),
        ("print(df.insert(0, 'x', 1))", False),
        ("print(df.fillna(0, inplace=True))", False),
        ("print(x := 3)", False),
        ("print(change(df))", False),
        ("print(df['a'].map(lambda v: df.pop('b')))", False),
        ("for c in df: print(c)", False),
        ("print(", False),
    ],
)
def test_code_that_may_change_something_is_probed(code, shows):
    assert only_shows(code) is shows
