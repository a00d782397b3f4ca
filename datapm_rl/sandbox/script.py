"""A step that is a script: run as `python script.py` would, with stdout and stderr apart; silenced, to run again."""

from __future__ import annotations

import ast
import inspect
import os
from dataclasses import replace

from datapm_rl.sandbox.result import ExecutionResult
from datapm_rl.sandbox.session import Session
from datapm_rl.trajectory import StepStatus

_REPORTED = {"ok": StepStatus.OK, "error": StepStatus.ERROR, "memory": StepStatus.MEMORY}
_SCRIPT = "<script>"  # in tracebacks; shown as <string>, which is also what generated code (dataclasses) is called


def run_in(session: Session, source: str, limit_s: float) -> ExecutionResult:
    """Run a script as one step. `limit_s`: the step's time limit, for the text of a timeout.

    `stdout`: what was printed there; `error`: what was written to stderr, with the traceback, None for exit code 0.
    The script is called <string> in it, the workspace <WORKSPACE>. An INFRA_ERROR comes back as it is.
    """
    place = os.path.realpath(session.workspace)
    result = session.run(f"{inspect.getsource(_run_script)}\n_run_script({source!r}, {_SCRIPT!r})")
    if result.status is StepStatus.INFRA_ERROR:
        return result
    result = _of_script(result, limit_s)
    error = result.error and result.error.replace(_SCRIPT, "<string>").replace(place, "<WORKSPACE>")
    return replace(result, stdout=result.stdout.replace(place, "<WORKSPACE>"), error=error)


def _run_script(source: str, name: str) -> object:
    """Sent into the session: what `python script.py` does, in a `__main__` of its own.

    The result's repr is a line with "ok", "error" or "memory", and then what was written to stderr.
    """
    import contextlib
    import linecache
    import os
    import sys
    import tempfile
    import traceback
    import types

    class Report:
        def __repr__(self) -> str:
            return text

    status = "ok"
    main = types.ModuleType("__main__")
    main.__file__ = "<string>"
    sys.modules["__main__"] = main
    linecache.cache[name] = (len(source), None, (source + "\n").splitlines(True), name)
    with tempfile.TemporaryFile(dir=".", buffering=0) as errors:  # has no name, so the script does not see it
        stderr = os.dup(2)
        os.dup2(errors.fileno(), 2)
        try:
            try:
                exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)
            finally:
                with contextlib.suppress(Exception):  # the script may have closed it
                    sys.stderr.flush()
        except SystemExit as end:
            if end.code is not None and end.code != 0:
                status = "error"
                errors.write(b"" if isinstance(end.code, int) else f"{end.code}\n".encode())
        except BaseException as error:
            status = "memory" if isinstance(error, MemoryError) else "error"
            own = error.__traceback__.tb_next if error.__traceback__ else None  # without this function's frame
            lines = traceback.format_exception(type(error), error, own)
            errors.write("".join(lines).encode("utf-8", "backslashreplace"))
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        errors.seek(0)
        text = status + "\n" + errors.read().decode("utf-8", "replace")
    return Report()


def _of_script(result: ExecutionResult, limit_s: float) -> ExecutionResult:
    """From the result of `_run_script` as a step to the result of the script."""
    if result.status is StepStatus.TIMEOUT:
        return replace(
            result,
            error=f"Code execution timed out after {limit_s:g} seconds. The limit is for this code and all that is "
            "replayed before it.",
        )
    if result.status is not StepStatus.OK:
        return replace(result, value=None)
    word, _, stderr = (result.value or "").partition("\n")
    status = _REPORTED.get(word)
    if status is None:
        return replace(result, status=StepStatus.DIED, value=None, error="the script's report is forged")
    return replace(result, status=status, value=None, error=None if status is StepStatus.OK else stderr)


class _Silencer(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id in ("print", "query_document")
        ):
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)


def silenced(script: str) -> str:
    """A script that succeeded as history; without blank lines, even those in multi-line strings (as there)."""
    try:
        lines = ast.unparse(_Silencer().visit(ast.parse(script))).splitlines()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # by lines: wrong for a call over several lines, as there
        return "\n".join(_without_print(line) for line in script.split("\n"))
    return "\n".join(line for line in lines if line.strip())


def _without_print(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return f"{indent}pass" if line.lstrip().startswith("print") or "print(" in line else line
