"""Documents of a corpus, read from JSONL, Markdown and text files."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from agentflow.errors import ConfigurationError
from mcp_servers.rag._terms import tidy, tidy_line

BUNDLED: Final = Path(__file__).parent / "corpus/documents.jsonl"
"""The bundled corpus."""

_LINES = (".jsonl", ".ndjson")
_PROSE = (".md", ".markdown", ".txt")
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


def files_of(source: Path) -> dict[str, Path]:
    """Return the document files by their relative names, sorted."""
    if source.is_file():
        return {source.name: source}
    paths = (
        path
        for path in source.rglob("*")
        if path.suffix.lower() in (*_LINES, *_PROSE)
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(source).parts)
    )
    return dict(sorted((path.relative_to(source).as_posix(), path) for path in paths))


def documents_of(name: str, path: Path) -> Iterator[CorpusDocument]:
    """Yield the documents of a file.

    :raises ConfigurationError: for an invalid line or an unreadable file.
    """
    try:
        if path.suffix.lower() in _PROSE:
            yield _prose(name, path)
        else:
            yield from _lines(path)
    except OSError as error:
        raise ConfigurationError(f"rag: {path} can't be read: {error.strerror}") from None


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
                given = _decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                reason = str(error).removesuffix(".")
                message = f'{reason}. A line is a JSON object: {{"id": …, "title": …, "text": …}}'
                raise ConfigurationError(f"rag: {path}:{number}: {message}") from None
            yield _document(given)


def _document(given: _JsonLine) -> CorpusDocument:
    text = tidy(given.text)
    name = tidy_line(str(given.id)) if given.id is not None else ""
    if not name:
        # An id derived from the content does not change when lines are inserted.
        name = f"doc-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
    return CorpusDocument(name, tidy_line(given.title or "") or name, text)
