"""pandas' objects cross into a clean process as they were, whatever their columns are made of."""

import zoneinfo

import numpy as np
import pandas as pd
import pytest

from datapm_rl.sandbox.inside import transplant

pytestmark = pytest.mark.unit

_PARIS = zoneinfo.ZoneInfo("Europe/Paris")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(tmp_path_factory.mktemp("room") / "variables")


def crossed(value, path):
    assert transplant.export({"v": value}, path) == []
    namespace: dict = {}
    assert transplant.load(namespace, path) == []
    return namespace["v"]


_DAYS = pd.date_range("2024-03-30", periods=3, freq="D", tz="Europe/Paris")  # over a change of the clock
_COLUMNS = {
    "str": ["a", None, "c"],
    "numpy str": pd.array(["a", None, "c"], dtype=pd.StringDtype("python", na_value=np.nan)),
    "string": pd.array(["a", None, "c"], dtype="string"),
    "arrow": pd.array([1.5, None, 2.5], dtype="float64[pyarrow]"),
    "arrow str": pd.array(["a", None, "c"], dtype="string[pyarrow]"),
    "object": pd.Series(["a", 1, [2]], dtype=object),
    "object of strings": pd.Series(["a", "b", "c"], dtype=object),
    "zone": _DAYS,
    "naive": pd.to_datetime(["2024-01-01", None, "2024-01-03"]).as_unit("ns"),
    "utc": pd.date_range("2024", periods=3, tz="UTC"),
    "delta": pd.to_timedelta([1, None, 3], unit="h"),
    "period": pd.PeriodIndex(["2024-01", None, "2024-03"], freq="M"),
    "interval": pd.IntervalIndex.from_breaks([0, 1, 2, 3], closed="left"),
    "category": pd.Categorical(["x", None, "y"], categories=["y", "x"], ordered=True),
    "Int64": pd.array([1, None, 3], dtype="Int64"),
    "Float32": pd.array([1, None, 3], dtype="Float32"),
    "boolean": pd.array([True, None, False], dtype="boolean"),
    "sparse": pd.arrays.SparseArray([0, 0, 1]),
    "bool": [True, False, True],
    "int8": np.array([1, 2, 3], "int8"),
}
_FRAMES = {
    "columns of every kind": pd.DataFrame(_COLUMNS),
    "empty": pd.DataFrame(),
    "no columns": pd.DataFrame(index=["a", "b"]),
    "no rows": pd.DataFrame({"a": pd.Series([], dtype="Int64")}),
    "duplicates": pd.DataFrame([[1, "a"], [2, "b"]], index=["i", "i"], columns=["c", "c"]),
    "multi": pd.DataFrame(
        {("a", 1): [1, 2], ("b", 2): [3, 4]},
        index=pd.MultiIndex.from_tuples([("x", 1.5), ("y", np.nan)], names=["l", None]),
    ),
    "times": pd.DataFrame({"a": [1, 2, 3]}, index=_DAYS),
    "grouped": pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}).groupby("b").agg({"a": ["mean", "sum"]}),
}


@pytest.mark.parametrize("name", _FRAMES)
def test_frames_come_back_equal(path, name):
    back = crossed(_FRAMES[name], path)
    pd.testing.assert_frame_equal(back, _FRAMES[name], check_freq=True, check_exact=True)


@pytest.mark.parametrize("name", _COLUMNS)
def test_series_index_and_array_come_back_equal(path, name):
    series = pd.Series(_COLUMNS[name], name=("a", 1), index=[5, 6, 7])
    pd.testing.assert_series_equal(crossed(series, path), series)
    pd.testing.assert_index_equal(crossed(pd.Index(series), path), pd.Index(series), exact=True)
    pd.testing.assert_extension_array_equal(crossed(series.array, path), series.array)


@pytest.mark.parametrize(
    "value",
    [pd.Timestamp("2024-03-31 01:30", tz=_PARIS), pd.Timestamp(5, unit="ns"), pd.Timedelta(7), pd.Period("2024Q1"),
     pd.Interval(1.5, 2), pd.NaT, pd.NA],
    ids=repr,
)  # fmt: skip
def test_scalars_come_back_the_same(path, value):
    back = crossed(value, path)
    assert type(back) is type(value)
    assert repr(back) == repr(value)
    assert getattr(back, "unit", None) == getattr(value, "unit", None)
