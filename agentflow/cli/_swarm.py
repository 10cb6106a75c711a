"""`agentflow tune` and `agentflow swarm`: training the model behind any agent, with episodes of its own or of clients."""

import argparse
import os
import sys
from functools import partial
from importlib.util import find_spec

import anyio

from agentflow._terminal import printable
from agentflow.cli._output import Exit, print_json
from agentflow.cli._train import watch_training
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.extras import missing_extra
from agentflow.gateway import GatewayClient, GatewayStatus
from agentflow.runs import on_terminal, render_config
from agentflow.tuner import TOKEN_VARIABLE, TuneConfig, load_tune_config, serve_run, tune_run


def run_tune(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises AgentFlowError: one line, if it fails.
    """
    config = load_settings_of(arguments)
    if arguments.print_config:
        sys.stdout.write(render_config(config))
        return Exit.DONE
    if config.backbone == "debug":
        return _debug(config, as_json=arguments.json)
    check_backbone(config, "agentflow tune")
    return watch_training(tune_run(config, resume=arguments.resume), as_json=arguments.json)


def load_settings_of(arguments: argparse.Namespace) -> TuneConfig:
    """Return the settings of a command.

    :raises ConfigurationError: one line, if one can't be used.
    """
    backbone = {"backbone": arguments.backbone} if arguments.backbone else {}
    return load_tune_config(arguments.config, arguments.settings, backbone)


def check_backbone(config: TuneConfig, command: str) -> None:
    """Refuse a training that lacks its libraries.

    :raises ConfigurationError: if there is no torch.
    """
    if config.backbone != "debug" and not find_spec("torch"):
        raise ConfigurationError(missing_extra(command, "train"))


def _debug(config: TuneConfig, *, as_json: bool) -> int:
    # No display and no signal handlers, so that breakpoints work.
    output = sys.stderr if as_json else sys.stdout

    def show(line: str) -> None:
        print(printable(line), file=output, flush=True)

    outcome = anyio.run(tune_run(config, say=show).run)
    if as_json:
        print_json({"status": 0, "stopped": None, "output_dir": str(config.output), "outcome": outcome})
    return Exit.DONE


EVERY_SECONDS = 2.0
"""Interval of `watch`."""
_PATIENCE = 5.0


def run_swarm(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises AgentFlowError: one line, if it fails.
    """
    return _serve(arguments) if arguments.action == "serve" else anyio.run(partial(_watch, arguments))


def _serve(arguments: argparse.Namespace) -> int:
    config = load_settings_of(arguments)
    if arguments.print_config:
        sys.stdout.write(render_config(config))
        return Exit.DONE
    check_backbone(config, "agentflow swarm serve")

    def print_line(line: str) -> None:
        sys.stderr.write(f"agentflow: {printable(line)}\n")
        sys.stderr.flush()

    return watch_training(serve_run(config, resume=arguments.resume, say=print_line), as_json=arguments.json)


async def _watch(arguments: argparse.Namespace) -> int:
    """Print the state of a run until it is over."""
    token = arguments.token or os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise ConfigurationError(f"token: it is missing; pass --token, or set {TOKEN_VARIABLE}")
    last = ""
    async with GatewayClient(arguments.url, token, patience=_PATIENCE) as client:
        while True:
            try:
                status = await client.status()
            except RunStopped as stop:
                if last and stop.cause is StopCause.MODEL:
                    sys.stderr.write("agentflow: the run has ended\n")
                    return Exit.DONE
                raise
            line = swarm_line(status)
            if arguments.json:
                print_json(status)
            elif line != last:
                _show(line, replace=bool(last))
            last = line
            if arguments.once or status.finished:
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
