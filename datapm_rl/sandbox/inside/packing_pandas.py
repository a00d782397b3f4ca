"""How pandas' objects are taken apart into arrays and made again; see `packing`.

Imported only where pandas is loaded.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pandas as pd

from .packing import Kind


def _values(column: Any) -> Any:
    return column.to_numpy() if isinstance(column.dtype, np.dtype) else column.array


def _series(array: Any, index: Any = None, name: Any = None) -> Any:
    return pd.Series(array, index=index, name=name, dtype=array.dtype)  # the dtype: or objects become strings


def _frame(arrays: list[Any], columns: Any, index: Any) -> Any:
    frame = pd.DataFrame({number: _series(array) for number, array in enumerate(arrays)}, index=range(len(index)))
    frame.columns, frame.index = columns, index  # set here, for they may have duplicates
    return frame


def _index(array: Any, name: Any, freq: str | None) -> Any:
    index: Any = pd.Index(array, name=name, dtype=array.dtype)
    if freq is not None:
        index.freq = freq
    return index


def _index_apart(index: Any) -> tuple[Any, ...]:
    freq = index.freqstr if isinstance(index, (pd.DatetimeIndex, pd.TimedeltaIndex)) else None
    return _values(index), index.name, freq


def _datetimes(instants: Any, tz: Any) -> Any:
    index = pd.DatetimeIndex(instants)
    return (index if tz is None else index.tz_localize("UTC").tz_convert(tz)).array


def _periods(ordinals: Any, freq: str) -> Any:
    make: Any = pd.PeriodIndex
    return make.from_ordinals(ordinals, freq=freq).array


def _sparse(dense: Any, fill_value: Any) -> Any:
    return pd.arrays.SparseArray(dense, fill_value=fill_value)


def _strings(texts: list[Any], storage: str, missing_is_nan: bool) -> Any:
    dtype: Any = pd.StringDtype(storage, na_value=np.nan if missing_is_nan else pd.NA)
    return pd.array(texts, dtype=dtype)


def _strings_apart(array: Any) -> tuple[Any, ...]:
    texts = array.to_numpy(dtype=object, na_value=None).tolist()
    return texts, array.dtype.storage, array.dtype.na_value is not pd.NA


def _masked(kind: Any) -> Kind:
    def apart(array: Any) -> tuple[Any, ...]:
        return array.to_numpy(dtype=array.dtype.numpy_dtype, na_value=0), array.isna()

    return Kind(apart, kind)


def _arrow_apart(array: Any) -> tuple[Any, ...]:
    import pyarrow as pa

    sink, table = pa.BufferOutputStream(), pa.table({"": array.__arrow_array__()})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return (sink.getvalue().to_pybytes(),)


def _arrow(stream: bytes) -> Any:
    import pyarrow as pa

    column = pa.ipc.open_stream(stream).read_all().column(0)
    column.validate(full=True)  # offsets that point elsewhere would be read
    return pd.arrays.ArrowExtensionArray(column)


_arrays = pd.arrays
_CASES: list[tuple[str, tuple[Any, ...], Kind]] = [
    (
        "DataFrame",
        (pd.DataFrame,),
        Kind(lambda v: ([_values(v.iloc[:, i]) for i in range(v.shape[1])], v.columns, v.index), _frame),
    ),
    ("Series", (pd.Series,), Kind(lambda v: (_values(v), v.index, v.name), _series)),
    (
        "Index",
        (pd.Index, pd.DatetimeIndex, pd.TimedeltaIndex, pd.PeriodIndex, pd.CategoricalIndex, pd.IntervalIndex),
        Kind(_index_apart, _index),
    ),
    (
        "RangeIndex",
        (pd.RangeIndex,),
        Kind(
            lambda v: (v.start, v.stop, v.step, v.name),
            lambda start, stop, step, name: pd.RangeIndex(start, stop, step, name=name),
        ),
    ),
    (
        "MultiIndex",
        (pd.MultiIndex,),
        Kind(
            lambda v: (list(v.levels), [np.asarray(codes) for codes in v.codes], list(v.names)),
            lambda levels, codes, names: pd.MultiIndex(levels=levels, codes=codes, names=names),
        ),
    ),
    (
        "Categorical",
        (pd.Categorical,),
        Kind(
            lambda v: (np.asarray(v.codes), v.categories, v.ordered),
            lambda codes, categories, ordered: pd.Categorical.from_codes(codes, categories, ordered=ordered),
        ),
    ),
    ("DatetimeArray", (_arrays.DatetimeArray,), Kind(lambda v: (v.asi8.view(f"M8[{v.unit}]"), v.tz), _datetimes)),
    (
        "TimedeltaArray",
        (_arrays.TimedeltaArray,),
        Kind(lambda v: (v.to_numpy(),), lambda v: pd.TimedeltaIndex(v).array),
    ),
    (
        "PeriodArray",
        (_arrays.PeriodArray,),
        Kind(lambda v: (v.asi8, v.freqstr), _periods),
    ),
    (
        "IntervalArray",
        (_arrays.IntervalArray,),
        Kind(lambda v: (v.left, v.right, v.closed), lambda *sides: _arrays.IntervalArray.from_arrays(*sides)),
    ),
    ("IntegerArray", (_arrays.IntegerArray,), _masked(_arrays.IntegerArray)),
    ("FloatingArray", (_arrays.FloatingArray,), _masked(_arrays.FloatingArray)),
    ("BooleanArray", (_arrays.BooleanArray,), _masked(_arrays.BooleanArray)),
    ("StringArray", (_arrays.StringArray, _arrays.ArrowStringArray), Kind(_strings_apart, _strings)),
    ("ArrowArray", (_arrays.ArrowExtensionArray,), Kind(_arrow_apart, _arrow)),
    (
        "SparseArray",
        (_arrays.SparseArray,),
        Kind(lambda v: (v.to_dense(), v.fill_value), _sparse),
    ),
    ("NumpyArray", (_arrays.NumpyExtensionArray,), Kind(lambda v: (v.to_numpy(),), _arrays.NumpyExtensionArray)),
    ("item", (pd.Timestamp, pd.Timedelta, pd.Period), Kind(lambda v: (pd.array([v]),), operator.itemgetter(0))),
    ("Interval", (pd.Interval,), Kind(lambda v: (v.left, v.right, v.closed), pd.Interval)),
    ("NaT", (type(pd.NaT),), Kind(lambda _v: (), lambda: pd.NaT)),
    ("NA", (type(pd.NA),), Kind(lambda _v: (), lambda: pd.NA)),
]
KINDS = {f"pandas.{tag}": kind for tag, _types, kind in _CASES}
TYPES = {type_: f"pandas.{tag}" for tag, types, _kind in _CASES for type_ in types}
