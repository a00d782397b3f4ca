"""Our own attacks at every isolation level that this machine reaches: what they reach, what they leave, who pays."""

import subprocess
import sys

import pytest
from sandbox_attacks import own_attacks
from sandbox_levels import LEVELS, NOBODY, check, run_cases, why_not_as_nobody

pytestmark = pytest.mark.unit

# What confines is tested at every level; what ends a step and its processes with and without namespaces; what code
# does to its own process at the weakest level. (The given attacks, some of each kind, run at every level.)
_STRONGEST, _WEAKEST = LEVELS[0], LEVELS[-1]
_ENDING = ("processes", "memory", "disk")
_OWN_PROCESS = ("time", "output", "exit", "fork", "limits", "judge", "protocol")


def levels_for(case):
    category = case.name.partition("/")[0]
    if case.name == "processes/fork_bomb":  # it has a test of its own
        return []
    if category in _OWN_PROCESS:
        return [_WEAKEST]
    return [_STRONGEST, _WEAKEST] if category in _ENDING else LEVELS


CASES = [
    pytest.param(level, case.name, id=f"{level}-{case.name}") for case in own_attacks() for level in levels_for(case)
]


@pytest.mark.parametrize(("level", "case"), CASES)
def test_an_attack_reaches_nothing_and_the_session_goes_on(level, case, request):
    check(request, level, case)


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_the_case_runner_is_who_it_is_said_to_be(level, request):
    identity = check(request, level, None)
    assert identity["level"] == level.number
    assert "left" in identity  # the sandboxes were closed, and nothing of them lives
    assert identity["left"] == {}
    if level.nobody:
        assert identity["uids"] == [NOBODY] * 3
        assert identity["groups"] == []
        assert int(identity["effective"], 16) == int(identity["permitted"], 16) == 0


def test_without_namespaces_a_fork_bomb_ends_in_time_three_times_under_load():
    if _WEAKEST.nobody and (reason := why_not_as_nobody()):
        pytest.skip(reason)
    loads = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        facts = run_cases(_WEAKEST, ["processes/fork_bomb"] * 3)
    finally:
        for load in loads:
            load.kill()
            load.wait()
    results = [fact for fact in facts if "case" in fact]
    assert len(results) == 3, facts
    for result in results:
        assert result["problems"] == [], result
