"""What is on the screen: from QEMU's own pictures to PNG."""

import os
import struct
import zlib

import anyio

from agentflow.errors import RuntimeFailure
from runtimes._machine import Screen
from runtimes.qemu._qmp import Qmp

_LARGEST = 8192
_LARGEST_FILE = 256 << 20
_BLINKING = 0.05


class Eyes:
    """Looks at one machine's screen, through a file in memory: QEMU never names a file of the host's."""

    def __init__(self, qmp: Qmp) -> None:
        self._qmp = qmp
        self._file = os.memfd_create("screen", os.MFD_CLOEXEC)
        self._writable = os.open(f"/proc/self/fd/{self._file}", os.O_WRONLY | os.O_CLOEXEC)
        self._known = False
        self.lock = anyio.Lock()
        """Whoever has it keeps others from looking."""

    async def look(self) -> bytes:
        """What is on the screen now, as PPM."""
        async with self.lock:
            # Nobody else may look before QEMU has written all of it.
            with anyio.CancelScope(shield=True):
                await self._write()
            return os.pread(self._file, min(os.fstat(self._file).st_size, _LARGEST_FILE), 0)

    async def _write(self) -> None:
        if not self._known:
            await self._qmp.execute("add-fd", fds=[self._writable], fdset_id=1)
            self._known = True
        os.ftruncate(self._file, 0)
        os.lseek(self._writable, 0, os.SEEK_SET)
        await self._qmp.execute("screendump", filename="/dev/fdset/1", format="ppm")

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            os.close(self._writable)
            self._file = -1


def size_of(ppm: bytes) -> tuple[int, int]:
    """Width and height of a picture.

    :raises RuntimeFailure: if it is none.
    """
    parts = ppm[:64].split(maxsplit=3)
    if len(parts) != 4 or parts[0] != b"P6" or not all(part.isdigit() for part in parts[1:3]):
        raise RuntimeFailure("QEMU gave no picture of the screen")
    width, height = int(parts[1]), int(parts[2])
    if not (0 < width <= _LARGEST and 0 < height <= _LARGEST) or len(ppm) < width * height * 3:
        raise RuntimeFailure("QEMU gave no whole picture of the screen")
    return width, height


def to_screen(ppm: bytes) -> Screen:
    """A PPM as PNG, packed lightly: it is looked at once."""
    width, height = size_of(ppm)
    row = width * 3
    view = memoryview(ppm)[len(ppm) - row * height :]
    rows = b"".join(b"\0%b" % view[start : start + row] for start in range(0, row * height, row))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    return Screen(b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks), width, height)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def alike(before: bytes, after: bytes) -> bool:
    """Whether two pictures of a screen differ by no more than a cursor that blinks."""
    if before == after:
        return True
    if len(before) != len(after):
        return False
    row = size_of(after)[0] * 3
    starts = range(0, len(after), row)
    changed = sum(before[start : start + row] != after[start : start + row] for start in starts)
    return changed <= len(starts) * _BLINKING


def blank(ppm: bytes) -> bool:
    """Whether there is one colour only."""
    width, height = size_of(ppm)
    pixels = ppm[len(ppm) - width * height * 3 :]
    return pixels == pixels[:3] * (width * height)
