"""`agentflow tune`: the model behind any agent, trained on its own calls."""

import argparse
import sys
from importlib.util import find_spec

import anyio

from agentflow._terminal import printable
from agentflow.cli._output import Exit, print_json
from agentflow.cli._train import watch_training
from agentflow.errors import ConfigurationError
from agentflow.extras import missing_extra
from agentflow.runs import render_config
from agentflow.tuner import TuneConfig, load_tune_config, tune_run


def run_tune(given: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises AgentFlowError: one line, if it fails.
    """
    config = load_settings_of(given)
    if given.print_config:
        sys.stdout.write(render_config(config))
        return Exit.DONE
    if config.backbone == "debug":
        return _debug(config, as_json=given.json)
    check_backbone(config, "agentflow tune")
    return watch_training(tune_run(config, resume=given.resume), as_json=given.json)


def load_settings_of(given: argparse.Namespace) -> TuneConfig:
    """Return the settings of a command.

    :raises ConfigurationError: one line, if one can't be used.
    """
    backbone = {"backbone": given.backbone} if given.backbone else {}
    return load_tune_config(given.config, given.settings, backbone)


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
