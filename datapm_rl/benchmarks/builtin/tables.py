"""The real tables of the builtin benchmark.

A table is a clean pandas frame with lower-case snake names, category columns (lower-case text) and number columns.
All come from files inside installed packages, so nothing is downloaded: vega-datasets and scikit-learn (BSD),
palmerpenguins (CC0), and those sets of statsmodels that it marks as public domain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from datapm_rl.errors import UserError


@dataclass(frozen=True)
class Table:
    """A clean table: `frame` has exactly the columns `categories` + `numbers`."""

    name: str
    frame: pd.DataFrame
    categories: tuple[str, ...]
    numbers: tuple[str, ...]


def package_file(package: str, relative: str) -> Path:
    """The path of a data file that an installed package ships. UserError if it is not there."""
    spec = find_spec(package)  # finds a top-level package without importing it
    if spec is not None and spec.submodule_search_locations:
        path = Path(next(iter(spec.submodule_search_locations))) / relative
        if path.is_file():
            return path
    raise UserError(f"The builtin benchmark needs {relative} of the package {package}: pip install {package}.")


def _vega(file: str) -> Path:
    return package_file("vega_datasets", f"_data/{file}")


def _statsmodels(name: str) -> Path:
    return package_file("statsmodels", f"datasets/{name}/{name}.csv")


def _sklearn(file: str, columns: dict[int, str]) -> pd.DataFrame:
    """Columns of one of scikit-learn's CSVs, whose first line is not a header, by position."""
    raw = pd.read_csv(package_file("sklearn", f"datasets/data/{file}"), skiprows=1, header=None)
    return raw[list(columns)].rename(columns=columns)


def _penguins() -> pd.DataFrame:
    return pd.read_csv(package_file("palmerpenguins", "data/penguins.csv"))


def _weather() -> pd.DataFrame:
    return pd.read_csv(_vega("seattle-weather.csv")).head(365)


def _cars() -> pd.DataFrame:
    return pd.read_json(_vega("cars.json")).rename(columns=str.lower)


def _barley() -> pd.DataFrame:
    return pd.read_json(_vega("barley.json")).rename(columns={"yield": "yield_bu"})


def _grunfeld() -> pd.DataFrame:
    return pd.read_csv(_statsmodels("grunfeld"))


def _wine() -> pd.DataFrame:
    columns = {0: "alcohol", 1: "malic_acid", 4: "magnesium", 9: "color_intensity", 12: "proline", 13: "cultivar"}
    frame = _sklearn("wine_data.csv", columns)
    return frame.assign(cultivar=frame["cultivar"].map({0: "barolo", 1: "grignolino", 2: "barbera"}))


def _riots() -> pd.DataFrame:
    return pd.read_csv(_vega("la-riots.csv"))


def _electricity() -> pd.DataFrame:
    frame = pd.read_csv(_vega("iowa-electricity.csv"))
    return frame.assign(year=frame["year"].str[:4].astype(int))


def _iris() -> pd.DataFrame:
    columns = {"sepalLength": "sepal_length", "sepalWidth": "sepal_width"}
    columns |= {"petalLength": "petal_length", "petalWidth": "petal_width"}
    return pd.read_json(_vega("iris.json")).rename(columns=columns)


def _stocks() -> pd.DataFrame:
    return pd.read_csv(_vega("stocks.csv"))


def _tumor() -> pd.DataFrame:
    frame = _sklearn("breast_cancer.csv", {0: "mean_radius", 1: "mean_texture", 3: "mean_area", 30: "diagnosis"})
    return frame.assign(diagnosis=frame["diagnosis"].map({0: "malignant", 1: "benign"}))


def _travel() -> pd.DataFrame:
    frame = pd.read_csv(_statsmodels("modechoice"), sep=";").query("choice == 1")
    names = {"ttme": "terminal_time", "invc": "vehicle_cost", "invt": "travel_time", "hinc": "household_income"}
    return frame.assign(mode=frame["mode"].map({1: "air", 2: "train", 3: "bus", 4: "car"})).rename(columns=names)


def _macro() -> pd.DataFrame:
    frame = pd.read_csv(_statsmodels("macrodata"))
    return frame.assign(quarter="q" + frame["quarter"].astype(int).astype(str))


def _airports() -> pd.DataFrame:
    frame = pd.read_csv(_vega("airports.csv"))
    return frame[frame["state"].isin(["AK", "CA", "FL", "MI", "TX", "WI"])]


def _voters() -> pd.DataFrame:
    frame = pd.read_csv(_statsmodels("anes96"), sep="\t", quotechar="'")
    return frame.assign(vote=frame["vote"].map({0: "clinton", 1: "dole"}))


Loader = Callable[[], pd.DataFrame]
KNOWN: dict[str, tuple[Loader, tuple[str, ...], tuple[str, ...]]] = {  # name -> loader, categories, numbers
    "penguins": (
        _penguins,
        ("species", "island", "sex"),
        ("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"),
    ),
    "weather": (_weather, ("weather",), ("precipitation", "temp_max", "temp_min", "wind")),
    "cars": (
        _cars,
        ("origin",),
        ("miles_per_gallon", "horsepower", "weight_in_lbs", "acceleration", "displacement"),
    ),
    "barley": (_barley, ("variety", "site"), ("yield_bu", "year")),
    "grunfeld": (_grunfeld, ("firm",), ("invest", "value", "capital", "year")),
    "wine": (_wine, ("cultivar",), ("alcohol", "malic_acid", "magnesium", "color_intensity", "proline")),
    "riots": (_riots, ("gender", "race"), ("age", "latitude")),
    "electricity": (_electricity, ("source",), ("net_generation", "year")),
    "iris": (_iris, ("species",), ("sepal_length", "sepal_width", "petal_length", "petal_width")),
    "stocks": (_stocks, ("symbol",), ("price",)),
    "tumor": (_tumor, ("diagnosis",), ("mean_radius", "mean_texture", "mean_area")),
    "travel": (_travel, ("mode",), ("terminal_time", "vehicle_cost", "travel_time", "household_income")),
}
UNSEEN: dict[str, tuple[Loader, tuple[str, ...], tuple[str, ...]]] = {  # for the split `unseen_tables` alone
    "macro": (_macro, ("quarter",), ("realgdp", "cpi", "unemp", "infl")),
    "airports": (_airports, ("state",), ("latitude", "longitude")),
    "voters": (_voters, ("vote",), ("age", "educ", "income")),
}


def load_table(name: str) -> Table:
    """Read one table. Numbers are floats with at most two decimals, categories lower-case text or missing."""
    load, categories, numbers = (KNOWN | UNSEEN)[name]
    frame = load()[[*categories, *numbers]].reset_index(drop=True)
    for column in categories:
        frame[column] = frame[column].astype("str").str.strip().str.lower()
    for column in numbers:
        frame[column] = frame[column].astype(float).round(2)
    return Table(name, frame, categories, numbers)
