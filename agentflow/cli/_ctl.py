"""`agentflow ctl`: calls the control server of an active run."""

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

import anyio

from agentflow._terminal import printable
from agentflow._typeguards import is_list, is_object
from agentflow.cli._output import Exit
from agentflow.errors import AgentFlowError, ConfigurationError, ErrorKind, ToolFailure
from agentflow.sandbox import Sandbox
from agentflow.synthesis import load_seeds
from agentflow.synthesis.pipeline import CONTROL_FILE


class _ControlAddress(NamedTuple):
    """Address of a control server."""

    url: str
    token: str


def run_ctl(given: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises AgentFlowError: one line, if it fails.
    """
    arguments: dict[str, object] = {}
    if given.action == "add":
        seeds = [seed for text in given.seeds for seed in load_seeds(text)]
        arguments = {"seeds": seeds, "name": given.name}
    verb = "add_seeds" if given.action == "add" else given.action
    answer = anyio.run(_ask, _address(Path(given.dir)), f"run:{verb}", arguments)
    if given.json:
        sys.stdout.write(json.dumps(answer) + "\n")
    else:
        sys.stdout.writelines(
            f"{printable(f'{name:<16} {_text(value)}')}\n" for name, value in answer.items()
        )
    return Exit.DONE


async def _ask(address: _ControlAddress, tool: str, arguments: dict[str, object]) -> dict[str, object]:
    try:
        async with Sandbox(address.url, token=address.token, timeout=60) as sandbox:
            result = await sandbox.execute(tool, arguments)
    except ToolFailure as failure:
        if failure.kind is ErrorKind.UNAVAILABLE:
            raise AgentFlowError(f"no run responds at {address.url}: it has ended or was killed") from None
        raise AgentFlowError(failure.message) from None
    if result.error is None:
        return result.data
    wrong = result.error.kind is ErrorKind.BAD_ARGUMENTS
    raise (ConfigurationError if wrong else AgentFlowError)(result.error.message)


def _address(folder: Path) -> _ControlAddress:
    file = folder / CONTROL_FILE
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return _ControlAddress(record["url"], record["token"])
    except FileNotFoundError:
        message = f"no run is active in {folder} (there is no {CONTROL_FILE}); name its output_dir with --dir"
        raise AgentFlowError(message) from None
    except OSError as error:
        raise AgentFlowError(f"{file}: can't be read: {error.strerror}") from None
    except (ValueError, KeyError):
        raise AgentFlowError(f"{file}: damaged; stop the run by a signal and start it again") from None


def _text(value: object) -> str:
    if is_object(value):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"
    return ", ".join(map(str, value)) if is_list(value) else str(value)
