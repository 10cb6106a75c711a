#!/bin/sh
# Serves backends over HTTP: ./sandbox-server.sh --config FILE [--host HOST] [--port PORT] [BACKEND ...]
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
python="$here/.venv/bin/python"
[ -x "$python" ] || python=python3
exec "$python" -m mcp_servers --http "" "$@"
