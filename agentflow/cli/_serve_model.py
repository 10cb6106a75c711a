"""`agentflow serve-model`: serve a model with vLLM until Ctrl-C."""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from agentflow.cli._output import Exit, print_progress
from agentflow.errors import ConfigurationError
from agentflow.models import has_replicas
from agentflow.serving import ModelServer, ServingSettings, install_engine, keep_registered
from agentflow.settings import load_settings


def run_serve_model(given: argparse.Namespace) -> int:
    """Serve a model until Ctrl-C and return the exit status.

    :raises AgentFlowError: one line, if it can't be served.
    """
    if "=" in given.model:  # a setting: MODEL may be left out
        given.settings.insert(0, given.model)
        given.model = ""
    if given.install:
        install_engine(given.install, report=print_progress)
        if not given.model:
            return Exit.DONE
    if not given.model:
        raise ConfigurationError("serve-model: name a model: agentflow serve-model MODEL")
    settings = load_settings(ServingSettings, given.config, [f"model={given.model}", *given.settings])
    if given.address and not given.register:
        raise ConfigurationError("--address: the server is not registered; add --register, or leave it out")
    if given.register and not has_replicas(given.register):
        raise ConfigurationError("--register: write postgresql://user@host/database")
    return anyio.run(_serve, settings, given)


async def _serve(settings: ServingSettings, given: argparse.Namespace) -> int:
    with tempfile.NamedTemporaryFile("w", prefix="agentflow-key-") as key:

        async def serve(server: ModelServer) -> None:
            key.write(server.key)
            key.flush()
            show = partial(show_server, server, key.name, given.json)
            if given.register:
                await keep_registered(server, given.register, given.address, registered=show)
            else:
                show()
                await anyio.sleep_forever()

        return await serve_until_signal(settings, serve)


async def serve_until_signal(
    settings: ServingSettings, serve: Callable[[ModelServer], Awaitable[None]]
) -> int:
    """Serve a model until SIGINT or SIGTERM, which is the regular end; return the exit status.

    :param serve: runs beside the server once it answers.
    """
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
                await serve(server)
    return ended


def show_server(server: ModelServer, key: str, as_json: bool, registered: str = "") -> None:
    """Print the address of a server, and the file with its key."""
    if as_json:
        said = {"url": server.url, "model": server.model, "key_file": key, "pid": os.getpid()}
        sys.stdout.write(json.dumps({**said, **({"registered": registered} if registered else {})}) + "\n")
    else:
        known = f"; it is registered as {registered}" if registered else ""
        sys.stdout.write(f"{server.model} is served at {server.url}; its key is in {key}{known}\n")
    sys.stdout.flush()
