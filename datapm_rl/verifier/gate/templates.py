"""The statements that a built set is made of, beside the demonstrator's own (`policy.idioms`).

{column}, {number}, {category} are headers as the file has them. Whether a wrong statement really runs and really
changes the result, and whether a harmless one really changes nothing, is found out by running it (`attempt`).
"""

from __future__ import annotations

from datapm_rl.policy import idioms

INSPECT = "print(list(df.columns))\nprint(df.head(3))"
DESCRIBE = "print(df['{column}'].describe())\n"

CORRUPTIONS: dict[str, tuple[str, ...]] = {  # dirt -> statements that run and lose what the right statement needs
    "ok": ("df['{column}'] = df['{column}'].rank()\n", "df = df.drop_duplicates(subset=['{column}'])\n"),
    "sentinel": (
        "df['{column}'] = df['{column}'].replace(-999, 0)\n",
        "df['{column}'] = df['{column}'].abs()\n",
        "df['{column}'] = df['{column}'].mask(df['{column}'] < 0, df['{column}'].mean())\n",
    ),
    "nan": (
        "df['{column}'] = df['{column}'].fillna(0)\n",
        "df['{column}'] = df['{column}'].ffill().bfill()\n",
    ),
    "unit": (
        "df['{column}'] = df['{column}'].str.extract(r'(\\d+)')[0].astype(float)\n",
        "df['{column}'] = pd.to_numeric(df['{column}'].str.replace(r'\\D', '', regex=True))\n",
    ),
    "comma": (
        "df['{column}'] = df['{column}'].str.split(',').str[0].astype(float)\n",
        "df['{column}'] = pd.to_numeric(df['{column}'].str.replace(',', '.'), errors='coerce')\n",
    ),
    "case": (
        "df['{column}'] = df['{column}'].str[:3].str.lower()\n",
        "df = df[df['{column}'].str.islower()]\n",
    ),
}
HALF_CLEANS: dict[
    str, tuple[str, ...]
] = {  # dirt -> statements that run and leave some of the dirt: wrong once something is computed
    "sentinel": (idioms.WRONG_FIXES["sentinel"], "df['{column}'] = df['{column}'].replace(-99, np.nan)\n"),
    "case": (idioms.WRONG_FIXES["case"], "df['{column}'] = df['{column}'].str.strip()\n"),
}
HARMLESS: dict[
    str, tuple[str, ...]
] = {  # sort of column -> statements that would be wrong elsewhere and change nothing here
    "number": (
        "df['{column}'] = df['{column}'].fillna(0)\n",
        "df['{column}'] = pd.to_numeric(df['{column}'], errors='coerce')\n",
        "df['{column}'] = df['{column}'].replace(-999, np.nan)\n",
    ),
    "category": (
        "df['{column}'] = df['{column}'].str.lower()\n",
        "df['{column}'] = df['{column}'].fillna('unknown')\n",
    ),
}
HARMLESS_LOOKS = (  # right looks at the data whose output or code reminds of errors; the second: what they must show
    ("print(df[df['{column}'].isna()])", "Empty DataFrame"),
    ("print('error rows:', pd.to_numeric(df['{column}'], errors='coerce').isna().sum())", "error rows"),
    (
        "import warnings\nif df['{column}'].duplicated().any():\n"
        "    warnings.warn('values of {column} repeat')\n" + DESCRIBE,
        "Warning",
    ),
    ("try:\n    print(df['{column}'].describe())\nexcept KeyError as error:\n    print('no column', error)", "count"),
)
WARN = "import warnings\nwarnings.warn('rows without a value are left out')\n"

WRONG_TYPES: dict[
    str, tuple[str, ...]
] = {  # statements that raise, for a column of numbers held as text and as numbers
    "text": ("df['{column}'] = df['{column}'].astype(float)\n", "df['{column}'] = pd.to_numeric(df['{column}'])\n"),
    "number": (
        "df['{column}'] = df['{column}'].str.replace(',', '').astype(float)\n",
        "df['{column}'] = df['{column}'].str.strip()\n",
    ),
}
CAUGHT = "Failed:"
TRY = "try:\n{body}\nexcept Exception as error:\n    print('" + CAUGHT + "', type(error).__name__, error)"

WRONG_COMPUTATIONS: dict[str, tuple[str, ...]] = {  # family -> programs that run and print another value
    "stat": ("print(round(df['{number}'].{wrong_operation}(), 1))",),
    "filtered_stat": (
        "print(round(df[df['{category}'] == '{value}']['{number}'].{wrong_operation}(), 1))",
        "print(round(df['{number}'].{operation}(), 1))",
        "print(round(df[df['{category}'] != '{value}']['{number}'].{operation}(), 1))",
    ),
    "filtered_count": (idioms.WRONG_COMPUTATIONS["filtered_count"], "print(df['{category}'].count())"),
    "missing": (idioms.WRONG_COMPUTATIONS["missing"], "print((df['{number}'] == 0).sum())"),
    "best_group": (
        idioms.WRONG_COMPUTATIONS["best_group"],
        "print(df.groupby('{category}')['{number}'].sum().idxmax())",
        "print(df['{category}'].value_counts().idxmax())",
    ),
}

THOUGHTS = {
    "inspect": "First I look at the columns and some rows.",
    "look": "I check the values of the columns that the question needs.",
    "clean": "I prepare the column for the computation.",
    "compute": "Now I compute the result.",
    "clean_and_compute": "I prepare the columns and compute the result.",
    "list_again": "That name is not in the file; I list the columns.",
    "look_again": "That did not work; I look at the values.",
    "again": "That did not work; I try it another way.",
    "reload": "The column does not look right any more; I load the file again and prepare it anew.",
    "answer": "This is the result.",
}
"""What a step says that it does: the same words for right and wrong ones."""
