"""Documents ready for use: read once by a pool of sandboxed processes, then cached by content in memory and on disk.

Each process parses one document; nothing is parsed in the server. A sandbox contains one document. It has no network, no
other file of this machine, and limits on time and memory; it is ended when it exceeds one. The most recently used ones stay
running with their documents open.
"""

import hashlib
import io
import json
import os
import py_compile
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Final, Generic, TypeVar

import anyio
import anyio.to_thread
import msgspec

from agentflow.errors import ErrorKind, InstanceGone, ToolFailure
from agentflow.extras import with_command
from mcp_servers.core._disk_cache import DiskCache, user_cache
from mcp_servers.document._document import DocumentContent, DocumentTable, ParsedDocument
from mcp_servers.document._files import DocumentFile
from mcp_servers.document._replies import (
    MAX_ANSWER,
    ReaderError,
    RenderedImage,
    content_of,
    error_of,
    image_of,
    tables_of,
)
from mcp_servers.document._search import PassageIndex
from mcp_servers.document._settings import DocumentSettings
from runtimes import FrameError, Instance, InstanceSpec, Limits, Outcome, Runtime

LIBRARIES: Final = ("pypdfium2", "pdfplumber", "docx", "pptx", "openpyxl", "PIL.Image", "markdown_it")
"""Libraries that the sandboxes' interpreters have preloaded."""
INSIDE: Final = "mcp_servers.document.inside"
MIB = 1024 * 1024
T = TypeVar("T")
MAX_SUFFIX = 100

_KINDS: Final = {
    Outcome.TIMEOUT: (ErrorKind.TIMEOUT, "parsing took too long"),
    Outcome.CPU_LIMIT: (ErrorKind.CPU_LIMIT, "parsing took too much CPU time"),
    Outcome.OUT_OF_MEMORY: (ErrorKind.OUT_OF_MEMORY, "parsing took too much memory"),
    Outcome.TOO_MANY_PROCESSES: (ErrorKind.TOO_MANY_PROCESSES, "parsing took too many processes"),
    Outcome.FILE_TOO_LARGE: (ErrorKind.FILE_TOO_LARGE, "it is too large"),
    Outcome.OUTPUT_LIMIT: (ErrorKind.OUTPUT_LIMIT, "parsing produced too much output"),
}
_REQUEST_ERRORS: Final = (ErrorKind.NOT_FOUND, ErrorKind.BAD_ARGUMENTS)
"""Errors of the request, not of the document."""


class DocumentSource(msgspec.Struct, frozen=True):
    """A file to parse."""

    name: str
    digest: str
    data: bytes


class _Reader:
    """A sandboxed reader process with one document."""

    def __init__(self, instance: Instance, name: str) -> None:
        self.instance = instance
        self.name = name
        self.lock = anyio.Lock()
        self.users = 0


class ReaderPool:
    """Pool of readers, and their runtime, which starts with the first reader."""

    def __init__(self, settings: DocumentSettings) -> None:
        self._settings = settings
        self._readers: OrderedDict[str, _Reader] = OrderedDict()
        self._capacity = anyio.CapacityLimiter(settings.at_once)
        self._lock = anyio.Lock()
        self._runtime: Runtime | None = None
        self._stack = AsyncExitStack()
        self._program = b""

    async def ask(
        self,
        source: DocumentSource,
        what: Mapping[str, str],
        seconds: float,
        decode: Callable[[bytes], Awaitable[T]],
    ) -> tuple[T, bytes]:
        """Send a request to the reader of a document; return the decoded reply, and the reply.

        :param decode: decoder of the reply; its `FrameError` ends the reader.
        :raises ToolFailure: if the document cannot be read within the limits.
        :raises IsolationUnavailable: if this machine cannot isolate the reader.
        """
        async with self._capacity:
            answer = await self._request(source, what, seconds, decode)
            await self._stop_surplus()
        if isinstance(answer, ReaderError):
            raise _refusal(answer, source)
        return answer

    async def _request(
        self,
        source: DocumentSource,
        what: Mapping[str, str],
        seconds: float,
        decode: Callable[[bytes], Awaitable[T]],
    ) -> tuple[T, bytes] | ReaderError:
        while True:
            reader = await self._reader(source)
            reader.users += 1
            try:
                async with reader.lock:
                    if self._readers.get(source.digest) is not reader:
                        # The previous request failed and ended this reader.
                        continue
                    try:
                        answer = await self._answer(reader, source, what, seconds)
                        return await error_of(answer) or (await decode(answer), answer)
                    except FrameError as error:
                        await self._stop(source.digest, reader)
                        raise _broken(source, f"invalid reply: {error}") from error
                    except BaseException:
                        await self._stop(source.digest, reader)
                        raise
            finally:
                reader.users -= 1

    async def close(self) -> None:
        """Stop all readers."""
        self._readers.clear()
        await self._stack.aclose()
        self._runtime = None

    async def _answer(
        self, reader: _Reader, source: DocumentSource, what: Mapping[str, str], seconds: float
    ) -> bytes:
        request = json.dumps({**what, "name": reader.name})
        try:
            result = await reader.instance.run("python", f"_answer({request!r});", timeout=seconds)
            reason = result.error.type if result.error else result.detail
            outcome = result.outcome
            if outcome not in _KINDS and reason == "MemoryError":
                outcome = Outcome.OUT_OF_MEMORY
            if outcome in _KINDS:
                kind, meaning = _KINDS[outcome]
                raise ToolFailure(kind, f"document: {source.name!r} cannot be read: {meaning}.")
            if outcome is not Outcome.OK or result.error is not None:
                raise _broken(source, reason)
            answer = await reader.instance.read("answer", length=MAX_ANSWER + 1)
        except (OSError, InstanceGone) as error:
            raise _broken(source, type(error).__name__) from error
        if len(answer) > MAX_ANSWER:
            raise ToolFailure(ErrorKind.OUTPUT_LIMIT, f"document: {source.name!r} produces too much output.")
        return answer

    async def _reader(self, source: DocumentSource) -> _Reader:
        reader = self._readers.get(source.digest)
        if reader is None:
            started = await self._start(source)
            # Another call may have started one in the meantime.
            reader = self._readers.setdefault(source.digest, started)
            if reader is not started:
                await started.instance.stop()
        self._readers.move_to_end(source.digest)
        return reader

    async def _start(self, source: DocumentSource) -> _Reader:
        runtime = await self._running()
        memory = self._settings.memory_bytes
        limits = Limits(
            wall_seconds=self._settings.timeout,
            memory_bytes=memory,
            processes=16,
            file_bytes=MAX_ANSWER + MIB,
            disk_bytes=max(2 * len(source.data), 64 * MIB) + MAX_ANSWER,
            files=1_000,
            output_bytes=MIB,
        )
        instance = await runtime.start(InstanceSpec(limits=limits, env={"OMP_THREAD_LIMIT": "1"}))
        try:
            suffix = Path(source.name).suffix[:MAX_SUFFIX]
            name = f"document{suffix if suffix[1:].isalnum() and suffix.isascii() else ''}"
            await instance.write("reader.zip", self._program)
            await instance.write(name, source.data)
            code = f"import sys; sys.path.insert(0, 'reader.zip')\nfrom {INSIDE}._reader import answer as _answer"
            imported = await instance.run("python", code, timeout=60)
            if imported.error is not None or imported.outcome is not Outcome.OK:
                raise _broken(source, imported.error.message if imported.error else imported.detail)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await instance.stop()
            raise
        return _Reader(instance, name)

    async def _running(self) -> Runtime:
        """Return the runtime; start it if it is not running."""
        async with self._lock:
            running = self._runtime
            if running is None or not running.alive:
                from runtimes.process import ProcessRuntime  # loaded when the first document is parsed

                self._readers.clear()
                self._program = self._program or await anyio.to_thread.run_sync(program)
                running = ProcessRuntime(preload=LIBRARIES, idle=False)
                # Shielded: a half-started runtime would be left running.
                with anyio.CancelScope(shield=True):
                    await self._stack.aclose()
                    self._stack = AsyncExitStack()
                    await self._stack.enter_async_context(running)
                self._runtime = running
            return running

    async def _stop_surplus(self) -> None:
        """Stop the least recently used readers beyond the limit."""
        for digest, reader in list(self._readers.items()):
            if len(self._readers) <= self._settings.at_once:
                return
            if not reader.users:
                await self._stop(digest, reader)

    async def _stop(self, digest: str, reader: _Reader) -> None:
        if self._readers.get(digest) is reader:
            del self._readers[digest]
        with anyio.CancelScope(shield=True):
            await reader.instance.stop()


def _refusal(error: ReaderError, source: DocumentSource) -> ToolFailure:
    """Return the failure that a reader reports."""
    prefix = "" if error.why in _REQUEST_ERRORS else " cannot be read"
    message = with_command(" ".join(error.message.split())[:400])
    return ToolFailure(error.why, f"document: {source.name!r}{prefix}: {message}.")


def _broken(source: DocumentSource, reason: str) -> ToolFailure:
    # The reason may come from a compromised reader.
    reason = " ".join(reason.split())[:200]
    return ToolFailure(
        ErrorKind.FAILED, f"document: {source.name!r} cannot be read: its reader failed ({reason})."
    )


def program() -> bytes:
    """Return the reader as a zip file of bytecode for the sandbox, which cannot see the project's source."""
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


MAX_CACHED_CHARS = 40_000_000
MAX_IMAGE_BYTES = 32 * 1024 * 1024
MAX_DIGESTS = 20_000
MAX_FAILURES = 1_000
_DISTRIBUTIONS: Final = (
    "pypdfium2",
    "pdfplumber",
    "python-docx",
    "python-pptx",
    "openpyxl",
    "pillow",
    "markdown-it-py",
)
_PERMANENT: Final = (ErrorKind.TIMEOUT, ErrorKind.OUT_OF_MEMORY, ErrorKind.CPU_LIMIT, ErrorKind.OUTPUT_LIMIT)


class _LruCache(Generic[T]):
    """Size-limited cache that drops the least recently used entries."""

    def __init__(self, most: int, size: Callable[[T], int]) -> None:
        self._most = most
        self._size = size
        self._used = 0
        self._things: OrderedDict[object, T] = OrderedDict()

    def get(self, key: object) -> T | None:
        if key in self._things:
            self._things.move_to_end(key)
        return self._things.get(key)

    def put(self, key: object, thing: T) -> T:
        if key not in self._things:
            self._used += self._size(thing)
        self._things[key] = thing
        while self._used > self._most and len(self._things) > 1:
            self._used -= self._size(self._things.popitem(last=False)[1])
        return thing


class DocumentLibrary:
    """Parsed documents, cached in memory and on disk by the content of their files."""

    def __init__(self, settings: DocumentSettings) -> None:
        self._settings = settings
        self._readers = ReaderPool(settings)
        self._store = DiskCache(settings.cache_dir or user_cache("document"), settings.cache_bytes)
        self._digests = _LruCache[str](MAX_DIGESTS, lambda _: 1)
        self._documents = _LruCache[ParsedDocument](MAX_CACHED_CHARS, lambda value: len(value.text) + 1_000)
        self._finders = _LruCache[PassageIndex](MAX_CACHED_CHARS, lambda value: value.characters + 1_000)
        self._images = _LruCache[RenderedImage](MAX_IMAGE_BYTES, lambda value: len(value.png))
        self._failures = _LruCache[ToolFailure](MAX_FAILURES, lambda _: 1)
        self._locks: dict[object, tuple[anyio.Lock, int]] = {}

    async def close(self) -> None:
        """Stop the readers."""
        await self._readers.close()

    async def document(self, file: DocumentFile) -> ParsedDocument:
        """Return the parsed document of a file.

        :raises ToolFailure: if it can't be read.
        """
        digest, source = await self._digest(file)
        document = self._documents.get(digest)
        if document is not None:
            return document
        async with self._locked(("document", digest)):
            document = self._documents.get(digest)
            if document is None:
                document = self._documents.put(digest, await self._read(file, digest, source))
            return document

    async def finder(self, documents: Sequence[ParsedDocument]) -> PassageIndex:
        """Return the passage index of these documents."""
        key = tuple(document.digest for document in documents)
        async with self._locked(key):
            finder = self._finders.get(key)
            if finder is None:
                finder = self._finders.put(key, await anyio.to_thread.run_sync(PassageIndex, documents))
            return finder

    async def page(self, file: DocumentFile, number: int, dpi: int) -> RenderedImage:
        """Return a page as an image.

        :raises ToolFailure: if the page does not exist.
        """
        return await self._image(file, {"do": "page", "page": str(number), "dpi": str(dpi)})

    async def picture(self, file: DocumentFile, key: str) -> RenderedImage:
        """Return a picture of a document."""
        return await self._image(file, {"do": "picture", "key": key})

    async def tables(self, file: DocumentFile, pages: Sequence[int]) -> list[DocumentTable]:
        """Return the tables on pages of a PDF file."""
        digest, source = await self._digest(file)
        what = {"do": "tables", "pages": ",".join(map(str, pages))}
        part = f"tables-{hashlib.blake2b(what['pages'].encode(), digest_size=8).hexdigest()}"

        async def ask() -> tuple[list[DocumentTable], bytes]:
            return await self._ask(file, source, what, tables_of)

        return await self._cached_or_asked(digest, part, tables_of, ask)

    async def _image(self, file: DocumentFile, what: Mapping[str, str]) -> RenderedImage:
        digest, source = await self._digest(file)
        key = (digest, *what.values())
        shown = self._images.get(key)
        if shown is None:
            image, _ = await self._ask(file, source, what, image_of)
            shown = self._images.put(key, image)
        return shown

    async def _read(self, file: DocumentFile, digest: str, source: DocumentSource | None) -> ParsedDocument:
        settings = self._settings
        what = {"do": "content", "ocr_program": settings.ocr_program, "ocr_languages": settings.ocr_languages}

        async def ask() -> tuple[DocumentContent, bytes]:
            if failure := self._failures.get(digest):
                raise failure
            try:
                return await self._ask(file, source, what, content_of)
            except ToolFailure as error:
                if error.kind in _PERMANENT:
                    self._failures.put(digest, error)
                raise

        content = await self._cached_or_asked(digest, "content", content_of, ask)
        return ParsedDocument(digest, content)

    async def _cached_or_asked(
        self,
        digest: str,
        part: str,
        decode: Callable[[bytes], Awaitable[T]],
        ask: Callable[[], Awaitable[tuple[T, bytes]]],
    ) -> T:
        """Return a decoded reply of the document's reader, from the cache on disk if possible."""
        name = self._name(digest, part)
        cached = await anyio.to_thread.run_sync(self._store.get, name)
        if cached is not None:
            with suppress(FrameError):
                return await decode(cached)
        content, reply = await ask()
        await anyio.to_thread.run_sync(self._store.put, name, reply)
        return content

    async def _ask(
        self,
        file: DocumentFile,
        source: DocumentSource | None,
        what: Mapping[str, str],
        decode: Callable[[bytes], Awaitable[T]],
    ) -> tuple[T, bytes]:
        source = source or await anyio.to_thread.run_sync(self._load, file)
        return await self._readers.ask(source, what, self._settings.timeout, decode)

    async def _digest(self, file: DocumentFile) -> tuple[str, DocumentSource | None]:
        """Return the digest of a file's content, and the content if it had to be read for that."""
        key = (file.path, file.size, file.stamp)
        digest = self._digests.get(key)
        if digest is not None:
            return digest, None
        source = await anyio.to_thread.run_sync(self._load, file)
        return self._digests.put(key, source.digest), source

    def _load(self, file: DocumentFile) -> DocumentSource:
        most = self._settings.file_bytes
        try:
            with open(os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                # Exactly this size: `read` allocates all that it is asked for.
                data = opened.read(size) if size <= most else b""
        except OSError as error:
            raise ToolFailure(ErrorKind.NOT_FOUND, f"document: {file.name!r}: {error.strerror}.") from None
        if size > most:
            message = f"document: {file.name!r} is larger than {most} bytes (setting `file_bytes`)."
            raise ToolFailure(ErrorKind.FILE_TOO_LARGE, message)
        suffix = file.path.suffix.lower().encode()
        return DocumentSource(
            file.name, hashlib.blake2b(data, digest_size=20, key=suffix[:64]).hexdigest(), data
        )

    def _name(self, digest: str, part: str) -> str:
        settings = f"{self._settings.ocr_program} {self._settings.ocr_languages}"
        return f"{digest}-{_version(settings)}-{part}.json"

    @asynccontextmanager
    async def _locked(self, key: object) -> AsyncGenerator[None]:
        """Hold the lock of a key, which is discarded when unused."""
        lock, users = self._locks.get(key) or (anyio.Lock(), 0)
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            _, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = (lock, users - 1)


@lru_cache(8)
def _version(settings: str) -> str:
    """Return a digest of the reader's code, libraries and settings; it invalidates cached entries."""
    digest = hashlib.blake2b(settings.encode(), digest_size=6)
    for path in sorted(Path(__file__).with_name("inside").glob("*.py")):
        digest.update(path.read_bytes())
    for name in _DISTRIBUTIONS:
        try:
            digest.update(metadata.version(name).encode())
        except metadata.PackageNotFoundError:
            digest.update(b"none")
    return digest.hexdigest()
