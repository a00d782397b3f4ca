"""A clean room's file is written by hostile code: what is forged in it is refused, and nothing of it runs."""

import collections
import importlib
import json
import os
import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapm_rl.sandbox.inside import transplant
from datapm_rl.sandbox.inside.packing import pack

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(tmp_path_factory.mktemp("room") / "variables")


class Call:
    def __init__(self, function, *arguments, state=None):
        self.how = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.how


def _global(module: str, name: str) -> bytes:
    return b"\x80\x04" + b"".join(b"\x8c" + bytes([len(t)]) + t.encode() for t in (module, name)) + b"\x93"


_STATE = pickle.dumps((None, {"mean": 42}), 4)[2:-1]
_PICKLES = {
    "os.system": pickle.dumps(Call(os.system, "touch ran")),
    "eval": pickle.dumps(Call(eval, "1")),
    "getattr": pickle.dumps(Call(getattr, Call(importlib.import_module, "pandas"), "read_pickle")),
    "setattr": pickle.dumps(Call(setattr, pd.DataFrame, "patched", 1)),
    "state of a class": _global("pandas", "DataFrame") + _STATE + b"b.",
    "state of a module's class": _global("collections", "Counter") + _STATE + b"b.",
    "attribute of a class": _global("pandas", "DataFrame.mean") + b".",
    "old opcodes": b"cos\nsystem\n(S'touch ran'\ntR.",
    "instance": b"(S'touch ran'\nios\nsystem\n.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent": b"Pabc\n.",
    "state of a list": b"]" + _STATE + b"b.",
    "call of a text": b"S'a'\n)R.",
    "an array of numpy's own": pickle.dumps(np.arange(3)),
    "a frame of pandas' own": pickle.dumps(pd.DataFrame({"a": [1]})),
    "truncated": pickle.dumps([1, 2, 3])[:-3],
    "nothing": b"",
}
_TREES = {
    "unknown tag": ("os.system", "touch ran"),
    "no tag": (),
    "tag that is no text": (1, 2),
    "dictionary": {"a": 1},
    "objects from an address": ("numpy.ndarray", "|O8", [1], b"\0" * 8),
    "object field": ("numpy.ndarray", "O,i4", [1], b"\0" * 12),
    "array beyond its bytes": ("numpy.ndarray", "<f8", [1000], b"\0" * 8),
    "scalar of objects": ("numpy.scalar", "|O8", [], b"\0" * 8),
    "factory": ("defaultdict", "eval", ("dict", [], [])),
    "code in a named tuple": ("namedtuple", "P", ["x", "y=__import__('os')"], [1, 2]),
    "codes beyond the categories": ("pandas.Categorical", pack(np.array([5])), pack(pd.Index(["a"])), False),
    "codes beyond the levels": ("pandas.MultiIndex", [pack(pd.Index(["a"]))], [pack(np.array([5]))], [None]),
    "arrow": ("pandas.ArrowArray", b"garbage"),
    "zone outside": ("ZoneInfo", "../../../etc/passwd"),
    "lengths": ("pandas.Series", pack(np.arange(3)), pack(pd.RangeIndex(2)), None),
    "wrong number of parts": ("pandas.DataFrame", 1),
}


def _file(path, name: str, data: bytes) -> None:
    with open(path, "wb") as file:
        for each, content in ((name, data), ("after", pickle.dumps(1))):
            file.write(json.dumps({"name": each, "size": len(content)}).encode() + b"\n" + content)


@pytest.mark.parametrize("data", [*_PICKLES.values(), *map(pickle.dumps, _TREES.values())], ids=[*_PICKLES, *_TREES])
def test_forged_values_are_refused_and_run_nothing(data, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _file(path, "v", data)
    mean, names = pd.DataFrame.mean, set(vars(pd.DataFrame))
    namespace: dict = {}
    assert transplant.load(namespace, path) == ["v"]
    assert namespace == {"after": 1}
    assert pd.DataFrame.mean is mean
    assert not hasattr(collections.Counter, "mean")
    assert set(vars(pd.DataFrame)) == names
    assert os.listdir() == []


@pytest.mark.parametrize("name", ["pd", "print", "__builtins__", "__class__", "a b", "x.y", ""])
def test_forged_names_replace_nothing(name, path):
    _file(path, name, pickle.dumps(1))
    namespace: dict = {"pd": pd}
    assert transplant.load(namespace, path) == [name]
    assert namespace == {"pd": pd, "after": 1}


@pytest.mark.parametrize("module", ["antigravity", "json.__main__", "pip", "no such", "", "../x", "os.nothing"])
def test_modules_that_do_something_are_refused(module, path):
    with open(path, "w") as file:
        file.write(json.dumps({"name": "m", "module": module, "size": 0}) + "\n")
    assert transplant.load({}, path) == ["m"]


@settings(deadline=None)
@given(data=st.one_of(st.binary(max_size=99), st.binary(max_size=60).map(lambda b: b'{"name":"v","size":60}\n' + b)))
def test_garbage_is_refused_never_an_exception(data, path):
    with open(path, "wb") as file:
        file.write(data)
    transplant.load({}, path)


@pytest.mark.parametrize(
    "header",
    [
        "1",
        '{"name": 3, "size": 0}',
        '{"name": "v", "size": -1}',
        '{"name": "v", "size": 9}',
        '{"name": "v", "size": true}',
        "[" * 3000,
        '{"size": 1}',
    ],
)
def test_a_broken_file_keeps_what_came_before(header, path):
    assert transplant.export({"a": 1}, path) == []
    with open(path, "a") as file:
        file.write(header + "\n")
    namespace: dict = {}
    assert transplant.load(namespace, path) == ["(the rest of the file)"]
    assert namespace == {"a": 1}


def test_a_pipe_or_a_link_in_place_of_the_file_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    for name in ("pipe", "link", "missing"):
        with pytest.raises(OSError):  # noqa: PT011
            transplant.load({}, str(tmp_path / name))
