#!/usr/bin/env bash
# Makes the environment and runs linters, types, import arrows and tests; stops at the first stage that fails.
# Arguments go to pytest: `bash launch/test.sh -k advantage`.

# shellcheck source=launch/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$REPO" || exit
make_environment
PATH="$VENV/bin:$PATH"

stage() {
    local name="$1" start=$SECONDS
    shift
    say "$name: $*"
    "$@" || fail "stage '$name' failed (exit code $?)"
    say "$name: passed in $((SECONDS - start)) s"
}

# pytest exits with 5 when nothing was selected: an error only if neither half of the tests ran.
tests_ran=0
tests() {
    local code=0
    python -m pytest "$@" || code=$?
    if ((code == 0)); then tests_ran=1; elif ((code == 5)); then code=0; fi
    return $code
}

stage "lint" ruff check .
stage "format" ruff format --check .
stage "types" mypy
stage "import arrows" lint-imports --no-logo
stage "unit tests" tests -m unit "$@"
stage "end-to-end tests" tests -m "not unit and not chaos" "$@"
((tests_ran)) || fail "no test was selected by: $*"
say "all stages passed in $SECONDS s"
