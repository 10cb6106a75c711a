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


def run_serve_model(arguments: argparse.Namespace) -> int:
    """Serve a model until Ctrl-C and return the exit status.

    :raises AgentFlowError: one line, if it can't be served.
    """
    if "=" in arguments.model:  # a setting: MODEL may be left out
        arguments.settings.insert(0, arguments.model)
        arguments.model = ""
    if arguments.install:
        install_engine(arguments.install, report=print_progress)
        if not arguments.model:
            return Exit.DONE
    if not arguments.model:
        raise ConfigurationError("serve-model: name a model: agentflow serve-model MODEL")
    settings = load_settings(
        ServingSettings, arguments.config, [f"model={arguments.model}", *arguments.settings]
    )
    if arguments.address and not arguments.register:
        raise ConfigurationError("--address: the server is not registered; add --register, or leave it out")
    if arguments.register and not has_replicas(arguments.register):
        raise ConfigurationError("--register: write postgresql://user@host/database")
    return anyio.run(_serve, settings, arguments)


async def _serve(settings: ServingSettings, arguments: argparse.Namespace) -> int:
    with tempfile.NamedTemporaryFile("w", prefix="agentflow-key-") as key:

        async def serve(server: ModelServer) -> None:
            key.write(server.key)
            key.flush()
            show = partial(show_server, server, key.name, arguments.json)
            if arguments.register:
                await keep_registered(server, arguments.register, arguments.address, registered=show)
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
        fields = {"url": server.url, "model": server.model, "key_file": key, "pid": os.getpid()}
        sys.stdout.write(json.dumps({**fields, **({"registered": registered} if registered else {})}) + "\n")
    else:
        registration = f"; it is registered as {registered}" if registered else ""
        sys.stdout.write(f"{server.model} is served at {server.url}; its key is in {key}{registration}\n")
    sys.stdout.flush()
