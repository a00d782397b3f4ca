"""Data as trees of plain values, and back: what crosses from hostile code into a clean room.

A plain value and a list stand for themselves; anything else is a tuple: the tag of its kind, then the simpler values
that its kind is made from. A tree names no class and no function, and objects are made by public constructors only,
so a tree that was forged can lie about data but not about what is computed from it.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import functools
import sys
import zoneinfo
from collections.abc import Callable
from typing import Any, NamedTuple

PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_FACTORIES = {kind.__name__: kind for kind in (int, float, str, list, dict, set)}
_DTYPES = "biufcSUMm"  # NumPy's kinds without references to objects


class Kind(NamedTuple):
    """How values of a type are taken apart into simpler ones, and made from them."""

    apart: Callable[[Any], tuple[Any, ...]]
    make: Callable[..., Any]


class NotData(ValueError):
    """A value of a type that does not cross, or a tree that means nothing."""


def pack(value: Any) -> Any:
    """The tree of a value. Raises NotData for what is no data, RecursionError for what contains itself."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is list:
        return value if PLAIN.issuperset(map(type, value)) else [pack(item) for item in value]
    tag = _tag(value)
    return (tag, *(pack(part) for part in _kinds()[tag].apart(value)))


def unpack(tree: Any) -> Any:
    """The value of a tree. Raises NotData, and whatever a constructor raises for what it was given."""
    kind = type(tree)
    if kind in PLAIN:
        return tree
    if kind is list:
        return tree if PLAIN.issuperset(map(type, tree)) else [unpack(item) for item in tree]
    if kind is not tuple or not tree or type(tree[0]) is not str or tree[0] not in _kinds():
        raise NotData("not a tree of data")
    return _kinds()[tree[0]].make(*(unpack(part) for part in tree[1:]))


def _tag(value: Any) -> str:
    """The exact type decides: an instance of a subclass is an object of the agent's, with methods of its own."""
    kind = type(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return "numpy.scalar"
    if kind.__bases__ == (tuple,) and type(getattr(kind, "_fields", None)) is tuple:
        return "namedtuple"
    tag = _types().get(kind)
    if tag is None:
        raise NotData(f"{kind.__name__} is not data")
    return tag


def load_kinds() -> None:
    """Find out which of NumPy and pandas are loaded; what is loaded later is no data."""
    _kinds()
    _types()


@functools.cache
def _kinds() -> dict[str, Kind]:
    kinds = dict(_STANDARD)
    if "numpy" in sys.modules:
        kinds |= {"numpy.scalar": Kind(_scalar_apart, lambda *parts: _array(*parts)[()])}
        kinds |= {"numpy.ndarray": Kind(_array_apart, _array)}
    if "pandas" in sys.modules:
        from .packing_pandas import KINDS

        kinds |= KINDS
    return kinds


@functools.cache
def _types() -> dict[type, str]:
    types = {kind: kind.__name__ for kind in _BY_NAME}
    if "numpy" in sys.modules:
        types[sys.modules["numpy"].ndarray] = "numpy.ndarray"
    if "pandas" in sys.modules:
        from .packing_pandas import TYPES

        types |= TYPES
    return types


def _scalar_apart(value: Any) -> tuple[Any, ...]:
    return _array_apart(sys.modules["numpy"].asarray(value))


def _array_apart(value: Any) -> tuple[Any, ...]:
    if value.dtype.kind == "O":
        return "O", list(value.shape), list(value.flat)
    if value.dtype.kind not in _DTYPES:
        raise NotData(f"an array of {value.dtype} is not plain data")
    return value.dtype.str, list(value.shape), value.tobytes()


def _array(dtype: str, shape: list[int], content: Any) -> Any:
    numpy = sys.modules["numpy"]
    if dtype == "O":
        array = numpy.empty(len(content), object)
        for index, item in enumerate(content):  # not at once: NumPy would look into the items
            array[index] = item
        return array.reshape(shape)
    kind = numpy.dtype(dtype)
    if kind.kind not in _DTYPES:
        raise NotData(f"an array of {kind} is not plain data")
    return numpy.ndarray(shape, kind, content).copy()


@functools.lru_cache(64)
def _named(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)  # it checks that these are identifiers


def _default_apart(value: collections.defaultdict[Any, Any]) -> tuple[Any, ...]:
    factory = value.default_factory
    if factory is not None and factory not in _FACTORIES.values():
        raise NotData("a defaultdict with a function of its own is not data")
    return factory and factory.__name__, dict(value)


def _mapping(kind: Callable[..., Any]) -> Kind:
    return Kind(lambda v: (list(v.keys()), list(v.values())), lambda k, v: kind(dict(zip(k, v, strict=True))))


def _clock(v: Any) -> tuple[Any, ...]:
    return v.hour, v.minute, v.second, v.microsecond, v.tzinfo, v.fold


_BY_NAME: dict[type, Kind] = {
    tuple: Kind(lambda v: (list(v),), tuple),
    set: Kind(lambda v: (list(v),), set),
    frozenset: Kind(lambda v: (list(v),), frozenset),
    dict: _mapping(dict),
    collections.OrderedDict: _mapping(collections.OrderedDict),
    collections.Counter: _mapping(collections.Counter),
    collections.deque: Kind(lambda v: (list(v), v.maxlen), collections.deque),
    collections.defaultdict: Kind(_default_apart, lambda f, v: collections.defaultdict(f and _FACTORIES[f], v)),
    complex: Kind(lambda v: (v.real, v.imag), complex),
    bytearray: Kind(lambda v: (bytes(v),), bytearray),
    range: Kind(lambda v: (v.start, v.stop, v.step), range),
    decimal.Decimal: Kind(lambda v: (str(v),), decimal.Decimal),
    fractions.Fraction: Kind(lambda v: (v.numerator, v.denominator), fractions.Fraction),
    datetime.date: Kind(lambda v: (v.year, v.month, v.day), datetime.date),
    datetime.time: Kind(_clock, lambda *parts: datetime.time(*parts[:5], fold=parts[5])),
    datetime.datetime: Kind(
        lambda v: (v.year, v.month, v.day, *_clock(v)), lambda *parts: datetime.datetime(*parts[:8], fold=parts[8])
    ),
    datetime.timedelta: Kind(lambda v: (v.days, v.seconds, v.microseconds), datetime.timedelta),
    datetime.timezone: Kind(lambda v: (v.utcoffset(None),), datetime.timezone),
    zoneinfo.ZoneInfo: Kind(lambda v: (v.key,), zoneinfo.ZoneInfo),
}
_STANDARD = {kind.__name__: how for kind, how in _BY_NAME.items()} | {
    "namedtuple": Kind(
        lambda v: (type(v).__name__, list(type(v)._fields), list(v)), lambda n, f, items: _named(n, tuple(f))(*items)
    )
}
