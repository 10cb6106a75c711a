#!/usr/bin/env bash
# Serves the model that train_with_logs.sh trains, until Ctrl-C, and keeps a copy of the output: bash train/serve_with_logs.sh [key=value ...]
set -euo pipefail
here=$(dirname -- "$0")
python="$here/../.venv/bin/python"
[ -x "$python" ] || python=python3
logs=${LOGS:-training_results}
mkdir -p "$logs"
"$python" -m agentflow.cli train --serve --config "${CONFIG:-$here/config.yaml}" "$@" 2>&1 | tee -ai "$logs/serve.log"
