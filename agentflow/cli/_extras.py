"""`agentflow extras`: optional dependencies of this interpreter."""

import argparse
import difflib
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

from agentflow.cli._output import Exit, print_json, print_wide, write_out
from agentflow.errors import AgentFlowError, ConfigurationError
from agentflow.extras import DISTRIBUTION, PURPOSES, Extra, install_argv, list_extras


def run_extras(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises ConfigurationError: if a name is unknown, or nothing can install here.
    :raises AgentFlowError: if the installation failed.
    """
    extras = list_extras()
    if not extras:
        raise ConfigurationError(
            f"{sys.executable} has no metadata of {DISTRIBUTION}; install it with pip or uv from its wheel or checkout"
        )
    if arguments.action == "add":
        return _add(extras, arguments.names, dry_run=arguments.dry_run)
    return Exit.DONE if write_out(partial(_show, extras, as_json=arguments.json)) else Exit.INTERRUPTED


def _show(extras: Sequence[Extra], *, as_json: bool) -> None:
    if as_json:
        print_json([extra._asdict() for extra in extras])
        return
    from rich.table import Table

    table = Table("extra", "state", "purpose", box=None, pad_edge=False)
    for extra in extras:
        table.add_row(extra.name, _state(extra), PURPOSES.get(extra.name, ""))
    print_wide(table, "\nagentflow extras add NAME … installs into this interpreter.")


def _state(extra: Extra) -> str:
    if not extra.missing:
        return "installed"
    return "partly" if len(extra.missing) < len(extra.requirements) else "missing"


def _add(extras: Sequence[Extra], names: Sequence[str], *, dry_run: bool) -> int:
    by_name = {extra.name: extra for extra in extras}
    for name in names:
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.5)
            meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(by_name)}"
            raise ConfigurationError(f"extras: {name!r} is unknown; {meant}")
    wanted = dict.fromkeys(text for name in names for text in by_name[name].requirements)
    command = install_argv(wanted)
    if not command:
        raise ConfigurationError(
            f"extras: {sys.executable} has no pip, and there is no uv; run {sys.executable} -m ensurepip"
        )
    if dry_run:
        sys.stdout.write(shlex.join(command) + "\n")
        return Exit.DONE
    if not any(by_name[name].missing for name in names):
        sys.stdout.write(f"installed already: {', '.join(names)}\n")
        return Exit.DONE
    # Not in the working directory: pip would be imported from it, and uv reads its pyproject.toml and uv.toml.
    status = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, cwd=sys.prefix).returncode
    if status:
        raise AgentFlowError(f"extras: the installer ended with {status}; its messages are above")
    sys.stdout.write(f"installed: {', '.join(names)}\n")
    return Exit.DONE
