"""Documents of a corpus, read from JSONL, Markdown and text files, and by the readers of the document backend."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeAlias

import anyio.from_thread
import anyio.to_thread
import msgspec

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow.errors import ConfigurationError, IsolationUnavailable, ToolFailure
from agentflow.extras import missing_extra
from mcp_servers.rag._terms import tidy, tidy_line

if TYPE_CHECKING:
    from mcp_servers.document._library import DocumentLibrary


BUNDLED: Final = Path(__file__).parent / "corpus/documents.jsonl"
"""The bundled corpus."""

_LINES = (".jsonl", ".ndjson")
_PROSE = (".md", ".markdown", ".txt")
_FORMATTED: Final[Mapping[str, str]] = {
    ".docx": "docx", ".htm": "", ".html": "", ".pdf": "pypdfium2", ".pptx": "pptx", ".xhtml": "", ".xlsx": "openpyxl",
}  # fmt: skip
"""Formats of the document backend, with the library that its reader needs."""
_NO_TITLES: Final = ("", "untitled")
_MAX_NAMED: Final = 3
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE)


class CorpusDocument(msgspec.Struct, frozen=True):
    """One document."""

    id: str
    """Unique id."""
    title: str
    """Title."""
    text: str
    """Text."""

    @property
    def digest(self) -> str:
        """Digest of title and text."""
        return hashlib.blake2b(f"{self.title}\0{self.text}".encode(), digest_size=16).hexdigest()


class _JsonLine(msgspec.Struct):
    """A document in a line of a JSONL file; other fields are ignored."""

    text: str
    id: str | int | None = None
    title: str | None = None


_decoder = msgspec.json.Decoder(_JsonLine)


ReadFormatted: TypeAlias = Callable[[str, Path], CorpusDocument | None]
"""Returns the document of a PDF, Office or HTML file, or `None` if it can't be read."""


class CorpusFiles(NamedTuple):
    """Files of a corpus."""

    readable: dict[str, Path]
    """Files with documents, by their relative names, sorted."""
    skipped: dict[str, int]
    """Numbers of the other files, by suffix."""


def files_of(source: Path) -> CorpusFiles:
    """Return the files of a directory, or a single file; hidden ones are ignored."""
    if source.is_file():
        return CorpusFiles({source.name: source}, {})
    readable = {*_LINES, *_PROSE, *(suffix for suffix, library in _FORMATTED.items() if _installed(library))}
    files: dict[str, Path] = {}
    skipped: Counter[str] = Counter()
    for path in source.rglob("*"):
        name = path.relative_to(source)
        if any(part.startswith(".") for part in name.parts) or not path.is_file():
            continue
        if path.suffix.lower() in readable:
            files[name.as_posix()] = path
        else:
            skipped[path.suffix.lower()] += 1
    return CorpusFiles(
        dict(sorted(files.items())), dict(sorted(skipped.items(), key=lambda item: (-item[1], item[0])))
    )


def _installed(library: str) -> bool:
    return not library or find_spec(library) is not None


class CorpusSummary(NamedTuple):
    """Origin of the documents, and the files that were left out."""

    source: str
    """Name of the directory or file; empty for the bundled corpus."""
    skipped: Mapping[str, int]
    """Numbers of files of other formats, by suffix."""
    unreadable: Mapping[str, str]
    """Reasons of files that could not be read, by name."""

    def line(self, documents: int) -> str:
        """Return one line about the corpus with its number of documents."""
        text = f"{_count(documents, 'document')} of {self.source or 'the bundled corpus'}"
        if self.skipped:
            formats = ", ".join(suffix or "no suffix" for suffix in self.skipped)
            text += f", {_count(sum(self.skipped.values()), 'file')} skipped ({formats})"
        if formatted := [suffix for suffix in self.skipped if suffix in _FORMATTED]:
            text += f"; {missing_extra('reading ' + ', '.join(formatted), 'document')}"
        if self.unreadable:
            named = [f"{name}: {reason.rstrip('.')}" for name, reason in self.unreadable.items()]
            more = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
            text += (
                f"; {_count(len(named), 'file')} could not be read ({'; '.join(named[:_MAX_NAMED])}{more})"
            )
        return text


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


class FormattedReader:
    """Reader of PDF, Office and HTML files: that of the document backend, started for the first file."""

    def __init__(self) -> None:
        self.unreadable: dict[str, str] = {}
        """Reasons of files that could not be read, by name."""
        self._library: DocumentLibrary | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._library is not None:
            await self._library.close()

    async def read(self, name: str, path: Path) -> CorpusDocument | None:
        """Return the document of a file; if it can't be read or has no text, keep the reason and return `None`."""
        from mcp_servers.document._files import DocumentSet
        from mcp_servers.document._library import DocumentLibrary  # loaded for the first file
        from mcp_servers.document._settings import DocumentSettings

        self._library = self._library or DocumentLibrary(DocumentSettings())
        try:
            parsed = await self._library.document(DocumentSet(path).file(None))
        except (ToolFailure, IsolationUnavailable) as error:
            reason = " ".join(str(error).split()).removeprefix(f"document: {path.name!r} cannot be read: ")
            self.unreadable[name] = reason
            return None
        text = tidy(parsed.text)
        if not text.strip():
            self.unreadable[name] = "has no text"
            return None
        title = tidy_line(parsed.content.title)
        return CorpusDocument(tidy_line(name), path.stem if title.lower() in _NO_TITLES else title, text)


def documents_of(name: str, path: Path, read: ReadFormatted) -> Iterator[CorpusDocument]:
    """Yield the documents of a file.

    :raises ConfigurationError: for an invalid line or an unreadable file.
    """
    try:
        if path.suffix.lower() in _PROSE:
            yield _prose(name, path)
        elif path.suffix.lower() in _FORMATTED:
            document = read(name, path)
            if document is not None:
                yield document
        else:
            yield from _lines(path)
    except OSError as error:
        raise ConfigurationError(f"rag: {path} can't be read: {error.strerror}") from None


async def read_documents(source: Path) -> list[CorpusDocument]:
    """Return all documents of a directory or file, as the backend reads them.

    See docs/synthesis.md.

    :raises ConfigurationError: one line, if it can't be read or has no document.
    """
    if not await anyio.to_thread.run_sync(source.exists):
        raise ConfigurationError(f"{source}: there is no such file or directory")
    async with FormattedReader() as reader:

        def read(name: str, path: Path) -> CorpusDocument | None:
            return anyio.from_thread.run(reader.read, name, path)

        def read_all() -> list[CorpusDocument]:
            return [
                document
                for name, path in files_of(source).readable.items()
                for document in documents_of(name, path, read)
            ]

        documents = await anyio.to_thread.run_sync(read_all)
    if not documents:
        raise ConfigurationError(
            f"{source}: it has no documents; supported are text, Markdown, JSONL and those of `document`"
        )
    return documents


def _prose(name: str, path: Path) -> CorpusDocument:
    text = tidy(path.read_bytes().decode("utf-8", "replace").removeprefix("\ufeff"))
    heading = _HEADING.search(text) if path.suffix.lower() != ".txt" else None
    return CorpusDocument(tidy_line(name), tidy_line(heading[1] if heading else path.stem), text)


def _lines(path: Path) -> Iterator[CorpusDocument]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if not line.strip():
                continue
            try:
                entry = _decoder.decode(line)
            except DECODE_ERRORS as error:
                reason = decode_reason(error).removesuffix(".")
                message = f'{reason}. A line is a JSON object: {{"id": …, "title": …, "text": …}}'
                raise ConfigurationError(f"rag: {path}:{number}: {message}") from None
            yield _document(entry)


def _document(entry: _JsonLine) -> CorpusDocument:
    text = tidy(entry.text)
    name = tidy_line(str(entry.id)) if entry.id is not None else ""
    if not name:
        # An id derived from the content does not change when lines are inserted.
        name = f"doc-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
    return CorpusDocument(name, tidy_line(entry.title or "") or name, text)
