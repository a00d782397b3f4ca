# shellcheck shell=bash
# Makes the Python environment. Sourced by quickstart.sh and test.sh; sets PYTHON.
#
# The environment is .venv in the repository, or the folder named by DATAPM_RL_VENV. A stamp in it holds a hash of
# all that decides its contents; it is written last, so an interrupted installation is done again and a finished
# one costs nothing.
#
# DATAPM_RL_VENV      where the environment is made (default: .venv)
# DATAPM_RL_PYTHON    the Python 3.11 to make it with (default: the first found)

set -euo pipefail

REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${DATAPM_RL_VENV:-$REPO/.venv}"
[[ "$VENV" == /* ]] || VENV="$PWD/$VENV"
TORCH="torch==2.13.0" # as in pyproject.toml's extra `cpu`
TORCH_CPU_INDEX="https://download.pytorch.org/whl/cpu"
NEEDED_GB=5

# One BLAS thread per process: Ray runs many processes on few cores. Nothing is fetched from a model hub unasked.
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false RAY_USAGE_STATS_ENABLED=0
export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}"

say() { echo "[datapm_rl] $*"; }
fail() {
    echo "[datapm_rl] ERROR: $*" >&2
    exit 1
}

is_python311() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${DATAPM_RL_PYTHON:+"$DATAPM_RL_PYTHON"} python3.11 python3 python; do
        if is_python311 "$candidate"; then
            command -v "$candidate"
            return
        fi
        if [[ "$candidate" == "${DATAPM_RL_PYTHON:-}" ]]; then
            fail "DATAPM_RL_PYTHON=$candidate is not a Python 3.11 that runs: name one, or unset the variable."
        fi
    done
    fail "no Python 3.11 found (tried python3.11, python3, python): install it, or name it in DATAPM_RL_PYTHON."
}

# The hash over all that decides the environment's contents; the folder counts since the package is installed in place.
fingerprint() {
    {
        cat "$REPO/pyproject.toml" "$REPO/constraints.txt"
        echo "$REPO $TORCH"
        "$1" -VV
    } | sha256sum | cut -d' ' -f1
}

check_disk() {
    local free_gb
    free_gb=$(($(df -Pk "$(dirname "$VENV")" | awk 'NR == 2 { print $4 }') / 1024 / 1024))
    if ((free_gb < NEEDED_GB)); then
        fail "$free_gb GB free at $(dirname "$VENV") and the environment needs $NEEDED_GB GB:" \
            "free some space, or name another place in DATAPM_RL_VENV."
    fi
}

make_venv() {
    local python="$1" log="$2"
    if is_python311 "$VENV/bin/python" && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    if [[ -d "$VENV" && ! -f "$VENV/pyvenv.cfg" && -n "$(ls -A "$VENV")" ]]; then
        fail "$VENV exists and is not a Python environment: remove it, or name another place in DATAPM_RL_VENV."
    fi
    say "making the environment $VENV with $python"
    "$python" -m venv --clear "$VENV" >>"$log" 2>&1 ||
        fail "$python could not make an environment in $VENV ($(last_line "$log")); log: $log." \
            "On Debian and Ubuntu the module is a package of its own: apt install python3.11-venv."
}

last_line() { grep -v '^[[:space:]]*$' "$1" | tail -n 1; }

pip_install() {
    local log="$1"
    shift
    echo "\$ pip install $*" >>"$log"
    "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input "$@" >>"$log" 2>&1
}

index_unreachable() { grep -qE 'NewConnectionError|NameResolutionError|ConnectTimeout|ProxyError' "$1"; }

pip_failed() {
    local what="$1" log="$2" reason="see the log"
    if index_unreachable "$log"; then
        reason="the package index cannot be reached: check the network or the proxy"
    elif grep -q 'No space left on device' "$log"; then
        reason="the disk is full: free some space, or name another TMPDIR"
    fi
    grep -E -v "^WARNING: (Location|Retrying)|^[[:space:]]*$" "$log" | tail -n 8 | sed 's/^/    /' >&2
    fail "installing $what failed, $reason; log: $log"
}

# torch first and alone: left to the resolver, a package that wants any torch brings a CUDA build of several GB.
install_torch() {
    local log="$1"
    say "installing $TORCH, CPU build (200 MB)"
    pip_install "$log" "$TORCH+cpu" && return
    if index_unreachable "$log" || ! grep -q 'No matching distribution found' "$log"; then
        pip_failed "$TORCH" "$log"
    fi
    say "the package index has no CPU build of torch; asking $TORCH_CPU_INDEX"
    pip_install "$log" "$TORCH+cpu" --extra-index-url "$TORCH_CPU_INDEX" || pip_failed "$TORCH" "$log"
}

install_everything() {
    local log="$1"
    say "upgrading pip (an old one resolves these dependencies for ever)"
    pip_install "$log" --upgrade pip || pip_failed "pip" "$log"
    install_torch "$log"
    say "installing datapm_rl with the extras cpu and dev (170 packages, 2 to 3 minutes)"
    pip_install "$log" -e "${REPO}[cpu,dev]" -c "$REPO/constraints.txt" || pip_failed "datapm_rl" "$log"
    # A pip that was killed can leave half a package that the next one takes for a whole.
    "$PYTHON" -c 'import ray, torch, transformers, verl' >>"$log" 2>&1 ||
        fail "what was installed does not import ($(last_line "$log")): remove $VENV and run this again; log: $log"
}

make_environment() {
    local python stamp="$VENV/.datapm_rl_installed" log start=$SECONDS
    PYTHON="$VENV/bin/python"
    if is_python311 "$PYTHON" && [[ "$(cat "$stamp" 2>/dev/null)" == "$(fingerprint "$PYTHON")" ]]; then
        say "environment $VENV is up to date"
        return
    fi
    python="$(find_python)"
    mkdir -p "$(dirname "$VENV")" || fail "cannot make the folder $(dirname "$VENV"): name another in DATAPM_RL_VENV."
    exec 9<"$REPO" # the lock is on the folder itself: nothing to clean up after a kill
    if ! flock -n 9; then
        say "another installation from $REPO is running; waiting for it"
        flock 9
        exec 9<&-
        make_environment
        return
    fi
    check_disk
    log="$(mktemp "${TMPDIR:-/tmp}/datapm_rl_install.XXXXXX.log")"
    rm -f "$stamp"
    make_venv "$python" "$log"
    install_everything "$log"
    fingerprint "$PYTHON" >"$stamp.new"
    mv "$stamp.new" "$stamp"
    exec 9<&-
    say "environment ready in $((SECONDS - start)) s ($(du -sh "$VENV" | cut -f1)); log: $log"
}
