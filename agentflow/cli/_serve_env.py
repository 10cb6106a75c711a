"""`agentflow serve-env`: serve tasks with their sandboxes to agents of other frameworks until Ctrl-C."""

import argparse
import json
import os
import secrets
import signal
import sys
from contextlib import ExitStack
from urllib.parse import urlsplit

import anyio

from agentflow.cli._output import Exit
from agentflow.errors import ConfigurationError
from agentflow.interop import EnvironmentLimits, open_task_host, serve_tasks, verifiers_package
from agentflow.rollouts import RolloutConfig, load_rollout_config
from mcp_servers.serving import token_file, token_path

TOKEN = "AGENTFLOW_ENV_TOKEN"
"""Environment variable with the token that requests must carry."""
NO_TOKEN = "none"
"""Token that disables tokens."""


def run_serve_env(arguments: argparse.Namespace) -> int:
    """Serve tasks until Ctrl-C and return the exit status.

    :raises AgentFlowError: one line, if they can't be served.
    """
    if arguments.verifiers_package:
        sys.stdout.write(f"{verifiers_package()}\n")
        return Exit.DONE
    overrides = [*([f"data_path={arguments.data}"] if arguments.data else []), *arguments.settings]
    config = load_rollout_config(arguments.config, overrides)
    if arguments.idle <= 0:
        raise ConfigurationError(f"--idle: {arguments.idle:g} is no time; write seconds above 0")
    return anyio.run(_serve, config, arguments)


async def _serve(config: RolloutConfig, arguments: argparse.Namespace) -> int:
    ended = Exit.DONE
    token = arguments.token or os.environ.get(TOKEN, "")
    generated = "" if token else secrets.token_urlsafe(32)
    token = "" if token == NO_TOKEN else token or generated
    limits = EnvironmentLimits(idle_seconds=arguments.idle)
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals, ExitStack() as stack:
        async with anyio.create_task_group() as tasks:

            async def listen() -> None:
                nonlocal ended
                async for _ in signals:
                    ended = Exit.INTERRUPTED
                    tasks.cancel_scope.cancel()

            tasks.start_soon(listen)
            async with (
                open_task_host(config) as opened,
                serve_tasks(
                    opened, address=arguments.host, port=arguments.port, token=token, limits=limits
                ) as url,
            ):
                fields = {"url": url, "tasks": len(opened.tasks), "pid": os.getpid()}
                shown = f"tasks of {opened.name} ({fields['tasks']}) are served at {url}"
                if generated:
                    path = token_path(urlsplit(url).port or 0)
                    stack.enter_context(token_file(path, generated))
                    fields["token_file"] = str(path)
                    shown += f"; the token is in {path}"
                sys.stdout.write((json.dumps(fields) if arguments.json else shown) + "\n")
                sys.stdout.flush()
                # The server runs until a signal; that is its regular end.
                await anyio.sleep_forever()
    return ended
