"""Runs of Python programs over a read-only data directory, and over perturbed copies of it."""

import json
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import msgspec
from msgspec import Struct

from agentflow._decoding import DECODE_ERRORS
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox import Sandbox
from agentflow.trace import TaskColumn, TaskTable

Json: TypeAlias = Any
"""A JSON value."""

COPIES: Final = 3
"""Number of perturbed copies."""
SECONDS: Final = 20.0
"""Time limit of a program on one copy."""
_SAMPLE_ROWS: Final = 3
_CODE: Final = """
import subprocess as _process, sys as _sys
_done = _process.run([_sys.executable, "-c", {program!r}], input={request!r}, capture_output=True, text=True)
print(_done.stdout if _done.returncode == 0 else "!" + (_done.stderr.strip() or "it was killed")[-500:])
"""


class ProgramRun(Struct, frozen=True):
    """Run of a program on one directory."""

    output: str
    """Last line that it printed."""
    error: str
    """Reason that it failed; empty if it did not."""


class DataFolder(Struct, frozen=True):
    """Data directory as a session sees it."""

    folder: str
    """Its path."""
    tables: tuple[TaskTable, ...]
    """Tables of its files, by path."""


class DataPrograms:
    """Session in which programs run; agents never see it."""

    def __init__(self, sandbox: Sandbox, folder: str = "") -> None:
        """:param sandbox: sandbox with the `data` backend and a data directory.
        :param folder: path of the directory in a session; empty for that of the backend.
        """
        self._sandbox = sandbox
        self._arguments = {"folder": folder} if folder else {}
        self._session: Sandbox | None = None
        self._lock = anyio.Lock()

    async def folder(self) -> DataFolder:
        """Return the tables of the data directory.

        :raises ToolFailure: if it can't be inspected.
        """
        async with self._lock:
            result = await (await self._open()).execute("data_inspect", self._arguments)
        if result.error is not None:
            raise ToolFailure(result.error.kind, result.error.message)
        folder = str(result.data["folder"])
        tables = [
            _table(f"{folder}/{file['name']}", table)
            for file in result.data["files"]
            for table in file["tables"]
        ]
        return DataFolder(folder, tuple(tables))

    async def run(self, source: str, root: str, copies: int) -> tuple[ProgramRun, ...]:
        """Run a program on the data directory and on perturbed copies of it.

        :raises ToolFailure: if it can't be run, whatever it is.
        """
        request = json.dumps({"source": source, "root": root, "copies": copies, "seconds": SECONDS})
        code = _CODE.format(program=_program(), request=request)
        seconds = SECONDS * (copies + 2)
        async with self._lock:
            result = await (await self._open()).execute("data_run", {"code": code}, timeout=seconds)
            if result.error is not None:
                await self._leave()
                raise ToolFailure(result.error.kind, result.error.message)
        output = str(result.data["stdout"]).strip()
        try:
            return msgspec.json.decode(output, type=tuple[ProgramRun, ...])
        except DECODE_ERRORS:
            reason = " ".join(output.removeprefix("!").split())[-300:] or "it printed nothing"
            raise ToolFailure(ErrorKind.FAILED, f"programs can't be run over the data: {reason}") from None

    async def close(self) -> None:
        """Close the session."""
        with anyio.CancelScope(shield=True):
            async with self._lock:
                await self._leave()

    async def _open(self) -> Sandbox:
        if self._session is None:
            self._session = await self._sandbox.fork()
        return self._session

    async def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _table(path: str, described: Json) -> TaskTable:
    columns = tuple(TaskColumn(column["name"], column["type"]) for column in described["columns"])
    sheet = f" (sheet {described['sheet']})" if described["sheet"] else ""
    return TaskTable(
        name=path + sheet,
        columns=columns,
        rows=described["row_count"],
        sample=tuple(map(tuple, described["sample"][:_SAMPLE_ROWS])),
    )


@cache
def _program() -> str:
    return (Path(__file__).parent / "inside/_data_programs.py").read_text(encoding="utf-8")
