"""Where documents are read: each in a sandbox of its own, never in the server.

A sandbox has one document, no network and no other file of this machine, limits on time and memory, and is ended when it
has hit one of them. The last few stay, with their documents open.
"""

import io
import json
import py_compile
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from agentflow.errors import ErrorKind, InstanceGone, ToolFailure
from mcp_servers.document._settings import DocumentSettings
from runtimes import Instance, InstanceSpec, Limits, Outcome, Runtime

__all__ = ["Desks", "Source", "program"]

LIBRARIES: Final = ("pypdfium2", "pdfplumber", "docx", "pptx", "openpyxl", "PIL.Image", "markdown_it")
"""What the interpreters of the sandboxes have imported before they begin."""
INSIDE: Final = "mcp_servers.document.inside"
MIB = 1024 * 1024
LONGEST_ANSWER = 256 * MIB
LONGEST_NAME = 100

_KINDS: Final = {
    Outcome.TIMEOUT: (ErrorKind.TIMEOUT, "reading it took too long"),
    Outcome.CPU_LIMIT: (ErrorKind.CPU_LIMIT, "reading it took too much CPU time"),
    Outcome.OUT_OF_MEMORY: (ErrorKind.OUT_OF_MEMORY, "reading it took too much memory"),
    Outcome.TOO_MANY_PROCESSES: (ErrorKind.TOO_MANY_PROCESSES, "reading it took too many processes"),
    Outcome.FILE_TOO_LARGE: (ErrorKind.FILE_TOO_LARGE, "it is too large"),
    Outcome.OUTPUT_LIMIT: (ErrorKind.OUTPUT_LIMIT, "reading it gave too much output"),
}
_OF_THE_CALL: Final = (ErrorKind.NOT_FOUND, ErrorKind.BAD_ARGUMENTS)
"""Then it is not the document that is wrong."""


class Source(msgspec.Struct, frozen=True):
    """A file to be read."""

    name: str
    """What it is called."""
    digest: str
    """Stands for its content."""
    data: bytes
    """Its content."""


class _Refused(msgspec.Struct):
    """An answer that says why there is none."""

    why: ErrorKind
    message: str


class _Desk:
    """A sandbox with one document."""

    def __init__(self, instance: Instance, name: str) -> None:
        self.instance = instance
        self.name = name
        self.turn = anyio.Lock()
        self.users = 0


class Desks:
    """The sandboxes, and the runtime that makes them, which starts with the first."""

    def __init__(self, settings: DocumentSettings) -> None:
        self._settings = settings
        self._desks: OrderedDict[str, _Desk] = OrderedDict()
        self._room = anyio.CapacityLimiter(settings.at_once)
        self._turn = anyio.Lock()
        self._runtime: Runtime | None = None
        self._stack = AsyncExitStack()
        self._program = b""

    async def ask(self, source: Source, what: Mapping[str, str], seconds: float) -> tuple[bytes, bytes]:
        """An answer of the reader: JSON, and the bytes of a picture.

        :raises ToolFailure: if the document can't be read within the limits.
        :raises IsolationUnavailable: if this machine can't isolate the reader.
        """
        async with self._room:
            answer = await self._asked(source, what, seconds)
            await self._tidy()
        line, _, blob = answer.partition(b"\n")
        return self._checked(line, source), blob

    async def _asked(self, source: Source, what: Mapping[str, str], seconds: float) -> bytes:
        while True:
            desk = await self._desk(source)
            desk.users += 1
            try:
                async with desk.turn:
                    if self._desks.get(source.digest) is not desk:
                        # Whoever was here before has left it in disorder.
                        continue
                    try:
                        return await self._answer(desk, source, what, seconds)
                    except BaseException:
                        await self._clear(source.digest, desk)
                        raise
            finally:
                desk.users -= 1

    async def close(self) -> None:
        """End all of them."""
        self._desks.clear()
        await self._stack.aclose()
        self._runtime = None

    async def _answer(self, desk: _Desk, source: Source, what: Mapping[str, str], seconds: float) -> bytes:
        request = json.dumps({**what, "name": desk.name})
        try:
            result = await desk.instance.run("python", f"_answer({request!r});", timeout=seconds)
            if result.outcome in _KINDS:
                kind, meaning = _KINDS[result.outcome]
                raise ToolFailure(kind, f"document: {source.name!r} can't be read: {meaning}.")
            if result.outcome is not Outcome.OK or result.error is not None:
                reason = result.error.type if result.error else result.detail
                if result.error is not None and result.error.type == "MemoryError":
                    kind, meaning = _KINDS[Outcome.OUT_OF_MEMORY]
                    raise ToolFailure(kind, f"document: {source.name!r} can't be read: {meaning}.")
                raise _broken(source, reason)
            answer = await desk.instance.read("answer", length=LONGEST_ANSWER + 1)
        except (OSError, InstanceGone) as error:
            raise _broken(source, type(error).__name__) from error
        if len(answer) > LONGEST_ANSWER:
            raise ToolFailure(ErrorKind.OUTPUT_LIMIT, f"document: {source.name!r} gives too much to read.")
        return answer

    @staticmethod
    def _checked(line: bytes, source: Source) -> bytes:
        try:
            refused = msgspec.json.decode(line, type=_Refused) if line.startswith(b'{"why"') else None
        except msgspec.DecodeError as error:
            raise _broken(source, "its reader gave no answer") from error
        if refused is not None:
            message = " ".join(refused.message.split())[:400]
            cant = "" if refused.why in _OF_THE_CALL else " can't be read"
            raise ToolFailure(refused.why, f"document: {source.name!r}{cant}: {message}.")
        return line

    async def _desk(self, source: Source) -> _Desk:
        desk = self._desks.get(source.digest)
        if desk is None:
            made = await self._made(source)
            # Another call may have laid it out meanwhile.
            desk = self._desks.setdefault(source.digest, made)
            if desk is not made:
                await made.instance.stop()
        self._desks.move_to_end(source.digest)
        return desk

    async def _made(self, source: Source) -> _Desk:
        runtime = await self._running()
        memory = self._settings.memory_bytes
        limits = Limits(
            wall_seconds=self._settings.timeout,
            memory_bytes=memory,
            processes=16,
            file_bytes=LONGEST_ANSWER + MIB,
            disk_bytes=max(2 * len(source.data), 64 * MIB) + LONGEST_ANSWER,
            files=1_000,
            output_bytes=MIB,
        )
        instance = await runtime.start(InstanceSpec(limits=limits, env={"OMP_THREAD_LIMIT": "1"}))
        try:
            suffix = Path(source.name).suffix[:LONGEST_NAME]
            name = f"document{suffix if suffix[1:].isalnum() and suffix.isascii() else ''}"
            await instance.write("reader.zip", self._program)
            await instance.write(name, source.data)
            begin = f"import sys; sys.path.insert(0, 'reader.zip')\nfrom {INSIDE}._reader import answer as _answer"
            begun = await instance.run("python", begin, timeout=60)
            if begun.error is not None or begun.outcome is not Outcome.OK:
                raise _broken(source, begun.error.message if begun.error else begun.detail)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await instance.stop()
            raise
        return _Desk(instance, name)

    async def _running(self) -> Runtime:
        """The runtime; a new one, where the last one has died."""
        async with self._turn:
            running = self._runtime
            if running is None or not running.alive:
                from runtimes.process import ProcessRuntime  # only what reads something needs it

                self._desks.clear()
                self._program = self._program or await anyio.to_thread.run_sync(program)
                running = ProcessRuntime(preload=LIBRARIES, idle=False)
                # Shielded: a runtime that was half started would stay.
                with anyio.CancelScope(shield=True):
                    await self._stack.aclose()
                    self._stack = AsyncExitStack()
                    await self._stack.enter_async_context(running)
                self._runtime = running
            return running

    async def _tidy(self) -> None:
        """End those that were not used for longest."""
        for digest, desk in list(self._desks.items()):
            if len(self._desks) <= self._settings.at_once:
                return
            if not desk.users:
                await self._clear(digest, desk)

    async def _clear(self, digest: str, desk: _Desk) -> None:
        if self._desks.get(digest) is desk:
            del self._desks[digest]
        with anyio.CancelScope(shield=True):
            await desk.instance.stop()


def _broken(source: Source, reason: str) -> ToolFailure:
    return ToolFailure(
        ErrorKind.FAILED, f"document: {source.name!r} can't be read: its reader broke off ({reason})."
    )


def program() -> bytes:
    """The reader as a sandbox imports it: the project's own source is not to be seen there."""
    here = Path(__file__).parent / "inside"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive, tempfile.TemporaryDirectory() as folder:
        for package in ("mcp_servers", "mcp_servers/document"):
            archive.writestr(f"{package}/__init__.py", "")
        for path in sorted(here.glob("*.py")):
            compiled = f"{folder}/{path.stem}.pyc"
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(str(path), compiled, doraise=True, invalidation_mode=mode)
            archive.write(compiled, f"mcp_servers/document/inside/{path.stem}.pyc")
    return packed.getvalue()
