"""Tells looking at data from computing with it, by the syntax of what a step prints.

Looking: the printed expressions are column names, types, heads, distinct values, missing-value tables and their like
(`LOOKS`), a whole frame or column, or a bare `.min()` / `.max()`. Anything else that is printed is a computation, and
is judged by its value. One exception: where the question itself counts missing values, a count of a column's missing
values is a computation.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

LOOKS = frozenset(
    {"columns", "dtypes", "dtype", "head", "tail", "sample", "info", "describe", "unique", "nunique", "value_counts"}
    | {"isna", "isnull", "duplicated", "shape", "index", "keys", "loc", "iloc", "memory_usage"}
)
_LAYOUT = frozenset(
    {"tolist", "to_list", "to_string", "to_dict", "to_frame", "reset_index", "sort_values", "sort_index", "items", "T"}
)  # what may come after a look and leaves it one
_FLAGS = frozenset({"isna", "isnull", "duplicated"})  # a look, also when summed up
_SUMS = frozenset({"sum", "mean", "any", "all"})
_EXTREMES = frozenset({"min", "max"})
_COUNTS_MISSING = frozenset({"isna", "isnull"})
_WRAPPERS = frozenset({"list", "sorted", "set", "str", "repr", "tuple", "display"})
_PURE = _WRAPPERS | {"print", "len", "round", "min", "max", "sum", "abs", "int", "float", "bool", "type"}
_CHANGING = frozenset({"insert", "pop", "update", "eval", "clear", "append", "extend", "remove", "setdefault"}) | {
    *("sort", "reverse", "apply", "map", "pipe", "transform", "agg", "aggregate", "exec", "to_csv", "write", "system")
}


@dataclass(frozen=True)
class Printed:
    """What a step prints: whether anything, whether all of it is looking, and the columns that the looks name."""

    anything: bool
    looking: bool
    columns: frozenset[str]  # string subscripts inside the looks
    whole: bool  # some look is at a whole frame: names, types, head


def printed_by(code: str, frames: frozenset[str], counts_missing: bool) -> Printed:
    """Classify a step's code. `frames`: names of the agent's data frames. Code that does not parse prints nothing."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return Printed(False, False, frozenset(), False)
    outputs = [output for output in _outputs(tree) if not all(isinstance(e, ast.Constant) for e in output)]
    looks = [[e for e in output if _is_look(e, frames, counts_missing)] for output in outputs]
    looking = bool(outputs) and all(
        found and all(e in found or isinstance(e, ast.Constant | ast.Name) for e in output)
        for output, found in zip(outputs, looks, strict=True)
    )
    named = [_named_columns(e) for found in looks for e in found]
    return Printed(bool(outputs), looking, frozenset().union(*named), any(not names for names in named))


def only_shows(code: str) -> bool:
    """Whether code does nothing but print expressions that change nothing, so that the state after it is known.

    Cautious: assignments, lambdas, own functions and methods that may change a frame in place all count as changes.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return False
    prints = all(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _name(node.value.func) == "print"
        for node in tree.body
    )
    return prints and not any(_may_change(node) for node in ast.walk(tree))


def _may_change(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            return node.func.attr in _CHANGING or any(keyword.arg == "inplace" for keyword in node.keywords)
        return _name(node.func) not in _PURE
    return isinstance(node, ast.NamedExpr | ast.Lambda | ast.Await | ast.Yield | ast.YieldFrom)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def uses_missing_count(reference: str) -> bool:
    """Whether a reference program counts missing values for its answer."""
    try:
        tree = ast.parse(reference)
    except (SyntaxError, ValueError):
        return False
    answers = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "answer" for t in node.targets)
    ]
    return any(isinstance(n, ast.Attribute) and n.attr in _COUNTS_MISSING for a in answers for n in ast.walk(a))


def _outputs(tree: ast.Module) -> Iterator[list[ast.expr]]:
    """The expressions of each print, of statements that print by themselves, and of the last expression."""
    last = tree.body[-1] if tree.body else None
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr):
            continue
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("print", "display"):
            yield [part for argument in call.args for part in _parts(argument)]
        elif node is last and not _in_place(call):
            yield _parts(call)
        elif isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "info":
            yield [call]


def _parts(expression: ast.expr) -> list[ast.expr]:
    """An f-string's or a tuple's parts, or the expression itself."""
    if isinstance(expression, ast.JoinedStr):
        return [v.value if isinstance(v, ast.FormattedValue) else v for v in expression.values]
    if isinstance(expression, ast.Tuple | ast.List):
        return list(expression.elts)
    return [expression]


def _in_place(expression: ast.expr) -> bool:
    """`frame.method(..., inplace=True)` has no value to show."""
    return isinstance(expression, ast.Call) and any(keyword.arg == "inplace" for keyword in expression.keywords)


def _is_look(expression: ast.expr, frames: frozenset[str], counts_missing: bool) -> bool:
    while isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name):
        if expression.func.id not in _WRAPPERS or len(expression.args) != 1:
            return False
        expression = expression.args[0]
    methods, root = _chain(expression)
    if not methods:
        return isinstance(root, ast.Name) and root.id in frames
    if counts_missing and "sum" in methods and _COUNTS_MISSING & set(methods) and _named_columns(expression):
        return False
    if methods[0] in _EXTREMES:
        return True
    shown = next((method for method in methods if method not in _LAYOUT | _SUMS), "")
    if _SUMS & set(methods[: methods.index(shown)] if shown else methods):
        return shown in _FLAGS
    return shown in LOOKS or (not shown and isinstance(root, ast.Name) and root.id in frames)


def _chain(expression: ast.expr) -> tuple[list[str], ast.expr]:
    """Attributes of `root.a[..].b(..)`, the outermost first, and the root."""
    names: list[str] = []
    while True:
        if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
            expression = expression.func
        elif isinstance(expression, ast.Attribute):
            names.append(expression.attr)
            expression = expression.value
        elif isinstance(expression, ast.Subscript):
            expression = expression.value
        else:
            return names, expression


def _named_columns(expression: ast.expr) -> frozenset[str]:
    """Strings in the subscripts of an expression."""
    return frozenset(
        constant.value
        for node in ast.walk(expression)
        if isinstance(node, ast.Subscript)
        for constant in ast.walk(node.slice)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    )
