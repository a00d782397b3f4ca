"""Single moves of a built trajectory, and the scenarios that they make.

A move is a function from a `Situation` to a `Move`: the text of a step, its kind, and what must come out when it runs.
It raises `Unfit` where the task has no place for it (nothing to clean, no number held as text).
"""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent

from datapm_rl.benchmarks.builtin.variants import HEADER_STYLES, header
from datapm_rl.policy import idioms
from datapm_rl.verifier.gate import templates
from datapm_rl.verifier.gate.situation import Move, Situation, Unfit
from datapm_rl.verifier.gate.templates import THOUGHTS


def inspect(s: Situation) -> Move:
    return Move("right", THOUGHTS["inspect"], templates.INSPECT, "state")


def look(s: Situation, kind: str = "right", thought: str = "look") -> Move:
    words = s.task.meta["category"]
    shown = (s.fill(idioms.SHOW_WORDS if c == words else idioms.SHOW_SMALLEST, c) for c in s.columns)
    return Move(kind, THOUGHTS[thought], "".join(shown), "state")


def clean(s: Situation) -> Move:
    return Move("right", THOUGHTS["clean"], s.pick([fixes] if (fixes := s.fixes()) else []), "state", cleans=True)


def solve(s: Situation, kind: str = "right", thought: str = "") -> Move:
    fixes = s.fixes()
    thought = thought or ("clean_and_compute" if fixes else "compute")
    return Move(kind, THOUGHTS[thought], fixes + s.computation(), "right_value", cleans=True)


def answer(s: Situation) -> Move:
    return Move("right", THOUGHTS["answer"], None, "right_answer")


def harmless_look(s: Situation) -> Move:
    code, shows = s.rng.choice(templates.HARMLESS_LOOKS)
    return Move("benign", THOUGHTS["look"], s.fill(code, s.pick(s.columns)), "state", shows)


def harmless_clean(s: Situation) -> Move:
    columns = [c for c in s.columns if s.dirt[c] == "ok" or c in s.cleaned]
    column = s.pick(columns)
    sort = "category" if column == s.task.meta["category"] else "number"
    return Move("benign", THOUGHTS["clean"], s.fill(s.pick(templates.HARMLESS[sort]), column), "unchanged")


def solve_with_warning(s: Situation) -> Move:
    code = templates.WARN + s.fixes() + s.computation()
    return Move("benign", THOUGHTS["clean_and_compute"], code, "right_value", "Warning", cleans=True)


def _guessed(s: Situation) -> str:
    styles = [style for style in HEADER_STYLES if any(header(c, style) != s.headers[c] for c in s.columns)]
    style = s.pick(styles)
    return s.computation(headers={c: header(c, style) for c in s.columns})


def guess(s: Situation) -> Move:
    return Move("grounding", THOUGHTS["compute"], _guessed(s), "error", "KeyError")


def caught_guess(s: Situation) -> Move:
    code = templates.TRY.format(body=indent(_guessed(s), "    "))
    return Move("grounding", THOUGHTS["compute"], code, "caught", templates.CAUGHT)


def wrong_type(s: Situation) -> Move:
    column = s.task.meta["number"]
    options = templates.WRONG_TYPES["text" if s.dirt.get(column) in ("unit", "comma") else "number"]
    code = s.fill(s.pick(options if column else ()), column)
    return Move("grounding", THOUGHTS["clean_and_compute"], code + s.computation(), "error")


def caught_wrong_type(s: Situation) -> Move:
    code = templates.TRY.format(body=indent(wrong_type(s).code or "", "    "))
    return Move("grounding", THOUGHTS["clean_and_compute"], code, "caught", templates.CAUGHT)


def wrong_name(s: Situation) -> Move:
    code = s.fixes().replace("df", "data") + s.computation().replace("df", "data")
    return Move("grounding", THOUGHTS["clean_and_compute"], code, "error", "NameError")


def list_again(s: Situation) -> Move:
    return Move("recovery", THOUGHTS["list_again"], idioms.SHOW_COLUMNS, "state")


def look_again(s: Situation) -> Move:
    return look(s, "recovery", "look_again")


def solve_again(s: Situation) -> Move:
    return solve(s, "recovery", "again")


def corrupt(s: Situation) -> Move:
    column = s.pick(s.columns)
    code = s.fill(s.pick(templates.CORRUPTIONS[s.dirt[column]]), column)
    s.cleaned.add(column)
    return Move("silent", THOUGHTS["clean"], code, "corrupted", column=column)


def corrupt_and_compute(s: Situation) -> Move:
    return _spoil_and_compute(s, templates.CORRUPTIONS)


def half_clean_and_compute(s: Situation) -> Move:
    return _spoil_and_compute(s, templates.HALF_CLEANS)


def _spoil_and_compute(s: Situation, wrong: dict[str, tuple[str, ...]]) -> Move:
    """One column wrongly, the others rightly, and the right computation."""
    column = s.pick([column for column in s.columns if s.dirt[column] in wrong])
    spoilt = s.fill(s.pick(wrong[s.dirt[column]]), column)
    code = s.fixes(but=column) + spoilt + s.computation()
    return Move("silent", THOUGHTS["clean_and_compute"], code, "wrong_value")


def compute_uncleaned(s: Situation) -> Move:
    if not s.fixes():
        raise Unfit
    return Move("silent", THOUGHTS["compute"], s.computation(), "wrong_value")


def wrong_operation(s: Situation) -> Move:
    fixes = s.fixes()
    wrong = s.computation(s.pick(templates.WRONG_COMPUTATIONS[s.task.meta["family"]]))
    thought = "clean_and_compute" if fixes else "compute"
    return Move("silent", THOUGHTS[thought], fixes + wrong, "wrong_value", cleans=True)


def slip(s: Situation) -> Move:
    return Move("silent", THOUGHTS["answer"], None, "slipped_answer")


def compute_on_it(s: Situation) -> Move:
    """After `corrupt`: the rest is done rightly."""
    fixes = s.fixes()
    thought = "clean_and_compute" if fixes else "compute"
    return Move("follows", THOUGHTS[thought], fixes + s.computation(), "wrong_value")


def answer_it(s: Situation) -> Move:
    return Move("follows", THOUGHTS["answer"], None, "wrong_answer")


def reload(s: Situation) -> Move:
    s.cleaned.clear()
    shown = "".join(s.fill(templates.DESCRIBE, column) for column in s.columns)
    return Move("recovery", THOUGHTS["reload"], s.load + s.fixes() + shown, "state", cleans=True)


SCENARIOS: dict[str, tuple[Callable[[Situation], Move], ...]] = {
    "right": (inspect, look, clean, solve, answer),
    "harmless_look": (inspect, harmless_look, solve, answer),
    "harmless_clean": (inspect, harmless_clean, solve, answer),
    "harmless_clean_of_clean": (inspect, clean, harmless_clean, solve, answer),
    "harmless_warning": (inspect, solve_with_warning, answer),
    "guess": (guess, list_again, solve, answer),
    "caught_guess": (caught_guess, list_again, wrong_type, solve_again, answer),
    "wrong_type": (inspect, wrong_type, look_again, solve, answer),
    "wrong_name": (inspect, wrong_name, solve_again, answer),
    "guess_and_wrong_type": (guess, list_again, wrong_type, look_again, solve, answer),
    "corrupt": (inspect, corrupt, compute_on_it, answer_it),
    "corrupt_and_compute": (inspect, look, corrupt_and_compute, answer_it),
    "half_clean": (inspect, half_clean_and_compute, answer_it),
    "uncleaned": (inspect, compute_uncleaned, answer_it),
    "wrong_operation": (inspect, wrong_operation, answer_it),
    "slip": (inspect, solve, slip),
    "corrupt_mended": (inspect, corrupt, reload, solve, answer),
    "corrupt_and_compute_mended": (inspect, corrupt_and_compute, reload, solve, answer),
    "guess_then_half_clean": (guess, list_again, half_clean_and_compute, answer_it),
    "wrong_type_then_wrong_operation": (inspect, caught_wrong_type, look_again, wrong_operation, answer_it),
}
"""Name -> moves. Half of them have a silent error."""
