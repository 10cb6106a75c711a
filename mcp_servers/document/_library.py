"""Documents ready for use: read once, then cached by content in memory and on disk."""

import contextlib
import hashlib
import os
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

import anyio
import anyio.to_thread
import msgspec

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.document._document import Document, Draft, Table
from mcp_servers.document._files import File
from mcp_servers.document._reader_pool import Desks, Source
from mcp_servers.document._search import Finder
from mcp_servers.document._settings import DocumentSettings

__all__ = ["Library", "Shown", "Store"]

_ROOM = 0.9
"""When it is too full, it is emptied to this share of what it may hold."""
T = TypeVar("T")
MOST_CHARACTERS = 40_000_000
MOST_IMAGE_BYTES = 32 * 1024 * 1024
MOST_DIGESTS = 20_000
MOST_FAILURES = 1_000
_DISTRIBUTIONS: Final = (
    "pypdfium2",
    "pdfplumber",
    "python-docx",
    "python-pptx",
    "openpyxl",
    "pillow",
    "markdown-it-py",
)
_LASTING: Final = (ErrorKind.TIMEOUT, ErrorKind.OUT_OF_MEMORY, ErrorKind.CPU_LIMIT, ErrorKind.OUTPUT_LIMIT)


class Store:
    """Bytes by name in a folder. Everything here may block."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        self._most = most
        self._used: int | None = None

    def get(self, name: str) -> bytes | None:
        """What is kept under that name; it is used now."""
        path = self._folder / name
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        return data

    def put(self, name: str, data: bytes) -> None:
        """Keep it, in one step. Where there is no room, or nothing can be written, nothing is kept."""
        if len(data) > self._most:
            return
        part = self._folder / f".{secrets.token_hex(8)}.part"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            part.write_bytes(data)
            part.replace(self._folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            return
        self._used = None if self._used is None else self._used + len(data)
        if self._used is None or self._used > self._most:
            self._make_room()

    def _make_room(self) -> None:
        """Drop what was not used for longest; other processes may do so too."""
        kept: list[tuple[float, int, Path]] = []
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    kept.append((status.st_mtime, status.st_size, Path(entry.path)))
        self._used = sum(size for _, size, _ in kept)
        if self._used <= self._most:
            return
        for _, size, path in sorted(kept):
            if self._used <= self._most * _ROOM:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            self._used -= size


class _Size(msgspec.Struct):
    width: int
    height: int
    dpi: int


class _Tables(msgspec.Struct):
    tables: list[Table]


class Shown(NamedTuple):
    """A picture to be shown."""

    png: bytes
    """Its bytes."""
    width: int
    """Its width."""
    height: int
    """Its height."""
    dpi: int
    """Its resolution; 0 where it has none."""


class _Kept(Generic[T]):
    """What was used last, up to a size."""

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


class Library:
    """All documents that were read."""

    def __init__(self, settings: DocumentSettings) -> None:
        self._settings = settings
        self._desks = Desks(settings)
        self._store = Store(settings.cache_dir or _default_cache(), settings.cache_bytes)
        self._digests: _Kept[str] = _Kept(MOST_DIGESTS, lambda _: 1)
        self._documents: _Kept[Document] = _Kept(MOST_CHARACTERS, lambda one: len(one.text) + 1_000)
        self._finders: _Kept[Finder] = _Kept(MOST_CHARACTERS, lambda one: one.characters + 1_000)
        self._images: _Kept[Shown] = _Kept(MOST_IMAGE_BYTES, lambda one: len(one.png))
        self._failures: _Kept[ToolFailure] = _Kept(MOST_FAILURES, lambda _: 1)
        self._turns: dict[object, tuple[anyio.Lock, int]] = {}

    async def close(self) -> None:
        """End what reads."""
        await self._desks.close()

    async def document(self, file: File) -> Document:
        """The document in a file.

        :raises ToolFailure: if it can't be read.
        """
        digest, source = await self._digest(file)
        document = self._documents.get(digest)
        if document is not None:
            return document
        async with self._alone(("document", digest)):
            document = self._documents.get(digest)
            if document is None:
                document = self._documents.put(digest, await self._read(file, digest, source))
            return document

    async def finder(self, documents: Sequence[Document]) -> Finder:
        """What finds passages of these documents."""
        key = tuple(document.digest for document in documents)
        async with self._alone(key):
            finder = self._finders.get(key)
            if finder is None:
                finder = self._finders.put(key, await anyio.to_thread.run_sync(Finder, documents))
            return finder

    async def page(self, file: File, number: int, dpi: int) -> Shown:
        """A page as a picture.

        :raises ToolFailure: if there is none.
        """
        return await self._image(file, {"do": "page", "page": str(number), "dpi": str(dpi)})

    async def picture(self, file: File, key: str) -> Shown:
        """A picture in a document."""
        return await self._image(file, {"do": "picture", "key": key})

    async def tables(self, file: File, pages: Sequence[int]) -> list[Table]:
        """The tables on pages of a PDF file."""
        digest, source = await self._digest(file)
        what = {"do": "tables", "pages": ",".join(map(str, pages))}
        part = f"tables-{hashlib.blake2b(what['pages'].encode(), digest_size=8).hexdigest()}"
        said = await anyio.to_thread.run_sync(self._recall, digest, part)
        tables = _tables_of(said) if said is not None else None
        if tables is None:
            said, _ = await self._ask(file, source, what)
            tables = _tables_of(said)
            if tables is None:
                raise _garbled(file)
            await anyio.to_thread.run_sync(self._keep, digest, part, said)
        return tables

    async def _image(self, file: File, what: Mapping[str, str]) -> Shown:
        digest, source = await self._digest(file)
        key = (digest, *what.values())
        shown = self._images.get(key)
        if shown is None:
            said, png = await self._ask(file, source, what)
            try:
                size = msgspec.json.decode(said, type=_Size)
            except msgspec.DecodeError:
                raise _garbled(file) from None
            if not png.startswith(b"\x89PNG"):
                raise _garbled(file)
            shown = self._images.put(key, Shown(png, size.width, size.height, size.dpi))
        return shown

    async def _read(self, file: File, digest: str, source: Source | None) -> Document:
        kept = await anyio.to_thread.run_sync(self._recall, digest, "draft")
        if kept is not None:
            draft = await anyio.to_thread.run_sync(_draft_of, kept)
            if draft is not None:
                return Document(digest, draft)
        failure = self._failures.get(digest)
        if failure is not None:
            raise failure
        settings = self._settings
        what = {"do": "draft", "ocr_program": settings.ocr_program, "ocr_languages": settings.ocr_languages}
        try:
            said, _ = await self._ask(file, source, what)
        except ToolFailure as error:
            if error.kind in _LASTING:
                self._failures.put(digest, error)
            raise
        draft = await anyio.to_thread.run_sync(_draft_of, said)
        if draft is None:
            raise _garbled(file)
        await anyio.to_thread.run_sync(self._keep, digest, "draft", said)
        return Document(digest, draft)

    async def _ask(self, file: File, source: Source | None, what: Mapping[str, str]) -> tuple[bytes, bytes]:
        source = source or await anyio.to_thread.run_sync(self._load, file)
        return await self._desks.ask(source, what, self._settings.timeout)

    async def _digest(self, file: File) -> tuple[str, Source | None]:
        """What stands for the content of a file; and the content, where it had to be read for that."""
        key = (file.path, file.size, file.stamp)
        digest = self._digests.get(key)
        if digest is not None:
            return digest, None
        source = await anyio.to_thread.run_sync(self._load, file)
        return self._digests.put(key, source.digest), source

    def _load(self, file: File) -> Source:
        most = self._settings.file_bytes
        try:
            with open(os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
                data = opened.read(most + 1)
        except OSError as error:
            raise ToolFailure(ErrorKind.NOT_FOUND, f"document: {file.name!r}: {error.strerror}.") from None
        if len(data) > most:
            message = f"document: {file.name!r} is larger than the {most} bytes that are read (`file_bytes`)."
            raise ToolFailure(ErrorKind.FILE_TOO_LARGE, message)
        suffix = file.path.suffix.lower().encode()
        return Source(file.name, hashlib.blake2b(data, digest_size=20, key=suffix[:64]).hexdigest(), data)

    def _recall(self, digest: str, part: str) -> bytes | None:
        return self._store.get(self._name(digest, part))

    def _keep(self, digest: str, part: str, said: bytes) -> None:
        self._store.put(self._name(digest, part), said)

    def _name(self, digest: str, what: str) -> str:
        settings = f"{self._settings.ocr_program} {self._settings.ocr_languages}"
        return f"{digest}-{_version(settings)}-{what}.json"

    def _alone(self, key: object) -> "_Alone":
        return _Alone(self._turns, key)


class _Alone:
    """One at a time for each key."""

    def __init__(self, turns: dict[object, tuple[anyio.Lock, int]], key: object) -> None:
        self._turns = turns
        self._key = key

    async def __aenter__(self) -> None:
        lock, users = self._turns.get(self._key) or (anyio.Lock(), 0)
        self._turns[self._key] = (lock, users + 1)
        try:
            await lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *exc: object) -> None:
        self._turns[self._key][0].release()
        self._leave()

    def _leave(self) -> None:
        lock, users = self._turns[self._key]
        if users > 1:
            self._turns[self._key] = (lock, users - 1)
        else:
            del self._turns[self._key]


def _draft_of(data: bytes) -> Draft | None:
    """What was read, if that is what it is: all places lie in the text and follow each other."""
    try:
        draft = msgspec.json.decode(data, type=Draft)
    except msgspec.DecodeError:
        return None
    length = len(draft.text)
    starts = [place for _, _, place in draft.sections]
    tables = [place for table in draft.tables for place in (table.start, table.end)]
    pictures = [place for place, _ in draft.pictures]
    inside = all(0 <= place <= length for place in (*draft.pages, *starts, *tables, *pictures))
    in_order = draft.pages == sorted(draft.pages) and starts == sorted(starts)
    return draft if inside and in_order else None


def _tables_of(data: bytes) -> list[Table] | None:
    try:
        return msgspec.json.decode(data, type=_Tables).tables
    except msgspec.DecodeError:
        return None


def _garbled(file: File) -> ToolFailure:
    return ToolFailure(
        ErrorKind.FAILED, f"document: {file.name!r} can't be read: its reader gave no sound answer."
    )


def _default_cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "agentflow/document"


@lru_cache(8)
def _version(settings: str) -> str:
    """Changes with the reader, its libraries and its settings."""
    digest = hashlib.blake2b(settings.encode(), digest_size=6)
    for path in sorted(Path(__file__).with_name("inside").glob("*.py")):
        digest.update(path.read_bytes())
    for name in _DISTRIBUTIONS:
        try:
            digest.update(metadata.version(name).encode())
        except metadata.PackageNotFoundError:
            digest.update(b"none")
    return digest.hexdigest()
