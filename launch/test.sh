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

# Both halves of the tests at once, since either leaves half of two cores idle; the unit tests' output comes last.
# pytest exits with 5 when nothing was selected: an error only if neither half ran a test.
both_halves() {
    local log unit=0 end_to_end=0
    log="$(mktemp)"
    python -m pytest -m unit "$@" >"$log" 2>&1 &
    python -m pytest -m "not unit and not chaos" "$@" || end_to_end=$?
    wait $! || unit=$?
    cat "$log"
    rm "$log"
    ((unit == 5 && end_to_end == 5)) && fail "no test was selected by: $*"
    ((unit == 0 || unit == 5)) && ((end_to_end == 0 || end_to_end == 5))
}

stage "lint" ruff check .
stage "format" ruff format --check .
stage "types" mypy
stage "import arrows" lint-imports --no-logo
stage "tests" both_halves "$@"
say "all stages passed in $SECONDS s"
