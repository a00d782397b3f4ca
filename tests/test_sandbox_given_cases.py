"""The shared attacks and the shared harmless snippets, at every isolation level that this machine reaches."""

import pytest
from sandbox_cases import SHARED, given_attacks, harmless, lacking
from sandbox_levels import LEVELS, check

pytestmark = pytest.mark.unit

HARMLESS = {case.name: case for case in harmless()}


def at_every_level(names):
    pairs = [(level, name) for level in LEVELS for name in names]
    elsewhere = (LEVELS[-1], "given/16_fork_bomb")  # three times in `test_sandbox_hostile`
    return [pytest.param(level, name, id=f"{level}-{name}") for level, name in pairs if (level, name) != elsewhere]


@pytest.mark.skipif(not (SHARED / "hostile").is_dir(), reason="the shared cases are not here")
@pytest.mark.parametrize(("level", "case"), at_every_level([case.name for case in given_attacks()]))
def test_a_given_attack_ends_as_expected_and_the_session_goes_on(level, case, request):
    check(request, level, case)


@pytest.mark.parametrize(("level", "case"), at_every_level(HARMLESS))
def test_a_harmless_snippet_works(level, case, request):
    if missing := lacking(HARMLESS[case]):
        pytest.skip(f"{missing} is not installed")
    check(request, level, case)
