"""Documents ready for use: read once, then cached by content in memory and on disk."""

import hashlib
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Final, Generic, TypeVar

import anyio
import anyio.to_thread

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._disk_cache import DiskCache, user_cache
from mcp_servers.document._document import DocumentContent, DocumentTable, ParsedDocument
from mcp_servers.document._files import DocumentFile
from mcp_servers.document._reader_pool import DocumentSource, ReaderPool
from mcp_servers.document._replies import RenderedImage, content_of, image_of, tables_of
from mcp_servers.document._search import PassageIndex
from mcp_servers.document._settings import DocumentSettings
from runtimes import FrameError

T = TypeVar("T")
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
        self._documents = _LruCache[ParsedDocument](MAX_CACHED_CHARS, lambda one: len(one.text) + 1_000)
        self._finders = _LruCache[PassageIndex](MAX_CACHED_CHARS, lambda one: one.characters + 1_000)
        self._images = _LruCache[RenderedImage](MAX_IMAGE_BYTES, lambda one: len(one.png))
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
