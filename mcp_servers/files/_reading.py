"""Reading parts of files of any size."""

import codecs
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from runtimes import Instance

CHUNK = 1024 * 1024
COUNTED = 8 * CHUNK
SNIFFED = 8192
"""Number of leading bytes from which a file's type is determined."""

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"PAR1", "application/vnd.apache.parquet"),
)


@dataclass(frozen=True, slots=True)
class Lines:
    """Consecutive lines of a file."""

    text: str
    """The lines, unchanged."""
    last: int
    """Number of the last line; less than the first requested line if there is none."""
    total: int | None
    """Number of lines of the whole file, if counted."""
    more: bool
    """More lines follow."""
    cut: bool
    """The last line is longer than the limit and truncated."""


def mime_of(beginning: bytes) -> str:
    """Return a file's MIME type from its first bytes: `text/plain` unless it is binary."""
    for signature, mime in _SIGNATURES:
        if beginning.startswith(signature):
            return mime
    if beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP":
        return "image/webp"
    return "application/octet-stream" if b"\0" in beginning else "text/plain"


async def read_lines(
    instance: Instance, path: str, size: int, *, first: int, count: int, characters: int
) -> Lines:
    """Read up to `count` lines from line `first`, within the character limit. Counts the lines of small files."""
    kept: list[str] = []
    room, number, stopped = characters, 0, False
    async with aclosing(_lines(instance, path)) as lines:
        async for line in lines:
            number += 1
            if number < first or stopped:
                continue
            stopped = len(kept) == count or (len(line) > room and bool(kept))
            if not stopped:
                kept.append(line[:room])
                room -= len(kept[-1])
                if len(kept[-1]) < len(line):
                    return Lines("".join(kept), number, None, True, True)
            elif size > COUNTED:
                return Lines("".join(kept), first - 1 + len(kept), None, True, False)
    return Lines("".join(kept), first - 1 + len(kept), number, stopped, False)


async def _lines(instance: Instance, path: str) -> AsyncGenerator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offset, rest = 0, ""
    while True:
        chunk = await instance.read(path, offset=offset, length=CHUNK)
        offset += len(chunk)
        last = len(chunk) < CHUNK
        *whole, rest = (rest + decoder.decode(chunk, last)).split("\n")
        for line in whole:
            yield line + "\n"
        if last:
            break
    if rest:
        yield rest
