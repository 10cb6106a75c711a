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


def run_serve_env(given: argparse.Namespace) -> int:
    """Serve tasks until Ctrl-C and return the exit status.

    :raises AgentFlowError: one line, if they can't be served.
    """
    if given.verifiers_package:
        sys.stdout.write(f"{verifiers_package()}\n")
        return Exit.DONE
    overrides = [*([f"data_path={given.data}"] if given.data else []), *given.settings]
    config = load_rollout_config(given.config, overrides)
    if given.idle <= 0:
        raise ConfigurationError(f"--idle: {given.idle:g} is no time; write seconds above 0")
    return anyio.run(_serve, config, given)


async def _serve(config: RolloutConfig, given: argparse.Namespace) -> int:
    ended = Exit.DONE
    token = given.token or os.environ.get(TOKEN, "")
    generated = "" if token else secrets.token_urlsafe(32)
    token = "" if token == NO_TOKEN else token or generated
    limits = EnvironmentLimits(idle_seconds=given.idle)
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
                serve_tasks(opened, address=given.host, port=given.port, token=token, limits=limits) as url,
            ):
                known = {"url": url, "tasks": len(opened.tasks), "pid": os.getpid()}
                shown = f"tasks of {opened.name} ({known['tasks']}) are served at {url}"
                if generated:
                    path = token_path(urlsplit(url).port or 0)
                    stack.enter_context(token_file(path, generated))
                    known["token_file"] = str(path)
                    shown += f"; the token is in {path}"
                sys.stdout.write((json.dumps(known) if given.json else shown) + "\n")
                sys.stdout.flush()
                # The server runs until a signal; that is its regular end.
                await anyio.sleep_forever()
    return ended
