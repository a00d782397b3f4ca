"""Whether the libraries are still what they were when the zygote loaded them.

Agent code can patch pandas, NumPy or builtins in its own process, and what a verifier computes in a fork of that
process is then false. `record` remembers functions, classes and modules in the zygote; `changed` names, in a fork,
what was replaced: entries of modules, classes and tables of functions; a function's code, defaults and closure; names
that now hide a builtin or an inherited method; classes of modules, bases of classes; hooks of imports, tracing, audits
and forks (`hooks`).

What is added (accessors, subclasses, late imports) and what is set (options, seeds, filters) is no change. Not covered:
packages that were not loaded when `record` ran, and variables (one may be an instance of a class of the agent's). Code
that rewrites memory or this module's own objects (ctypes, gc, sys._getframe), or that patches after the check (timers,
finalizers), can forge the answer: facts that matter are checked in a fresh session or a clean room (`transplant`).
"""

from __future__ import annotations

import builtins
import gc
import importlib
import sys
from collections.abc import Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

from .hooks import taken, watch
from .watched import CELL_CONTENT, CLASS_MRO, DICT_VERSION, FUNCTION, TYPE, Memory, Owner, Table, is_descriptor

# Functions defined below look builtins up here, so those that an agent replaced are not called.
__builtins__ = dict(vars(builtins))  # type: ignore[assignment]

_gettrace, _getprofile = sys.gettrace, sys.getprofile
_MOST = 20  # names reported
_ALIASES = {"pd": "pandas", "np": "numpy"}
_DEPENDENCIES = ("dateutil", "pyarrow")  # pandas computes with them
# fmt: off
_STDLIB = (  # what a check leans on
    "_frozen_importlib", "_frozen_importlib_external", "abc", "bisect", "builtins", "calendar", "codecs", "collections",
    "contextlib", "copy", "csv", "datetime", "decimal", "enum", "fractions", "functools", "heapq", "importlib", "io",
    "itertools", "json", "math", "numbers", "operator", "os", "pathlib", "posixpath", "random", "re", "statistics",
    "string", "struct", "sys", "time",
)
# fmt: on


class _Record:
    def __init__(self, packages: Sequence[str]):
        roots = {_root(name) for name in (*packages, *_DEPENDENCIES, *_STDLIB)}
        self.builtins = dict(vars(builtins))
        self.aliases = {name: sys.modules[name] for name in packages}
        self.aliases |= {short: self.aliases[name] for short, name in _ALIASES.items() if name in self.aliases}
        self.hooks = [(name, vars(sys)[name], vars(sys)[name].copy()) for name in ("meta_path", "path_hooks")]

        modules = {n: m for n, m in sys.modules.items() if isinstance(m, ModuleType) and _root(n) in roots}
        alive = gc.get_objects()
        classes = [thing for thing in alive if isinstance(thing, type) and _root(thing.__module__) in roots]
        functions = [thing for thing in alive if type(thing) is FunctionType and _root(thing.__module__) in roots]
        cells = {id(c): (c, f) for f in functions for c in f.__closure__ or () if _holds_callable(c)}.values()
        class_names = [f"{c.__module__}.{c.__qualname__}" for c in classes]
        function_names = [f"{f.__module__}.{f.__qualname__}" for f in functions]
        cell_names = [f"{f.__module__}.{f.__qualname__}" for _cell, f in cells]
        self.memory = [
            (Memory(functions, FUNCTION), function_names, ".__code__"),
            (Memory([cell for cell, _function in cells], CELL_CONTENT), cell_names, ".__closure__"),
            (Memory(classes, CLASS_MRO), class_names, ".__bases__"),
            (Memory(classes, TYPE), class_names, ".__class__"),
            (Memory(list(modules.values()), TYPE), list(modules), ".__class__"),
        ]

        self.tables = [Table(sys.modules, modules, "sys.modules[{!r}]", None)]
        self._seen = {id(sys.modules)}
        for name, module in modules.items():
            self._add(vars(module), name + ".{}", module)
        for name, owner in zip(class_names, classes, strict=True):
            self._add(gc.get_referents(vars(owner))[0], name + ".{}", owner)  # the dictionary behind the proxy
        for name, function in zip(function_names, functions, strict=True):
            if function.__kwdefaults__:
                self._add(function.__kwdefaults__, name + ".__kwdefaults__[{!r}]", function)
        self.before = {id(table.owner): table.copy for table in self.tables if table.owner is not None}
        self.versions = Memory([table.live for table in self.tables], DICT_VERSION)

    def _add(self, live: dict[Any, Any], label: str, owner: Owner | None) -> None:
        if id(live) in self._seen:
            return
        self._seen.add(id(live))
        table = Table(live, live.copy(), label, owner)
        self.tables.append(table)
        for name, value in table.copy.items() if isinstance(owner, (type, ModuleType)) else ():
            if type(value) is dict and name != "__annotations__" and any(map(callable, value.values())):
                self._add(value, label.format(name) + "[{!r}]", None)
            elif (
                isinstance(owner, type) and is_descriptor(value) and not callable(value) and hasattr(value, "__dict__")
            ):
                self._add(vars(value), label.format(name) + ".{}", None)  # a cached_property keeps its function there


_record: _Record | None = None


def record(packages: Sequence[str]) -> None:
    """Remember the loaded modules of these (imported) packages, of what they compute with, of the standard library.

    Called once, in the zygote, when they are loaded and before agent code can run. Raises RuntimeError on an
    interpreter other than CPython 3.11.
    """
    global _record
    if sys.implementation.name != "cpython" or sys.version_info[:2] != (3, 11):
        raise RuntimeError("the sandbox knows the memory layout of CPython 3.11 only; run it with that interpreter")
    for name in _STDLIB:
        importlib.import_module(name)
    watch()
    _record = _Record(packages)


def _root(module: Any) -> str:
    return module.partition(".")[0] if isinstance(module, str) else ""


def _holds_callable(cell: Any) -> bool:
    try:
        return callable(cell.cell_contents)
    except ValueError:  # empty
        return False


def changed(namespace: dict[str, Any] | None = None) -> list[str]:
    """Qualified names of what is no longer as recorded, at most 20; [] when all is. Never raises.

    Of `namespace` (the agent's variables) those are named that a check would take for something else: "__main__.pd"
    when it is not pandas, and callables that have the name of a builtin.
    """
    found: list[str] = []
    try:
        for name in _differences(namespace or {}):
            if name not in found:
                found.append(name)
            if len(found) == _MOST:
                break
    except BaseException as error:  # hostile objects may raise anything when they are looked at
        found.append(f"the check was broken by {type(error).__name__}")
    return found


def _differences(namespace: dict[str, Any]) -> Iterator[str]:
    if _record is None:
        yield "nothing was recorded"
        return
    for index in _record.versions.differing():
        yield from _record.tables[index].differences(_record.before)
    for memory, names, part in _record.memory:
        for index in memory.differing():
            yield names[index] + part
    if vars(sys).get("modules") is not _record.tables[0].live:
        yield "sys.modules"
    for name, hooks, copy in _record.hooks:
        now = vars(sys).get(name)
        if now is not hooks or len(now) < len(copy) or any(a is not b for a, b in zip(now, copy, strict=False)):
            yield f"sys.{name}"  # what is only appended is asked last, and cannot hide a real module
    if _gettrace() is not None:
        yield "sys.settrace"
    if _getprofile() is not None:
        yield "sys.setprofile"
    yield from taken
    for name, value in namespace.items():
        if name == "__builtins__":
            replaced = value is not builtins and value is not vars(builtins)
        elif name in _record.aliases:
            replaced = value is not _record.aliases[name]
        else:
            replaced = name in _record.builtins and value is not _record.builtins[name] and callable(value)
        if replaced:
            yield f"__main__.{name}"
