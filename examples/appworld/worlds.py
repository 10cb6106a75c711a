"""Worlds of AppWorld: its environment servers, which run in an installation of their own, one world in each."""

import tempfile
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, STDOUT
from typing import IO, Any, Self

import aiohttp
import anyio
from anyio.abc import Process

from agentflow.errors import ConfigurationError, error_line
from agentflow.serving import kept_port

__all__ = ["AppWorlds", "OpenWorld", "WorldFailure"]

_POLL_SECONDS = 0.2
_STOP_SECONDS = 5.0


class OpenWorld:
    """A world of one task."""

    def __init__(self, session: aiohttp.ClientSession, address: str, task_id: str) -> None:
        """:param address: its server."""
        self.task_id = task_id
        """Id of its task."""
        self.instruction = ""
        """Instruction of the task."""
        self.supervisor: dict[str, str] = {}
        """Name, e-mail and phone number of the person who gives the instruction."""
        self._session = session
        self._address = address

    async def begin(self) -> None:
        """Make the world; the server forgets the one before."""
        found = await self._call("initialize")
        self.instruction, self.supervisor = str(found["instruction"]), dict(found["supervisor"])

    async def execute(self, code: str) -> str:
        """Run Python code in the world; return what it prints."""
        return str(await self._call("execute", code=code))

    async def completed(self) -> bool:
        """Return whether the agent has declared the task complete."""
        return bool(await self._call("task_completed"))

    async def evaluate(self) -> tuple[bool, float]:
        """Return whether all tests of the task pass, and the share of those that do."""
        found = await self._call("evaluate", suppress_errors=True)
        return bool(found["success"]), len(found["passes"]) / max(1, int(found["num_tests"]))

    async def end(self) -> None:
        """Close the world."""
        await self._call("close")

    async def _call(self, operation: str, **body: object) -> Any:  # noqa: ANN401 - JSON
        body = {"task_id": self.task_id, **body}
        try:
            async with self._session.post(f"{self._address}/{operation}", json=body) as answer:
                if answer.status == 200:
                    return (await answer.json())["output"]
                why = f"status {answer.status}: {(await answer.text())[:200]}"
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError) as error:
            raise WorldFailure(f"AppWorld: {operation}: {error_line(error)}") from error
        raise WorldFailure(f"AppWorld: {operation}: {why}")


class WorldFailure(Exception):
    """A world that does not answer; its episode is played again."""


class AppWorlds:
    """A number of environment servers, started when they are first needed, and again if they ended."""

    def __init__(self, program: Path, root: Path, *, count: int = 4, seconds: float = 120.0) -> None:
        """Configure it; `async with` opens it.

        :param program: the command `appworld` of its environment.
        :param root: folder with its `data`.
        :param count: maximum number of concurrent worlds.
        :param seconds: time limit of a start, and of a request.
        :raises ConfigurationError: if the program or its data is missing.
        """
        if not program.is_file():
            raise ConfigurationError(f"{program}: there is no such program; see examples/appworld/README.md")
        if not (root / "data").is_dir():
            raise ConfigurationError(
                f"{root}: it has no folder data; run `{program} download data --root {root}`"
            )
        self._program = program
        self._root = root
        self._seconds = seconds
        self._free = deque[int]()
        self._slots = anyio.Semaphore(count)
        self._count = count
        self._running: dict[int, Process] = {}
        self._logs: dict[int, IO[bytes]] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        limit = aiohttp.ClientTimeout(total=self._seconds)
        self._session = await self._stack.enter_async_context(aiohttp.ClientSession(timeout=limit))
        for _ in range(self._count):
            port = self._stack.enter_context(kept_port("127.0.0.1"))
            log = tempfile.TemporaryFile(prefix="appworld-")  # noqa: SIM115 - the stack closes it
            self._logs[port] = self._stack.enter_context(log)
            self._free.append(port)
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            for process in self._running.values():
                await _stopped(process)
            await self._stack.aclose()

    @asynccontextmanager
    async def open(self, task_id: str) -> AsyncGenerator[OpenWorld]:
        """Open the world of a task; wait for a free server.

        :raises ConfigurationError: if a server does not start.
        """
        async with self._slots:
            port = self._free.popleft()
            try:
                address = await self._server(port)
                world = OpenWorld(self._session, address, task_id)
                await world.begin()
                yield world
                await world.end()
            except BaseException:
                # A request may still run in it.
                with anyio.CancelScope(shield=True):
                    if (process := self._running.pop(port, None)) is not None:
                        await _stopped(process)
                raise
            finally:
                self._free.append(port)

    async def _server(self, port: int) -> str:
        address = f"http://127.0.0.1:{port}"
        if (process := self._running.get(port)) is not None and process.returncode is None:
            return address
        command = [str(self._program), "serve", "environment", "--port", str(port), "--root", str(self._root)]
        log = self._logs[port]
        process = await anyio.open_process(command, stdin=DEVNULL, stdout=log, stderr=STDOUT)
        self._running[port] = process
        with anyio.move_on_after(self._seconds):
            while process.returncode is None:
                if await self._answers(address):
                    return address
                await anyio.sleep(_POLL_SECONDS)
        raise ConfigurationError(
            f"{self._program} can't be started: {_last_line(log) or 'it does not answer'}"
        )

    async def _answers(self, address: str) -> bool:
        try:
            async with self._session.get(f"{address}/") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False


async def _stopped(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
        with anyio.move_on_after(_STOP_SECONDS):
            await process.wait()
            return
        process.kill()
        await process.wait()


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
