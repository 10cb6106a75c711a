"""`agentflow serve-env`: serve tasks with their sandboxes to agents of other frameworks until Ctrl-C."""

import argparse
import json
import os
import signal
import sys

import anyio

from agentflow.cli._output import Exit
from agentflow.errors import ConfigurationError
from agentflow.interop import EnvironmentLimits, open_task_host, serve_tasks, verifiers_package
from agentflow.rollout import RolloutConfig, load_rollout_config

TOKEN = "AGENTFLOW_ENV_TOKEN"
"""Environment variable with the token that requests must carry."""


def run_serve_env(given: argparse.Namespace) -> int:
    """Serve tasks until Ctrl-C and return the exit status.

    :raises AgentFlowError: one line, if they can't be served.
    """
    if given.verifiers_package:
        sys.stdout.write(f"{verifiers_package()}\n")
        return Exit.DONE
    overrides = [*([f"data_path={given.data}"] if given.data else []), *given.settings]
    config = load_rollout_config(given.config, overrides)
    limits = EnvironmentLimits(sessions=config.max_sandboxes, idle_seconds=given.idle)
    if given.idle <= 0:
        raise ConfigurationError(f"--idle: {given.idle:g} is no time; write seconds above 0")
    return anyio.run(_serve, config, given.host, given.port, limits, given.json)


async def _serve(
    config: RolloutConfig, host: str, port: int, limits: EnvironmentLimits, as_json: bool
) -> int:
    ended = Exit.DONE
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
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
                    opened, address=host, port=port, token=os.environ.get(TOKEN, ""), limits=limits
                ) as url,
            ):
                known = {"url": url, "tasks": len(opened.tasks), "pid": os.getpid()}
                shown = f"tasks of {opened.name} ({known['tasks']}) are served at {url}"
                sys.stdout.write((json.dumps(known) if as_json else shown) + "\n")
                sys.stdout.flush()
                # The server runs until a signal; that is its regular end.
                await anyio.sleep_forever()
    return ended
