#!/usr/bin/env bash
# Serves DataPRM's weights with vLLM on a GPU machine, as an OpenAI-compatible endpoint for `prm.endpoint`.
#
#   launch/serve_prm.sh /models/DataPRM-4B                    # port 19002, all GPUs as replicas of one
#   PORT=8000 TENSOR_PARALLEL=4 launch/serve_prm.sh MODEL
#
# then:  python -m datapm_rl.train +recipe=dabench prm.verifier=generative prm.endpoint=http://THIS_HOST:19002/v1
#
# PORT               where it listens (19002)
# TENSOR_PARALLEL    GPUs of one replica (1: a 4B model fits one)
# DATA_PARALLEL      replicas (all visible GPUs / TENSOR_PARALLEL)
# MAX_MODEL_LEN      context in tokens (32768: keep equal to prm.context_tokens)
# GPU_MEMORY         share of each GPU's memory (0.9)
# SERVED_NAME        the model's name at the endpoint (dataprm)
# Not tested where this was written: there was no GPU.
set -euo pipefail

fail() {
    echo "[serve_prm] ERROR: $*" >&2
    exit 2
}

MODEL="${1:-}"
[[ -n "$MODEL" ]] || fail "no model given: launch/serve_prm.sh FOLDER_OR_HUB_NAME"
[[ "$MODEL" != /* || -f "$MODEL/config.json" ]] || fail "$MODEL has no config.json: give a Hugging Face model folder"
command -v vllm >/dev/null || fail "vllm is not installed here: pip install -e .[gpu] on a GPU machine"

TENSOR_PARALLEL="${TENSOR_PARALLEL:-1}"
if [[ -z "${DATA_PARALLEL:-}" ]]; then
    gpus="$(nvidia-smi --list-gpus 2>/dev/null | wc -l)"
    ((gpus >= TENSOR_PARALLEL)) || fail "$gpus GPUs visible and TENSOR_PARALLEL=$TENSOR_PARALLEL: lower it, or run on a GPU node"
    DATA_PARALLEL=$((gpus / TENSOR_PARALLEL))
fi

exec vllm serve "$MODEL" \
    --served-model-name "${SERVED_NAME:-dataprm}" \
    --host 0.0.0.0 --port "${PORT:-19002}" \
    --tensor-parallel-size "$TENSOR_PARALLEL" --data-parallel-size "$DATA_PARALLEL" \
    --max-model-len "${MAX_MODEL_LEN:-32768}" --gpu-memory-utilization "${GPU_MEMORY:-0.9}" \
    --enable-prefix-caching
