"""Images beside the files that refer to them: each is written once, under its hash."""

import re
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import anyio.to_thread

from agentflow._private_files import make_private_folder, replace_file
from agentflow.telemetry import get_logger
from agentflow.trace import Blob

IMAGES: Final = "images"
"""Folder of the images, beside the files."""
BlobReader: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Returns the bytes of a blob, given its hash.

:raises KeyError: if it is unknown.
"""
_SUFFIXES: Final = {
    "image/bmp": "bmp",
    "image/gif": "gif",
    "image/jpeg": "jpg",
    "image/png": "png",
    "image/svg+xml": "svg",
    "image/tiff": "tiff",
    "image/webp": "webp",
}
_KNOWN: Final = frozenset({*_SUFFIXES.values(), "bin"})
_REFERENCE: Final = re.compile(rb'"' + IMAGES.encode() + rb"/([0-9a-f]{64})\.([a-z]+)\"")

logger = get_logger(__name__)


def image_file(blob: Blob) -> str:
    """Return the path of an image, relative to the files of its run.

    >>> image_file(Blob("c4a7", "image/png"))
    'images/c4a7.png'
    """
    return f"{IMAGES}/{blob.hash}.{_SUFFIXES.get(blob.mime, 'bin')}"


def image_record(blob: Blob) -> dict[str, str]:
    """Return the record of an image in a file: its hash, its type and its path.

    >>> image_record(Blob("c4a7", "image/png"))
    {'hash': 'c4a7', 'mime': 'image/png', 'file': 'images/c4a7.png'}
    """
    return {"hash": blob.hash, "mime": blob.mime, "file": image_file(blob)}


class ExportedImages:
    """The images of a folder with files. An image is complete or not there; one that is there is not read again."""

    def __init__(self, folder: Path, read: BlobReader) -> None:
        self._folder = folder
        self._read = read
        self._done: set[str] = set()

    async def write(self, lines: Iterable[bytes]) -> None:
        """Write the images to which these lines refer, unless they exist; one is in memory at a time.

        :raises OSError: if one can't be written.
        """
        for line in lines:
            if IMAGES.encode() not in line:
                continue
            for found in _REFERENCE.finditer(line):
                hash, suffix = found[1].decode(), found[2].decode()
                name = f"{hash}.{suffix}"
                if suffix not in _KNOWN or name in self._done:
                    continue
                self._done.add(name)
                await self._export(hash, self._folder / IMAGES / name)

    async def _export(self, hash: str, path: Path) -> None:
        if await anyio.to_thread.run_sync(path.is_file):
            return
        try:
            data = await self._read(hash)
        except KeyError:
            # A text that a tool returned may look like a reference.
            logger.warning("no such image", hash=hash)
            return
        await anyio.to_thread.run_sync(partial(_write, path, data))


def _write(path: Path, data: bytes) -> None:
    make_private_folder(path.parent)
    replace_file(path, data)
