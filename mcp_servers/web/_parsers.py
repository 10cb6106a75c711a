"""Pool of parser processes, started on demand up to a limit."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from typing import Final

import anyio
import msgspec
from anyio.abc import Process

from agentflow._import_path import import_path
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.extras import missing_extra
from mcp_servers.web._jobs import MAX_REPLY, ParserJob, ParserReply
from runtimes import FrameError, FrameReader, JsonLimits, decode_untrusted, pack_frame

GRACE_SECONDS = 30.0
"""Time beyond a job's limit, for starting and for ending its fork, after which a parser process is killed."""

_LIMITS: Final = JsonLimits(max_bytes=MAX_REPLY, max_values=50_000)
_REPLY: Final = msgspec.json.Decoder(ParserReply)
_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


class _ParserProcess:
    """One parser process."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._to = process.stdin
        self._from = FrameReader(process.stdout.receive, MAX_REPLY, end_of_stream=anyio.EndOfStream)

    async def do(self, job: bytes) -> bytes:
        """Send a job and return the reply."""
        await self._to.send(pack_frame(job))
        answer = await self._from.read()
        if answer is None:
            raise FrameError("the process ended without an answer")
        return answer

    async def end(self) -> None:
        """Kill the process and its children."""
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.aclose()


class ParserPool:
    """Pool of parser processes, each started on first use."""

    def __init__(self, most: int) -> None:
        self._slots = anyio.Semaphore(most)
        self._idle: list[_ParserProcess] = []

    async def do(self, job: ParserJob) -> ParserReply:
        """Run a job in a parser process.

        :raises ToolFailure: `unavailable`, if the parser libraries are not installed, or the process failed.
        """
        async with self._slots:
            parser = self._idle.pop() if self._idle else await _start()
            kept = False
            try:
                with anyio.fail_after(job.seconds + GRACE_SECONDS):
                    answer = await parser.do(msgspec.msgpack.encode(job))
                    reply = await decode_untrusted(answer, _REPLY.decode, _LIMITS)
                kept = True
            except TimeoutError:
                return ParserReply(failed="parsing it took too long")
            except (FrameError, anyio.BrokenResourceError, OSError):
                raise ToolFailure(ErrorKind.UNAVAILABLE, "web: the parser process failed.") from None
            finally:
                if kept:
                    self._idle.append(parser)
                else:
                    await parser.end()
        return reply

    async def close(self) -> None:
        """Stop all processes."""
        while self._idle:
            await self._idle.pop().end()


def not_installed() -> str:
    """Return a message naming the parser libraries that are not installed, or an empty string."""
    wanted = [name for name in ("trafilatura", "pypdfium2", "protego") if not importlib.util.find_spec(name)]
    return missing_extra("reading pages", "web") if wanted else ""


async def _start() -> _ParserProcess:
    if reason := not_installed():
        raise ToolFailure(ErrorKind.UNAVAILABLE, f"web: {reason}.")
    process = await anyio.open_process(
        [sys.executable, "-P", "-m", "mcp_servers.web._parser_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        # Without the server's variables, which may hold keys; only with Python's import path.
        env={**_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(import_path())},
        start_new_session=True,
    )
    return _ParserProcess(process)
