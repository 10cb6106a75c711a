"""Reads a part of a file, however large it is."""

import codecs
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from runtimes import Instance

__all__ = ["SNIFFED", "Lines", "mime_of", "read_lines"]

CHUNK = 1024 * 1024
COUNTED = 8 * CHUNK
SNIFFED = 8192
"""How much of a file is looked at to tell what it is."""

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
    """The lines as they stand."""
    last: int
    """Number of the last one; below the first asked for, if there is none."""
    total: int | None
    """Lines of the whole file, if counted."""
    more: bool
    """Lines follow."""
    cut: bool
    """The last line is longer than what may be read at once, and only its beginning is here."""


def mime_of(beginning: bytes) -> str:
    """The type of a file, by how it begins: `text/plain` unless it is binary."""
    for signature, mime in _SIGNATURES:
        if beginning.startswith(signature):
            return mime
    if beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP":
        return "image/webp"
    return "application/octet-stream" if b"\0" in beginning else "text/plain"


async def read_lines(
    instance: Instance, path: str, size: int, *, first: int, count: int, characters: int
) -> Lines:
    """Up to `count` lines from line `first` on, and no more characters than given. Counts the lines of small files."""
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
