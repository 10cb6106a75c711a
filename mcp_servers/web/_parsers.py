"""The processes that parse, as many as are needed and no more than allowed."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

import anyio
import msgspec
from anyio.abc import Process

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.web._jobs import ParserJob, ParserReply
from runtimes import FrameError, FrameReader, pack_frame

__all__ = ["ParserPool", "not_installed"]

GRACE_SECONDS = 30.0
"""A process starts, and ends its own forks in time; after this much more it is killed."""

_LONGEST = 65 * 1024 * 1024
_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


class _ParserProcess:
    """One process."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._to = process.stdin
        self._from = FrameReader(process.stdout.receive, _LONGEST, end_of_stream=anyio.EndOfStream)

    async def do(self, job: bytes) -> bytes:
        """The answer to a job."""
        await self._to.send(pack_frame(job))
        answer = await self._from.read()
        if answer is None:
            raise FrameError("the process ended without an answer")
        return answer

    async def end(self) -> None:
        """End it and what it started."""
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.aclose()


class ParserPool:
    """Gives jobs to processes. Each is started when it is first needed."""

    def __init__(self, most: int) -> None:
        self._places = anyio.Semaphore(most)
        self._idle: list[_ParserProcess] = []

    async def do(self, job: ParserJob) -> ParserReply:
        """What came of a job.

        :raises ToolFailure: `unavailable`, if what parses is not installed, or broke.
        """
        async with self._places:
            parser = self._idle.pop() if self._idle else await _start()
            kept = False
            try:
                with anyio.fail_after(job.seconds + GRACE_SECONDS):
                    answer = await parser.do(msgspec.msgpack.encode(job))
                kept = True
            except TimeoutError:
                return ParserReply(failed="parsing it took too long")
            except (FrameError, anyio.BrokenResourceError, OSError):
                raise ToolFailure(ErrorKind.UNAVAILABLE, "web: the process that parses broke.") from None
            finally:
                if kept:
                    self._idle.append(parser)
                else:
                    await parser.end()
        return msgspec.msgpack.decode(answer, type=ParserReply)

    async def close(self) -> None:
        """End all processes."""
        while self._idle:
            await self._idle.pop().end()


def not_installed() -> str:
    """What is not installed of that which parses; empty: nothing."""
    wanted = [name for name in ("trafilatura", "pypdfium2", "protego") if not importlib.util.find_spec(name)]
    return f"reading pages needs {', '.join(wanted)}: pip install 'agentflow[web]'" if wanted else ""


async def _start() -> _ParserProcess:
    if reason := not_installed():
        raise ToolFailure(ErrorKind.UNAVAILABLE, f"web: {reason}.")
    process = await anyio.open_process(
        [sys.executable, "-P", "-m", "mcp_servers.web._parser_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=_environment(),
        start_new_session=True,
    )
    return _ParserProcess(process)


def _environment() -> Mapping[str, str]:
    """No variable of ours: among them are keys. Only where Python finds this package."""
    return {**_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
