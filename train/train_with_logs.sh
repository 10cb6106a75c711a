#!/usr/bin/env bash
# Trains a planner with the settings in CONFIG or train/config.yaml and keeps a copy of the output. Run serve_with_logs.sh first:
# bash train/train_with_logs.sh [key=value ...]
set -euo pipefail
here=$(dirname -- "$0")
python="$here/../.venv/bin/python"
[ -x "$python" ] || python=python3
logs=${LOGS:-training_results}
mkdir -p "$logs"
"$python" -m agentflow.cli train --config "${CONFIG:-$here/config.yaml}" "$@" 2>&1 | tee -ai "$logs/train.log"
