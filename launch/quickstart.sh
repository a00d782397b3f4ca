#!/usr/bin/env bash
# Makes the environment (first call: 2 to 3 minutes) and trains the quickstart policy on this machine's CPU.
# Arguments go to the trainer: `bash launch/quickstart.sh run.seed=2 run.name=second`.

# shellcheck source=launch/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$REPO" || exit
make_environment
say "training: python -m datapm_rl.train +recipe=quickstart $*"
exec "$PYTHON" -m datapm_rl.train +recipe=quickstart "$@"
