"""A Python session without isolation: a separate interpreter that runs a `PythonEvaluator`."""

import marshal
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, cast

ROOT = Path(__file__).resolve().parents[3]

# marshal needs no builtins, which the code under test may break.
_PROGRAM = """
import marshal, os, sys
from runtimes.process.inside._evaluate import PythonEvaluator
requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_APPEND), 1)
evaluator = PythonEvaluator()
number = 0
while True:
    number += 1
    marshal.dump(evaluator.run(marshal.load(requests), f"<cell {number}>"), answers)
    answers.flush()
"""


@dataclass(frozen=True)
class ShownOutput:
    """One item of rich output."""

    mime: str
    data: bytes


@dataclass(frozen=True)
class Ran:
    """Result of one run."""

    value: str | None
    error: dict[str, str] | None
    displays: list[ShownOutput]
    stdout: str

    @property
    def failure(self) -> dict[str, str]:
        assert self.error is not None, self
        return self.error


class EvaluatorSession:
    """Run source texts in sequence in one evaluator."""

    def __init__(self, folder: Path) -> None:
        self._output = folder / "stdout"
        self._read = 0
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "HOME": str(folder)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(self._output)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=env,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, source: str) -> Ran:
        """Run source text to its end."""
        self.send(source)
        return self.receive()

    def send(self, source: str) -> None:
        assert self._process.stdin is not None
        marshal.dump(source, self._process.stdin)
        self._process.stdin.flush()

    def receive(self) -> Ran:
        assert self._process.stdout is not None
        answer = cast("dict[str, object]", marshal.load(self._process.stdout))
        shown = cast("list[tuple[str, bytes]]", answer["displays"])
        printed = self._output.read_bytes()[self._read :]
        self._read += len(printed)
        return Ran(
            value=cast("str | None", answer["value"]),
            error=cast("dict[str, str] | None", answer["error"]),
            displays=[ShownOutput(*display) for display in shown],
            stdout=printed.decode(),
        )
