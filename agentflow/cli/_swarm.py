"""`agentflow swarm`: a training whose episodes are played by clients, and a view of it."""

import argparse
import os
import sys
from functools import partial

import anyio

from agentflow._terminal import printable
from agentflow.cli._output import Exit, print_json
from agentflow.cli._train import watch_training
from agentflow.cli._tune import check_backbone, load_settings_of
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.gateway import GatewayClient, GatewayStatus
from agentflow.runs import on_terminal, render_config
from agentflow.tuner import TOKEN_VARIABLE, serve_run

EVERY_SECONDS = 2.0
"""Interval of `watch`."""
_PATIENCE = 5.0


def run_swarm(given: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises AgentFlowError: one line, if it fails.
    """
    return _serve(given) if given.action == "serve" else anyio.run(partial(_watch, given))


def _serve(given: argparse.Namespace) -> int:
    config = load_settings_of(given)
    if given.print_config:
        sys.stdout.write(render_config(config))
        return Exit.DONE
    check_backbone(config, "agentflow swarm serve")

    def say(line: str) -> None:
        sys.stderr.write(f"agentflow: {printable(line)}\n")
        sys.stderr.flush()

    return watch_training(serve_run(config, resume=given.resume, say=say), as_json=given.json)


async def _watch(given: argparse.Namespace) -> int:
    """Print the state of a run until it is over."""
    token = given.token or os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise ConfigurationError(f"token: it is missing; pass --token, or set {TOKEN_VARIABLE}")
    last = ""
    async with GatewayClient(given.url, token, patience=_PATIENCE) as client:
        while True:
            try:
                status = await client.status()
            except RunStopped as stop:
                if last and stop.cause is StopCause.MODEL:
                    sys.stderr.write("agentflow: the run has ended\n")
                    return Exit.DONE
                raise
            line = swarm_line(status)
            if given.json:
                print_json(status)
            elif line != last:
                _show(line, replace=bool(last))
            last = line
            if given.once or status.finished:
                return Exit.DONE
            await anyio.sleep(EVERY_SECONDS)


def swarm_line(status: GatewayStatus) -> str:
    """Return the state of a run as one line."""
    states = ", ".join(f"{count} {name}" for name, count in status.states.items() if count)
    calls = f"{status.calls} calls, {status.in_flight} running"
    state = "finished" if status.finished else "weights change" if status.held else "open"
    return f"{state}: version {status.version}; episodes: {states or 'none'}; {calls}"


def _show(line: str, *, replace: bool) -> None:
    """Print a line; on a terminal it replaces the one before."""
    text = printable(line)
    if on_terminal() and replace:
        text = f"\x1b[1A\x1b[2K{text}"
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
