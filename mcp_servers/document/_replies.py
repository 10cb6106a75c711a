"""Replies of reader processes, which may be compromised: bounded and checked before the server uses them.

A reply is one line of JSON, the head, followed by bytes: the text of a document as UTF-8, or an image.
"""

import codecs
from typing import Annotated, Final, NamedTuple

import anyio.to_thread
import msgspec

from agentflow.errors import ErrorKind
from mcp_servers.document._document import DocumentContent, DocumentTable
from mcp_servers.document.inside._draft import MAX_CHARACTERS
from runtimes import FrameError, JsonLimits, decode_untrusted

MIB: Final = 1024 * 1024
CONTENT_LIMITS: Final = JsonLimits(max_bytes=32 * MIB, max_values=500_000)
"""Limits of the head of a document's content and of its tables; `DocumentWriter` stays within them."""
SMALL_LIMITS: Final = JsonLimits(max_bytes=64 * 1024, max_values=16)
"""Limits of the other heads: the size of an image, or an error."""
MAX_ANSWER: Final = CONTENT_LIMITS.max_bytes + 4 * MAX_CHARACTERS + 1
"""Largest reply: the head, and the text at four bytes per character."""
_PIECE_BYTES: Final = 1 << 20
_ERROR: Final = b'{"why"'

_Size = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class ReaderError(msgspec.Struct):
    """Error reply of a reader."""

    why: ErrorKind
    message: str


class _ImageSize(msgspec.Struct):
    width: _Size
    height: _Size
    dpi: _Size


class _TablesReply(msgspec.Struct):
    tables: list[DocumentTable]


class RenderedImage(NamedTuple):
    """A PNG image."""

    png: bytes
    width: int
    height: int
    dpi: int
    """Resolution in dots per inch; 0 if it has none."""


_error = msgspec.json.Decoder(ReaderError)
_content = msgspec.json.Decoder(DocumentContent)
_tables = msgspec.json.Decoder(_TablesReply)
_size = msgspec.json.Decoder(_ImageSize)


async def error_of(answer: bytes) -> ReaderError | None:
    """Return the error that a reply reports, if any.

    :raises FrameError: if the reply is malformed.
    """
    if not answer.startswith(_ERROR):
        return None
    head, _ = _split(answer, SMALL_LIMITS)
    return await decode_untrusted(head, _error.decode, SMALL_LIMITS)


async def content_of(answer: bytes) -> DocumentContent:
    """Decode the content of a document.

    :raises FrameError: if the reply is malformed or too large, or a position lies outside the text.
    """
    head, text = _split(answer, CONTENT_LIMITS)
    content = await decode_untrusted(head, _content.decode, CONTENT_LIMITS)
    return await anyio.to_thread.run_sync(_with_text, content, text)


async def tables_of(answer: bytes) -> list[DocumentTable]:
    """Decode tables.

    :raises FrameError: if the reply is malformed or too large.
    """
    head, _ = _split(answer, CONTENT_LIMITS)
    return (await decode_untrusted(head, _tables.decode, CONTENT_LIMITS)).tables


async def image_of(answer: bytes) -> RenderedImage:
    """Decode an image.

    :raises FrameError: if the reply is malformed.
    """
    head, data = _split(answer, SMALL_LIMITS)
    size = await decode_untrusted(head, _size.decode, SMALL_LIMITS)
    png = bytes(data)
    if not png.startswith(b"\x89PNG"):
        raise FrameError("an image is not a PNG file")
    return RenderedImage(png, size.width, size.height, size.dpi)


def _split(answer: bytes, limits: JsonLimits) -> tuple[bytes, memoryview]:
    """Return the head and the bytes after it."""
    end = answer.find(b"\n", 0, limits.max_bytes + 1)
    if end < 0:
        raise FrameError(f"a reply has no head of at most {limits.max_bytes} bytes")
    return answer[:end], memoryview(answer)[end + 1 :]


def _with_text(content: DocumentContent, data: memoryview) -> DocumentContent:
    """Return the content with its text, after a check of all positions in it."""
    text = _text_of(data)
    starts = [position for _, _, position in content.sections]
    tables = [position for table in content.tables for position in (table.start, table.end)]
    pictures = [position for position, _ in content.pictures]
    positions = (*content.pages, *starts, *tables, *pictures)
    if not all(0 <= position <= len(text) for position in positions):
        raise FrameError("a position lies outside the text")
    if content.pages != sorted(content.pages) or starts != sorted(starts):
        raise FrameError("positions are out of order")
    return msgspec.structs.replace(content, text=text)


def _text_of(data: memoryview) -> str:
    """Decode text piece by piece, because one rare character makes a whole string take four bytes per character."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    pieces: list[str] = []
    length = 0
    try:
        for start in range(0, len(data), _PIECE_BYTES):
            pieces.append(decoder.decode(bytes(data[start : start + _PIECE_BYTES])))
            length += len(pieces[-1])
            if length > MAX_CHARACTERS:
                raise FrameError(f"a text has more than {MAX_CHARACTERS} characters")
        pieces.append(decoder.decode(b"", final=True))
    except UnicodeDecodeError as error:
        raise FrameError("a text is not UTF-8") from error
    return "".join(pieces)
