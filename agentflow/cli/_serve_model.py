"""`agentflow serve-model`: serve a model with vLLM until Ctrl-C."""

import argparse
import json
import os
import signal
import sys
import tempfile

import anyio

from agentflow.cli._output import Exit
from agentflow.serving import ModelServer, ServingSettings
from agentflow.settings import load_settings


def run_serve_model(given: argparse.Namespace) -> int:
    """Serve a model until Ctrl-C and return the exit status.

    :raises AgentFlowError: one line, if it can't be served.
    """
    settings = load_settings(ServingSettings, given.config, [f"model={given.model}", *given.settings])
    return anyio.run(_serve, settings, given.json)


async def _serve(settings: ServingSettings, as_json: bool) -> int:
    ended = Exit.DONE
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as tasks:

            async def listen() -> None:
                nonlocal ended
                async for _ in signals:
                    ended = Exit.INTERRUPTED
                    tasks.cancel_scope.cancel()

            tasks.start_soon(listen)
            async with ModelServer(settings) as server:
                with tempfile.NamedTemporaryFile("w", prefix="agentflow-key-") as key:
                    key.write(server.key)
                    key.flush()
                    _show(server, key.name, as_json)
                    # The server runs until a signal; that is its regular end.
                    await anyio.sleep_forever()
    return ended


def _show(server: ModelServer, key: str, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(
            json.dumps({"url": server.url, "model": server.model, "key_file": key, "pid": os.getpid()}) + "\n"
        )
    else:
        sys.stdout.write(f"{server.model} is served at {server.url}; its key is in {key}\n")
    sys.stdout.flush()
