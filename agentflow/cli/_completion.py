"""`agentflow completion`: the completion script of a shell, generated from the parsers."""

import argparse
import sys
from functools import partial

import shtab

from agentflow.cli._main import command_parser
from agentflow.cli._output import Exit, write_out


def run_completion(arguments: argparse.Namespace) -> int:
    """Print the script and return the exit status."""
    script = shtab.complete(command_parser(), shell=arguments.shell)
    return Exit.DONE if write_out(partial(_print, script)) else Exit.INTERRUPTED


def _print(script: str) -> None:
    sys.stdout.write(f"{script}\n")
