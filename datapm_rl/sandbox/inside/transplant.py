"""The clean room: an agent's data in a process where the agent's code never ran.

`export`, in a fork of the agent's process, writes its variables to a file; `load`, in a fork of the pristine zygote,
reads them. The file comes from hostile code. It holds trees of plain values (`packing`) as pickles, read by an
unpickler that knows no class and no function at all, so there is nothing a pickle could call or patch; and names of
modules, imported anew if they are known ones.

What is data: numbers, texts, dates, Python's containers, NumPy's arrays, pandas' objects. Two variables that are one
object become two; pandas' `attrs` and `flags`, and Fortran order, are lost. What a name means is the agent's choice.
"""

from __future__ import annotations

import builtins
import importlib
import io
import json
import os
import pickle
import stat
import sys
from types import ModuleType
from typing import Any

from .packing import NotData, load_kinds, pack, unpack

_MOST_BYTES = 512 << 20  # of a file; a session's limit for files is 64 MB by default
_MOST_NAMES = 10_000
_LINE = 4096  # bytes of a header
_LIBRARIES = {"numpy", "pandas", "matplotlib", "scipy", "sklearn", "statsmodels", "seaborn"}
_NOISY = {"antigravity", "idlelib", "this", "turtledemo"}  # importing them does something
_REST = "(the rest of the file)"


class _PlainUnpickler(pickle.Unpickler):
    """Builds plain values and tuples, lists, dictionaries and sets of them; refuses whatever names a class."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise NotData(f"{module_name}.{global_name} in a pickle of plain values")


def prepare() -> None:
    """Import what is needed. Called in the zygote after its libraries: a confined session cannot read these files."""
    load_kinds()


def export(namespace: dict[str, Any], path: str) -> list[str]:
    """Write the data and the modules among these variables to a file; names of those left out.

    Names with two leading underscores, and `_`, are skipped. Raises OSError when the file cannot be written at all.
    """
    left_out = []
    with open(f"{path}.part", "wb", buffering=0) as file:
        for name, value in list(namespace.items()):
            if name == "_" or name.startswith("__"):
                continue
            start = file.tell()
            try:
                _write(file, name, value)
            except BaseException:  # hostile objects may raise anything; a large one meets the limit of file size
                left_out.append(name)
                file.seek(start)
                file.truncate()
    os.replace(f"{path}.part", path)
    return left_out


def _write(file: io.FileIO, name: str, value: Any) -> None:
    data, header = b"", {"name": name}
    if isinstance(value, ModuleType):
        header["module"] = value.__name__
    else:
        data = pickle.dumps(pack(value), 5)
    line = json.dumps({**header, "size": len(data)}).encode() + b"\n"
    if len(line) > _LINE or file.tell() + len(line) + len(data) > _MOST_BYTES:
        raise NotData("too large")
    for part in (line, data):
        rest = memoryview(part)
        while rest:
            rest = rest[file.write(rest) :]


def load(namespace: dict[str, Any], path: str) -> list[str]:
    """Put the variables of a file into a namespace; names refused, of which none is changed.

    A name that is bound there stays as it is, and so do builtins. Raises OSError when there is no regular file.
    """
    refused: list[str] = []
    # NOFOLLOW: the agent's folder may hold a link to elsewhere; NONBLOCK: or a pipe that nobody writes to
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        remaining = min(status.st_size, _MOST_BYTES)
        for _count in range(_MOST_NAMES):
            line = file.readline(_LINE)
            if not line:
                return refused
            try:
                name, module, size = _header(line)
                remaining -= len(line) + size
                data = file.read(size) if remaining >= 0 else b""
            except (ValueError, KeyError, TypeError, RecursionError):
                break
            if len(data) != size:
                break
            try:
                value = _module(module) if module is not None else unpack(_PlainUnpickler(io.BytesIO(data)).load())
                _bind(namespace, name, value)
            except (Exception, SystemExit):  # some modules end the program
                refused.append(name)
    return [*refused, _REST]


def _header(line: bytes) -> tuple[str, str | None, int]:
    header = json.loads(line)
    name, module, size = header["name"], header.get("module"), header.get("size", 0)
    if not isinstance(name, str) or not isinstance(module, str | None) or type(size) is not int or size < 0:
        raise ValueError("not a header")
    return name, module, size


def _module(name: str) -> ModuleType:
    root = name.partition(".")[0]
    known = root in _LIBRARIES or (root in sys.stdlib_module_names and root not in _NOISY)
    if not known or name.endswith("__main__"):
        raise NotData(f"the module {name} is not a known one")
    return importlib.import_module(name)


def _bind(namespace: dict[str, Any], name: str, value: Any) -> None:
    if namespace.get(name) is value and name in namespace:
        return
    if name in namespace or hasattr(builtins, name) or not name.isidentifier() or name.startswith("__"):
        raise NotData(f"{name} may not be bound")
    namespace[name] = value
