"""Two ways to see that something was changed: words of memory, and entries of a dictionary.

Visiting an object in a forked process copies its page (its reference count is written; 4 us each here), and pandas
has 40,000 objects. So memory is compared first, which touches none of them: CPython 3.11 gives a dictionary a new
version number whenever it is changed, and keeps what makes up a function in four adjacent words. Entries are compared
in the dictionaries that were changed.
"""

from __future__ import annotations

import builtins
import ctypes
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

# Functions defined below look builtins up here, so those that an agent replaced are not called.
__builtins__ = dict(vars(builtins))  # type: ignore[assignment]

_WORD = ctypes.sizeof(ctypes.c_void_p)


class Field(NamedTuple):
    """A part of an object's structure: offset and size in bytes."""

    offset: int
    size: int = _WORD


# In CPython 3.11 on 64 bits.
TYPE = Field(8)
CELL_CONTENT = Field(16)
DICT_VERSION = Field(24)
FUNCTION = Field(48, 4 * _WORD)  # code, defaults, keyword defaults, closure
CLASS_MRO = Field(344)


class Memory:
    """One field of many objects, as it was."""

    def __init__(self, objects: Sequence[Any], field: Field):
        kind = ctypes.c_char * field.size
        self._size = field.size
        self._objects = objects  # kept alive: their memory must not become another object's
        self._views = [kind.from_address(id(thing) + field.offset) for thing in objects]
        self._recorded = b"".join(self._views)

    def differing(self) -> list[int]:
        """Indices of the objects whose field differs."""
        now, before, size = b"".join(self._views), self._recorded, self._size
        if now == before:
            return []
        return [
            spot // size for spot in range(0, len(now), size) if now[spot : spot + size] != before[spot : spot + size]
        ]


Owner = type | ModuleType | FunctionType


class Table:
    """The dictionary of a module or a class, a function's keyword defaults, or (`owner` None) functions by name.

    `copy` is what it was, and `label` makes an entry's qualified name: "pandas.DataFrame.{}".
    """

    __slots__ = ("copy", "label", "live", "owner")

    def __init__(self, live: dict[Any, Any], copy: dict[Any, Any], label: str, owner: Owner | None):
        self.live = live
        self.copy = copy
        self.label = label
        self.owner = owner

    def differences(self, before: Mapping[int, Mapping[Any, Any]]) -> Iterator[str]:
        """Names of entries that were replaced or removed, and of new ones that hide what was found before.

        `before`: by the id of a module or class, its entries as they were.
        """
        is_defaults = isinstance(self.owner, FunctionType)
        for name, value in self.copy.items():
            if self.live.get(name) is not value and (is_defaults or matters(value)) and not self._is_hook(name):
                yield self.label.format(name)
        if self.owner is None or is_defaults:
            return
        for name, value in self.live.items():
            if name not in self.copy and self._hides(name, value, before):
                yield self.label.format(name)

    def _is_hook(self, name: str) -> bool:
        return self.owner is sys and name.endswith("hook")  # sys.excepthook and the like are for programs to replace

    def _hides(self, name: str, value: Any, before: Mapping[int, Mapping[Any, Any]]) -> bool:
        if isinstance(self.owner, ModuleType):
            return callable(value) and (name in before[id(builtins)] or name == "__getattr__")
        assert isinstance(self.owner, type)
        inherited = (before.get(id(base), vars(base)).get(name) for base in self.owner.__mro__[1:])
        return (name[:2] == name[-2:] == "__" and callable(value)) or any(map(matters, inherited))


def matters(value: Any) -> bool:
    """Whether an entry is there for good. Flags, caches and counters are not."""
    return callable(value) or isinstance(value, (ModuleType, float, complex)) or is_descriptor(value)


def is_descriptor(value: Any) -> bool:
    """Such as a property or an accessor."""
    return hasattr(type(value), "__get__")
