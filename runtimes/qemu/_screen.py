"""Screenshots: from QEMU's images to PNG."""

import os
import struct
import zlib

import anyio

from agentflow.errors import RuntimeFailure
from runtimes._machine import Screen
from runtimes.qemu._qmp import QmpClient

_MAX_SIDE = 8192
_MAX_FILE = 256 << 20
_BLINKING = 0.05


class ScreenReader:
    """Screenshot reader of one machine. It passes a file in memory: QEMU never opens a file of the host by name."""

    def __init__(self, qmp: QmpClient) -> None:
        self._qmp = qmp
        self._file = os.memfd_create("screen", os.MFD_CLOEXEC)
        self._writable = os.open(f"/proc/self/fd/{self._file}", os.O_WRONLY | os.O_CLOEXEC)
        self._registered = False
        self.lock = anyio.Lock()
        """Held while a screenshot is taken."""

    async def look(self) -> bytes:
        """Return the current screen as PPM."""
        async with self.lock:
            # No other screenshot may start before QEMU has written this one completely.
            with anyio.CancelScope(shield=True):
                await self._write()
            return os.pread(self._file, min(os.fstat(self._file).st_size, _MAX_FILE), 0)

    async def _write(self) -> None:
        if not self._registered:
            await self._qmp.execute("add-fd", fds=[self._writable], fdset_id=1)
            self._registered = True
        os.ftruncate(self._file, 0)
        os.lseek(self._writable, 0, os.SEEK_SET)
        await self._qmp.execute("screendump", filename="/dev/fdset/1", format="ppm")

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            os.close(self._writable)
            self._file = -1


def size_of(ppm: bytes) -> tuple[int, int]:
    """Return width and height of an image.

    :raises RuntimeFailure: if it is malformed.
    """
    parts = ppm[:64].split(maxsplit=3)
    if len(parts) != 4 or parts[0] != b"P6" or not all(part.isdigit() for part in parts[1:3]):
        raise RuntimeFailure("QEMU returned no screenshot")
    width, height = int(parts[1]), int(parts[2])
    if not (0 < width <= _MAX_SIDE and 0 < height <= _MAX_SIDE) or len(ppm) < width * height * 3:
        raise RuntimeFailure("QEMU returned an incomplete screenshot")
    return width, height


def to_screen(ppm: bytes) -> Screen:
    """Convert a PPM to PNG with light compression."""
    width, height = size_of(ppm)
    row = width * 3
    view = memoryview(ppm)[len(ppm) - row * height :]
    rows = b"".join(b"\0%b" % view[start : start + row] for start in range(0, row * height, row))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    return Screen(b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks), width, height)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def nearly_equal(before: bytes, after: bytes) -> bool:
    """Return true if two screenshots differ by at most a blinking cursor."""
    if before == after:
        return True
    if len(before) != len(after):
        return False
    row = size_of(after)[0] * 3
    starts = range(0, len(after), row)
    changed = sum(before[start : start + row] != after[start : start + row] for start in starts)
    return changed <= len(starts) * _BLINKING


def is_blank(ppm: bytes) -> bool:
    """Return true if all pixels have one color."""
    width, height = size_of(ppm)
    pixels = ppm[len(ppm) - width * height * 3 :]
    return pixels == pixels[:3] * (width * height)
