"""A process that holds one database, seen from the server."""

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
from anyio.abc import ByteReceiveStream, Process

from runtimes import FrameError, FrameReader, decode_object, pack_frame

__all__ = ["Place", "Reply", "Worker", "WorkerFailure"]

Reply: TypeAlias = dict[str, Any]
"""What a worker answers."""

START_SECONDS: Final = 30.0
GRACE_SECONDS: Final = 2.0
"""A worker ends a query whose time is up; so much later it is ended itself."""
END_SECONDS: Final = 1.0
LARGEST_REPLY: Final = 256 * 1024 * 1024
# The last entry is for `runtimes._framing`; it follows the standard library's, which nothing may hide.
_PROGRAM: Final = (
    f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]; sys.path += [{str(Path(__file__).parents[2])!r}]; "
    "from inside import main; main()"
)


@dataclass(frozen=True, slots=True)
class Place:
    """What a worker opens. Equal ones can stand in for each other."""

    engine: str
    """`sqlite`, `duckdb`, `postgres` or `keeper`."""
    target: str
    """A path or an address."""
    writable: bool
    """It is a copy that may be changed."""
    memory: int
    """Bytes for a query."""
    file_bytes: int
    """The largest file it may write."""
    superuser: bool = False
    """A role that may do anything is good enough."""
    owner: str = ""
    """Who makes copies on a server."""


class WorkerFailure(Exception):
    """The worker says why there is no answer."""

    def __init__(self, kind: str, message: str, type: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        """`rejected` by the engine, `denied`, `timeout`, `out_of_memory`, `unavailable` or `failed`."""
        self.message = message
        """In the engine's words."""
        self.type = type
        """What the engine calls it, if it was rejected."""


class Worker:
    """One running worker. It answers one request at a time."""

    def __init__(self, process: Process, output: ByteReceiveStream) -> None:
        self._process = process
        self._output = FrameReader(output.receive, LARGEST_REPLY, end_of_stream=anyio.EndOfStream)
        self.usable = True
        """It can take another request."""

    @classmethod
    async def start(cls, place: Place) -> "Worker":
        """Start one; returns when the database is open.

        :raises WorkerFailure: if it can't be opened.
        """
        # Neither the server's environment nor its standard error: both may hold what is nobody else's business.
        process = await anyio.open_process(
            [sys.executable, "-I", "-c", _PROGRAM], stderr=subprocess.DEVNULL, env={"LC_ALL": "C.UTF-8"}
        )
        assert process.stdout is not None
        worker = cls(process, process.stdout)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(worker.close)
            await worker.ask(asdict(place), START_SECONDS)
            stack.pop_all()
        return worker

    async def ask(self, request: Mapping[str, object], seconds: float) -> Reply:
        """The answer to a request. The worker is no longer usable if there is none in time.

        :raises WorkerFailure: with the reason that the worker gives, or that it has none any more.
        """
        self.usable = False
        assert self._process.stdin is not None
        frame = pack_frame(json.dumps({**request, "seconds": seconds}).encode())
        try:
            with anyio.fail_after(seconds + GRACE_SECONDS):
                await self._process.stdin.send(frame)
                payload = await self._output.read()
                if payload is None:
                    raise WorkerFailure("failed", "the engine's process ended")
                reply = decode_object(payload)
        except TimeoutError:
            raise WorkerFailure("timeout", "") from None
        except FrameError as error:
            raise WorkerFailure("failed", f"the engine's process sent a bad answer: {error}") from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise WorkerFailure("failed", "the engine's process ended") from None
        self.usable = True
        if "kind" in reply:
            raise WorkerFailure(reply["kind"], reply["message"], reply["type"])
        return reply

    async def close(self) -> None:
        """End it. What it runs is interrupted first, so that a database server learns of it too."""
        with anyio.CancelScope(shield=True):
            if self._process.stdin is not None:
                await self._process.stdin.aclose()
            with anyio.move_on_after(END_SECONDS):
                await self._process.wait()
            if self._process.returncode is None:
                self._process.kill()
            await self._process.aclose()
