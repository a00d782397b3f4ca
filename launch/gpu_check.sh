#!/usr/bin/env bash
# One command for a machine with one or more NVIDIA GPUs (24 GB and more each): does the whole of datapm_rl work on it?
#
#   launch/gpu_check.sh                      a 0.5B policy is downloaded (1 GB)
#   launch/gpu_check.sh /models/SMALL        a model folder that is there
#
# Makes an environment with the extra `gpu` (.venv-gpu, or DATAPM_RL_VENV), trains three steps of the dabench graph
# with vLLM rollouts, a verifier served by vLLM and the sandbox, compares rollout and trainer log-probs, and prints a
# verdict. Exit code 0: all is well. Flags after the folder go to `python -m datapm_rl.doctor gpu`.
#
# NOT RUN where it was written: there was no GPU. Checked there: the script up to its refusal for want of a GPU; that
# the run composes and passes verl's validation for 1 to 8 GPUs; the same check, judged the same way, on a CPU
# (`python -m datapm_rl.doctor gpu --twin`).

command -v nvidia-smi >/dev/null && nvidia-smi --list-gpus >/dev/null 2>&1 || {
    echo "[datapm_rl] ERROR: no NVIDIA GPU here (nvidia-smi --list-gpus): run this on a GPU node; the same graph on a" \
        "CPU is python -m datapm_rl.doctor gpu --twin" >&2
    exit 2
}
DATAPM_RL_VENV="${DATAPM_RL_VENV:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv-gpu}"
# shellcheck source=launch/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
TORCH="torch==2.11.0" # as in pyproject.toml's extra `gpu`
NEEDED_GB=30

install_everything() {
    local log="$1"
    pip_install "$log" --upgrade pip setuptools wheel ninja packaging || pip_failed "pip" "$log"
    say "installing $TORCH, CUDA build"
    pip_install "$log" "$TORCH" || pip_failed "$TORCH" "$log"
    say "installing datapm_rl with the extra gpu (flash-attn may compile for long)"
    pip_install "$log" -e "${REPO}[gpu]" --no-build-isolation || pip_failed "datapm_rl" "$log"
    "$PYTHON" -c 'import flash_attn, ray, torch, transformers, verl, vllm' >>"$log" 2>&1 ||
        fail "what was installed does not import ($(last_line "$log")): remove $VENV and run this again; log: $log"
}

cd "$REPO" || exit
make_environment
POLICY="${1:-}"
shift || true
if [[ -z "$POLICY" ]]; then
    POLICY="$REPO/runs/models/Qwen2.5-0.5B-Instruct"
    say "downloading Qwen/Qwen2.5-0.5B-Instruct to $POLICY"
    HF_HUB_OFFLINE=0 "$VENV/bin/hf" download Qwen/Qwen2.5-0.5B-Instruct --local-dir "$POLICY" >/dev/null ||
        fail "the download failed: fetch a small instruct model elsewhere and give its folder: launch/gpu_check.sh FOLDER"
fi
PATH="$VENV/bin:$PATH" exec python -m datapm_rl.doctor gpu --policy "$POLICY" "$@"
