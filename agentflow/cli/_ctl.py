"""`agentflow ctl`: speaks to the control server of a run that is going on."""

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple, cast

import anyio

from agentflow.cli._output import Exit
from agentflow.errors import AgentFlowError, ConfigurationError, ErrorKind, ToolFailure
from agentflow.sandbox import Sandbox
from agentflow.synthesis import load_seeds
from agentflow.synthesis.pipeline import CONTROL_FILE

__all__ = ["run_ctl"]


class _Address(NamedTuple):
    """Where a run is reached."""

    url: str
    token: str


def run_ctl(given: argparse.Namespace) -> int:
    """Do what the arguments say; gives the exit status.

    :raises AgentFlowError: in one line, if it can't be done.
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
        sys.stdout.writelines(f"{name:<16} {_words(value)}\n" for name, value in answer.items())
    return Exit.DONE


async def _ask(address: _Address, tool: str, arguments: dict[str, object]) -> dict[str, object]:
    try:
        async with Sandbox(address.url, token=address.token, timeout=60) as sandbox:
            result = await sandbox.execute(tool, arguments)
    except ToolFailure as failure:
        if failure.kind is ErrorKind.UNAVAILABLE:
            raise AgentFlowError(f"no run answers at {address.url}: it has ended or was killed") from None
        raise AgentFlowError(failure.message) from None
    if result.error is None:
        return result.data
    wrong = result.error.kind is ErrorKind.BAD_ARGUMENTS
    raise (ConfigurationError if wrong else AgentFlowError)(result.error.message)


def _address(folder: Path) -> _Address:
    file = folder / CONTROL_FILE
    try:
        said = cast("dict[str, str]", json.loads(file.read_text(encoding="utf-8")))
        return _Address(said["url"], said["token"])
    except FileNotFoundError:
        message = (
            f"no run is going on in {folder} (there is no {CONTROL_FILE}); name its output_dir with --dir"
        )
        raise AgentFlowError(message) from None
    except OSError as error:
        raise AgentFlowError(f"{file}: can't be read: {error.strerror}") from None
    except (ValueError, KeyError):
        raise AgentFlowError(f"{file}: damaged; stop the run by a signal and start it again") from None


def _words(value: object) -> str:
    if isinstance(value, dict):
        return (
            ", ".join(f"{name} {count}" for name, count in cast("dict[str, object]", value).items()) or "none"
        )
    if isinstance(value, list):
        return ", ".join(map(str, cast("list[object]", value)))
    return str(value)
