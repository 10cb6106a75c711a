"""The command as a real process of an installation without extras, or as a call in this process."""

import os
import subprocess
from collections.abc import Callable, Generator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from subprocess import PIPE
from unittest.mock import patch

from agentflow.cli import main
from tests._core import core_python
from tests.behaviour._tree import ROOT

TOLD = ("AGENTFLOW_", "OPENAI_", "SEEDS_FILE", "OUTPUT_DIR")


def environment() -> dict[str, str]:
    """Ours, without anything that says what to synthesise."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith(TOLD)}
    return ours | {"PYTHONPATH": str(ROOT)}


def run(
    module: str, *arguments: str, cwd: Path, seconds: float = 100, python: str | Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run it to its end.

    :param python: interpreter; by default that of the core environment.
    """
    return subprocess.run(
        [python or core_python(), "-m", module, *arguments],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=seconds,
        check=False,
    )


def run_here(
    *arguments: str, cwd: Path, command: Callable[[list[str]], int] = main
) -> "subprocess.CompletedProcess[str]":
    """Run the command to its end in this process, which saves its imports.

    :param command: `agentflow` or another command.
    """
    out, err = StringIO(), StringIO()
    with (
        chdir(cwd),
        patch.dict(os.environ, environment(), clear=True),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        status = command([*arguments])
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


@contextmanager
def running(
    module: str, *arguments: str, cwd: Path, python: str | Path | None = None
) -> Generator["subprocess.Popen[str]"]:
    """Have it run while a block does; what is left of it then is killed."""
    command = [python or core_python(), "-m", module, *arguments]
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        encoding="utf-8",
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until_it_says(process: "subprocess.Popen[str]", word: str) -> None:
    """Read what it logs until a line has that word."""
    assert process.stderr is not None
    seen: list[str] = []
    while line := process.stderr.readline():
        seen.append(line)
        if word in line:
            return
    raise AssertionError(f"it ended with {process.wait(60)}: {''.join(seen)}")


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Its exit status, and what it said."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err
