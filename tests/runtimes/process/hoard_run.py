"""Keep memory outside of the address space of a process, and print how many MiB a sandbox could keep. Run as a program."""

import json
import sys
from typing import Final

import anyio

from runtimes import InstanceSpec, Limits
from runtimes.process import ProcessRuntime

_MIB: Final = 1 << 20
LIMITS: Final = Limits(
    memory_bytes=256 * _MIB, file_bytes=16 * _MIB, disk_bytes=64 * _MIB, open_files=128, wall_seconds=60
)
HOARDS: Final = {
    "unnamed files": """
try:
    while more():
        kept.append(os.memfd_create("m"))
        for n in range(16):
            total += os.write(kept[-1], block)
except OSError:
    pass
""",
    "System V segments": """
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
libc.shmdt.argtypes = [ctypes.c_void_p]
while more() and (segment := libc.shmget(0, ctypes.c_size_t(16 << 20), 0o1600)) >= 0:
    start = libc.shmat(segment, None, 0)
    ctypes.memset(start, 1, 16 << 20)
    libc.shmdt(start)
    total += 16 << 20
""",
    "System V messages": """
libc = ctypes.CDLL(None)
message = (1).to_bytes(8, sys.byteorder) + bytes(8192)
while more() and (queue := libc.msgget(0, 0o1600)) >= 0:
    while libc.msgsnd(queue, message, ctypes.c_size_t(8192), 0o4000) == 0:
        total += 8192
""",
    "pairs of sockets": """
try:
    while more():
        for end in socket.socketpair():
            kept.append(end)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
            end.setblocking(False)
            fill(lambda: end.send(block[:65536]))
except OSError:
    pass
""",
    "connections": """
server = socket.create_server(("127.0.0.1", 0))
try:
    while more():
        ends = [socket.create_connection(server.getsockname()), server.accept()[0]]
        kept.extend(ends)
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
            end.setblocking(False)
        for end in ends * 4:
            fill(lambda: end.send(block))
except OSError:
    pass
""",
    "pipes": """
try:
    while more():
        kept.extend(os.pipe2(os.O_NONBLOCK))
        fill(lambda: os.write(kept[-1], block[:4096]))
except OSError:
    pass
""",
}
"""Programs by the memory that they keep: `total` is its size in bytes."""
_START: Final = """
import ctypes, os, socket, sys
block, kept, total = bytes(1 << 20), [], 0
def more():
    return total < 600 << 20
def fill(send):
    global total
    try:
        while True:
            total += send()
    except BlockingIOError:
        pass
"""


async def hoard() -> dict[str, int]:
    """Return the MiB kept by each program in a sandbox of its own."""
    kept: dict[str, int] = {}
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        for name, code in HOARDS.items():
            instance = await runtime.start(InstanceSpec(limits=LIMITS))
            result = await instance.run("python", f"{_START}{code}\ntotal >> 20")
            assert result.value is not None, (name, result)
            kept[name] = int(result.value)
            await instance.stop()
    return kept


def main() -> None:
    """Print the MiB kept by each program."""
    sys.stdout.write(json.dumps(anyio.run(hoard)))


if __name__ == "__main__":
    main()
