"""An agent's data crosses into a clean process as it was; what is no data is left out."""

import collections
import datetime
import os
import zoneinfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapm_rl.sandbox.inside import transplant

pytestmark = pytest.mark.unit

_PARIS = zoneinfo.ZoneInfo("Europe/Paris")
_UTC = datetime.UTC
_ZONES = st.sampled_from([None, _UTC, _PARIS, datetime.timezone(datetime.timedelta(hours=-3))])
_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.complex_numbers(), st.fractions(),
    st.decimals(allow_nan=False), st.dates(), st.times(), st.timedeltas(), st.datetimes(timezones=_ZONES),
)  # fmt: skip
_HASHABLE = st.one_of(st.integers(), st.text(), st.dates(), st.tuples(st.integers(), st.text()))
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(_HASHABLE, inner, max_size=4),
        st.lists(inner, max_size=4).map(lambda items: collections.deque(items, 5)),
    ),
    max_leaves=12,
)
Point = collections.namedtuple("Point", "x y")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(tmp_path_factory.mktemp("room") / "variables")


def crossed(value, path):
    assert transplant.export({"v": value}, path) == []
    namespace: dict = {}
    assert transplant.load(namespace, path) == []
    return namespace["v"]


@settings(deadline=None)
@given(_VALUES)
def test_python_data_comes_back_with_its_types(path, value):
    back = crossed(value, path)
    assert type(back) is type(value)
    assert repr(back) == repr(value)  # nan is nan, 1 is not True, a date is no datetime


@pytest.mark.parametrize(
    "value",
    [
        collections.Counter("abca"),
        collections.OrderedDict(b=1, a=2),
        collections.defaultdict(list, {"a": [1]}),
        {"a", 1},
        frozenset({15, 7, "b"}),
        bytearray(b"ab"),
        range(1, 9, 2),
    ],
    ids=repr,
)
def test_containers_keep_their_kind(path, value):
    back = crossed(value, path)
    assert type(back) is type(value)
    assert back == value


def test_a_default_factory_and_a_named_tuple_still_work(path):
    counts = crossed(collections.defaultdict(int), path)
    counts["new"] += 1
    points = crossed([Point(1, [2]), Point(3, None)], path)
    assert counts == {"new": 1}
    assert points[0].y == [2]
    assert type(points[0]) is type(points[1])


_ARRAYS = [
    np.arange(6.0).reshape(2, 3), np.asfortranarray(np.eye(3))[:, ::2], np.array([], "i8"), np.array(5),
    np.zeros((0, 3)), np.array(["a", "bcd"]), np.array([b"a"]), np.array(["2024-01-01", "NaT"], "M8[D]"),
    np.array([1, 2], ">i4"), np.array([1 + 2j]), np.array([True]), np.array([3], "m8[h]"),
    np.array([1, "a", None, [2, 3]], object), np.array([[{"a": 1}]], object),
]  # fmt: skip
_SCALARS = [np.float32(1.5), np.int64(3), np.bool_(True), np.str_("a"), np.datetime64("2024-01-01T10"), np.nan]


@pytest.mark.parametrize("value", _ARRAYS + _SCALARS, ids=repr)
def test_numpy_values_keep_dtype_and_shape(path, value):
    back = crossed(value, path)
    assert type(back) is type(value)
    np.testing.assert_array_equal(back, value)
    if isinstance(value, np.ndarray):
        assert (back.dtype, back.shape, back.flags.writeable) == (value.dtype, value.shape, True)


def test_what_is_no_data_is_left_out_and_costs_no_other_variable(path, tmp_path):
    class Model(pd.DataFrame):
        def mean(self):
            return 42

    class Loud:
        def __reduce__(self):
            raise SystemExit

    loop: list = []
    loop.append(loop)
    with open(tmp_path / "x", "w") as file:
        no_data = {
            "f": len,
            "g": lambda: 1,
            "C": Model,
            "m": Model(),
            "file": file,
            "loop": loop,
            "r": [1, {2: Loud()}],
        }
        no_data |= {
            "d": collections.defaultdict(lambda: 42),
            "s": np.zeros(2, [("a", "O")]),
            "i": type("I", (int,), {})(3),
        }
        assert transplant.export({"a": 1, **no_data, "z": 2, "_": 3, "__name__": "x"}, path) == list(no_data)
    namespace: dict = {}
    assert transplant.load(namespace, path) == []
    assert namespace == {"a": 1, "z": 2}


def test_a_variable_above_the_limit_of_file_size_is_left_out(path, monkeypatch):
    monkeypatch.setattr(transplant, "_MOST_BYTES", 1000)
    assert transplant.export({"a": 1, "big": b"x" * 1000, "z": 2}, path) == ["big"]
    namespace: dict = {}
    assert transplant.load(namespace, path) == []
    assert namespace == {"a": 1, "z": 2}


def test_modules_are_bound_again_by_their_real_names_if_they_are_known(path):
    import os.path as p

    own = type(os)("helpers")
    fake = type(os)("pandas")
    assert transplant.export({"pd": pd, "np": np, "p": p, "own": own, "shop": fake, "pytest": pytest}, path) == []
    namespace = {"pd": pd}
    assert transplant.load(namespace, path) == ["own", "pytest"]
    assert namespace == {"pd": pd, "np": np, "p": p, "shop": pd}
