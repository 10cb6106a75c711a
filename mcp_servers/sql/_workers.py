"""Worker processes with one open database each, and their pool."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio
import msgspec
from anyio.abc import ByteReceiveStream, Process

from mcp_servers.sql.inside._engine import DatabaseSpec
from runtimes import FrameError, FrameReader, JsonLimits, decode_untrusted, pack_frame

T = TypeVar("T")
START_SECONDS: Final = 30.0
GRACE_SECONDS: Final = 2.0
"""Time after a query's limit, at which the worker should have stopped it, before the worker is killed."""
END_SECONDS: Final = 1.0
MAX_TABLES: Final = 50
"""Most tables described in one reply."""
SCHEMA_VALUES: Final = 1_000_000
SMALL: Final = JsonLimits()
"""Limits of a reply without rows."""
_FAILURE: Final = b'{"kind"'
_MESSAGE_CHARACTERS: Final = 10_000
# The last entry is for `runtimes._framing`; it follows the standard library's, which nothing may hide.
_PROGRAM: Final = (
    f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]; sys.path += [{str(Path(__file__).parents[2])!r}]; "
    "from inside import main; main()"
)


class ReplyColumn(msgspec.Struct):
    """A column of a result: a `ResultColumn`."""

    name: str
    type: str


class QueryReply(msgspec.Struct):
    """Reply to a query."""

    columns: list[ReplyColumn]
    rows: list[list[object]]
    more: str
    changed: int | None


class SchemaReply(msgspec.Struct):
    """Reply to a request for the schema."""

    tables: list[dict[str, object]]
    known: list[str]


class DoneReply(msgspec.Struct):
    """Reply without content."""


class _FailureReply(msgspec.Struct):
    kind: str
    type: str
    message: str


class WorkerFailure(Exception):
    """Failure of a request to a worker."""

    def __init__(self, kind: str, message: str, type: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        """`rejected` by the engine, `denied`, `timeout`, `out_of_memory`, `unavailable` or `failed`."""
        self.message = message
        """Message of the engine."""
        self.type = type
        """Error type of the engine, if it rejected the query."""


class SqlWorker:
    """A worker process. It handles one request at a time."""

    def __init__(self, process: Process, output: ByteReceiveStream, max_reply: int) -> None:
        self._process = process
        self._output = FrameReader(output.receive, max_reply, end_of_stream=anyio.EndOfStream)
        self.usable = True
        """The worker can handle another request."""

    @classmethod
    async def start(cls, database: DatabaseSpec, max_reply: int = SMALL.max_bytes) -> "SqlWorker":
        """Start a worker and wait until the database is open.

        :param max_reply: size of its largest reply in bytes.
        :raises WorkerFailure: if it cannot be opened.
        """
        # Neither the server's environment nor its standard error is passed on: both may contain secrets.
        process = await anyio.open_process(
            [sys.executable, "-I", "-c", _PROGRAM], stderr=subprocess.DEVNULL, env={"LC_ALL": "C.UTF-8"}
        )
        assert process.stdout is not None
        worker = cls(process, process.stdout, max_reply)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(worker.close)
            await worker.ask({"database": asdict(database)}, START_SECONDS, DoneReply)
            stack.pop_all()
        return worker

    async def ask(
        self, request: Mapping[str, object], seconds: float, kind: type[T], limits: JsonLimits = SMALL
    ) -> T:
        """Send a request and return the reply. After a timeout or a malformed reply the worker is no longer usable.

        :param kind: type of the reply.
        :param limits: limits of the reply.
        :raises WorkerFailure: if the request or the worker fails.
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
                reply = await decode_untrusted(payload, partial(_decoded, kind), limits)
        except TimeoutError:
            raise WorkerFailure("timeout", "") from None
        except FrameError as error:
            raise WorkerFailure("failed", f"the engine's process sent a bad answer: {error}") from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise WorkerFailure("failed", "the engine's process ended") from None
        self.usable = True
        if isinstance(reply, _FailureReply):
            self.usable = reply.kind != "stale"
            message = reply.message[:_MESSAGE_CHARACTERS]
            raise WorkerFailure(reply.kind[:100], message, reply.type[:100])
        return reply

    async def close(self) -> None:
        """Stop the worker, interrupting a running query first, so that a database server stops it too."""
        with anyio.CancelScope(shield=True):
            if self._process.stdin is not None:
                await self._process.stdin.aclose()
            with anyio.move_on_after(END_SECONDS):
                await self._process.wait()
            if self._process.returncode is None:
                self._process.kill()
            await self._process.aclose()


def query_limits(result_bytes: int) -> JsonLimits:
    """Return the limits of a reply to a query: those of the rows, and names besides. A value has at least one byte."""
    return JsonLimits(SMALL.max_bytes + result_bytes, SMALL.max_values + result_bytes)


def schema_limits(result_bytes: int) -> JsonLimits:
    """Return the limits of a description with samples."""
    return JsonLimits(SMALL.max_bytes + MAX_TABLES * result_bytes, SCHEMA_VALUES)


def _decoded(kind: type[T], payload: bytes) -> T | _FailureReply:
    if payload.startswith(_FAILURE):
        return msgspec.json.decode(payload, type=_FailureReply)
    return msgspec.json.decode(payload, type=kind)


class SqlWorkerPool:
    """Pool of workers, lent for one request each and reused for the same database.

    Their number is limited; the least recently used idle worker is stopped to start another.
    """

    def __init__(self, limit: int, max_reply: int) -> None:
        self._limit = limit
        self._max_reply = max_reply
        self._slots = anyio.Semaphore(limit)
        self._idle: list[tuple[DatabaseSpec, SqlWorker]] = []
        self._busy = 0

    @asynccontextmanager
    async def lend(self, database: DatabaseSpec) -> AsyncGenerator[SqlWorker]:
        """Lend a worker that has this database open.

        :raises WorkerFailure: if it cannot be opened.
        """
        async with self._slots:
            self._busy += 1
            worker: SqlWorker | None = None
            try:
                worker = self._take_idle(database)
                if worker is None:
                    await self._stop_surplus()
                    worker = await SqlWorker.start(database, self._max_reply)
                yield worker
            finally:
                self._busy -= 1
                if worker is not None and worker.usable:
                    self._idle.append((database, worker))
                elif worker is not None:
                    await worker.close()

    async def ask(
        self,
        database: DatabaseSpec,
        request: Mapping[str, object],
        seconds: float,
        kind: type[T],
        limits: JsonLimits = SMALL,
    ) -> T:
        """Send a request to a worker; once more to a new one if the database's files were replaced.

        :param kind: type of the reply.
        :param limits: limits of the reply.
        :raises WorkerFailure: if it fails.
        """
        try:
            async with self.lend(database) as worker:
                return await worker.ask(request, seconds, kind, limits)
        except WorkerFailure as failure:
            if failure.kind != "stale":
                raise
        await self.forget(database)
        async with self.lend(database) as worker:
            return await worker.ask(request, seconds, kind, limits)

    async def forget(self, database: DatabaseSpec) -> None:
        """Stop idle workers of this database."""
        for entry in [entry for entry in self._idle if entry[0] == database]:
            self._idle.remove(entry)
            await entry[1].close()

    async def close(self) -> None:
        """Stop all idle workers."""
        idle, self._idle = self._idle, []
        async with anyio.create_task_group() as group:
            for _, worker in idle:
                group.start_soon(worker.close)

    def _take_idle(self, database: DatabaseSpec) -> SqlWorker | None:
        for number in reversed(range(len(self._idle))):
            if self._idle[number][0] == database:
                return self._idle.pop(number)[1]
        return None

    async def _stop_surplus(self) -> None:
        while self._idle and self._busy + len(self._idle) > self._limit:
            _, oldest = self._idle.pop(0)
            await oldest.close()
