"""Runs one piece of code as a notebook cell: the state stays, the last expression is the value.

An exception keeps what ran before it. The traceback shows the agent's own lines (through linecache) and leaves out
the frames of libraries, which cost an agent tokens and tell it little.
"""

from __future__ import annotations

import ast
import errno
import linecache
import os
import sys
import traceback
import types
from typing import Any

_DROPPED = "\n... [{} characters dropped] ...\n"


def new_namespace(preloaded: dict[str, str]) -> dict[str, Any]:
    """A fresh `__main__`; `preloaded` maps names to modules that are bound from the start (pd, np)."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module  # classes defined by the agent are picklable only from a module that exists
    for name, target in preloaded.items():
        setattr(module, name, sys.modules[target])
    return module.__dict__


def run_cell(code: str, namespace: dict[str, Any], filename: str, keep: int) -> dict[str, Any]:
    """Run code; {"status", "value", "error"}, texts shortened to `keep` characters. Never raises."""
    try:
        return {"status": "ok", "value": shorten(_evaluate(code, namespace, filename), keep), "error": None}
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: they end the cell, not the session
        try:
            return {"status": _status(error), "value": None, "error": shorten(_describe(error), keep)}
        except BaseException:  # a hostile __str__, or no memory left to format anything
            return {"status": _status(error), "value": None, "error": type(error).__name__}


def _evaluate(code: str, namespace: dict[str, Any], filename: str) -> str | None:
    linecache.cache[filename] = (
        len(code),
        None,
        (code + "\n").splitlines(True),
        filename,
    )  # None: never checked on disk
    tree = ast.parse(code, filename)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, filename, "exec", dont_inherit=True), namespace)
    if not isinstance(last, ast.Expr):
        return None
    value = eval(compile(ast.Expression(last.value), filename, "eval", dont_inherit=True), namespace)
    if value is None:
        return None
    namespace["_"] = value
    return repr(value)


def _status(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "memory"
    if type(error).__name__ == "ParserError" and "out of memory" in str(error):  # pandas' C reader
        return "memory"
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return "limit"
    return "error"


def _describe(error: BaseException) -> str:
    report = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
    _keep_own_frames(report)
    return "".join(report.format()).rstrip()


def _keep_own_frames(report: traceback.TracebackException) -> None:
    """Drop library frames here and in the chain; a chained exception without a frame of the agent's goes whole."""
    report.stack = traceback.StackSummary.from_list([f for f in report.stack if f.filename.startswith("<step ")])
    for link in ("__cause__", "__context__"):
        inner = getattr(report, link)
        if inner is not None:
            _keep_own_frames(inner)
            if not inner.stack:
                setattr(report, link, None)


def redirect_output(fd: int) -> None:
    """Make `fd` stdout and stderr, and sys.stdout and sys.stderr ordinary again if a step replaced or closed them."""
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, f"__{name}__")
        if stream.closed:
            # line-buffered, so that what a step printed before its time limit is seen
            stream = open(number, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
            setattr(sys, f"__{name}__", stream)
        setattr(sys, name, stream)


def shorten(text: str | None, keep: int) -> str | None:
    """Head and tail of a text, `keep` characters in all, and how many were dropped between them."""
    if text is None or len(text) <= keep:
        return text
    half = keep // 2
    return text[:half] + _DROPPED.format(len(text) - 2 * half) + text[-half:]
