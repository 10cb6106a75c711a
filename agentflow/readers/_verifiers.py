"""Environments of verifiers: their tasks, and episodes played in verifiers' own environment by a program of its Python."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import anyio

from agentflow._decoding import JsonError, decode_json
from agentflow._import_path import own_environment
from agentflow._typeguards import is_list, is_object
from agentflow.errors import AgentFlowError, ConfigurationError, error_line
from agentflow.readers._reading import Located, take_option
from agentflow.readers._settings import ParsedSource, ReaderSettings
from agentflow.trace import Task

SOURCE: Final = "verifiers"
"""`source` of these tasks, and the field with their environment and number."""
PROGRAM: Final = Path(__file__).parents[1] / "interop" / "_inside" / "_play.py"
"""Program that runs in verifiers' environment."""
_SECONDS: Final = 300.0
_DEFAULT_AGENT: Final[Mapping[str, Any]] = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
"""A loop of model and tools that executes no code itself; other agents need a runtime of their own."""


class VerifiersFailure(AgentFlowError):
    """An environment of verifiers can't be loaded, or its episode failed. One line."""


def read_verifiers(source: ParsedSource, settings: ReaderSettings) -> Iterator[Located]:
    """Iterate over the tasks of an environment: `verifiers:TASKSET?size=100`.

    `python` names the Python of verifiers' environment; `env` has further settings of the environment, as JSON; other
    options are settings of the taskset.

    :raises ConfigurationError: one line, if verifiers is missing, or the environment can't be loaded.
    """
    start, size = take_option(source, "start", int, 0), take_option(source, "size", int, 1_000)
    python = take_option(source, "python", str, "")
    env_options = take_option(source, "env", dict[str, Any], {})
    taskset = {"id": source.target, **source.options, **env_options.get("taskset", {})}
    env = {"agent": dict(_DEFAULT_AGENT), **env_options, "taskset": taskset}
    request = {"do": "list", "env": env, "start": start, "size": size}
    interpreter = _interpreter(python)
    try:
        done = subprocess.run(
            [interpreter, PROGRAM],
            input=json.dumps(request) + "\n",
            env=_environment(interpreter),
            capture_output=True,
            encoding="utf-8",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"verifiers:{source.target}: {error_line(error)}") from None
    try:
        reply = _answer(done.returncode, done.stdout, done.stderr)
    except VerifiersFailure as failure:
        raise ConfigurationError(f"verifiers:{source.target}: {failure}") from None
    tasks = reply.get("tasks")
    for row in filter(is_object, tasks if is_list(tasks) else []):
        yield (
            f"verifiers:{source.target}: task {row['idx']}",
            Task(
                index=0,
                id=f"{row['idx']}/{row['id']}",
                question=str(row["question"]) or f"An episode of {source.target}",
                metadata={"source": SOURCE, SOURCE: {"env": env, "idx": row["idx"], "python": python}},
            ),
        )


async def play_verifiers(task: Task, *, base_url: str, api_key: str, model: str) -> dict[str, Any]:
    """Play the episode of a task with the model at an address: `ok`, `reward`, `answer`, `turns`, `metrics`, `errors`.

    See docs/interop.md.

    :raises VerifiersFailure: if it can't be played. The program and its servers end when the caller is cancelled.
    """
    origin = task.metadata.get(SOURCE)
    if not is_object(origin):
        raise VerifiersFailure(f"{task.id} is not a task of verifiers; read it with verifiers:TASKSET")
    request = {
        "do": "play",
        "env": origin["env"],
        "idx": origin["idx"],
        "base_url": base_url,
        "api_key": api_key,
        "model": model,
    }
    try:
        interpreter = _interpreter(str(origin.get("python", "")))
        # Killed if the caller is cancelled.
        done = await anyio.run_process(
            [str(interpreter), str(PROGRAM)],
            input=(json.dumps(request) + "\n").encode(),
            env=_environment(interpreter),
            check=False,
        )
    except (OSError, ConfigurationError) as error:
        raise VerifiersFailure(error_line(error)) from None
    return _answer(
        done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )


def _interpreter(python: str) -> Path:
    interpreter = Path(python) if python else own_environment(".venv-verifiers")
    if not interpreter.exists():
        raise ConfigurationError(
            f"python: {interpreter} does not exist; make it with `make .venv-verifiers/.stamp`, or name another one"
        )
    return interpreter.absolute()


def _environment(interpreter: Path) -> dict[str, str]:
    # The program imports `agentflow_tasks` from its own folder, which Python puts on the path of a program.
    unwanted = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    # The programs of agents are run by uv, which is beside that Python.
    return kept | {"PATH": f"{interpreter.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def _answer(status: int, output: str, log: str) -> dict[str, Any]:
    lines = output.strip().splitlines()
    if status == 0 and lines:
        try:
            decoded: object = decode_json(lines[-1])
        except JsonError:
            decoded = None
        if is_object(decoded):
            return decoded
    last = (log.strip().splitlines() or [f"status {status}"])[-1].strip()
    raise VerifiersFailure(f"the program failed: {last[:300]}")
