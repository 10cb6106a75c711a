"""Ask the kernel for the filter's answer to system calls without making them. Run as a program.

Calls are made from one page of machine code. An outer filter puts each call from that page to a listener, which answers
with an error that no filter uses, and the filter under test is installed on top: of two filters the kernel obeys the one
that refuses. So a call that the filter allows reaches the listener and never the kernel.
"""

import ctypes
import errno
import json
import mmap
import platform
import struct
import sys
import threading

from runtimes.process.linux import _seccomp
from runtimes.process.linux import _syscalls as sc

Call = tuple[int, ...]
"""Number of a system call and its arguments, up to six."""
ALLOWED = errno.EDOTDOT
"""Error of a call that the filter allows."""
_CODE = {
    "x86_64": bytes.fromhex("4889f8 4889f7 4889d6 4889ca 4d89c2 4d89c8 4c8b4c2408 0f05 c3"),
    "aarch64": bytes.fromhex(
        "e80300aa e00301aa e10302aa e20303aa e30304aa e40305aa e50306aa 010000d4 c0035fd6"
    ),
}
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06


class KernelFilter:
    """The filter under test, on the thread that creates this."""

    def __init__(self, *, notify: bool) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._page.write(_CODE[platform.machine()])
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self._call = ctypes.CFUNCTYPE(ctypes.c_long, *[ctypes.c_long] * 7)(address)
        self._listener = -1
        ready = threading.Event()
        # Without the filters, which bind only the calling thread.
        threading.Thread(target=self._serve, args=[ready], daemon=True).start()
        sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)
        self._listener = _seccomp.install(_calls_from(address), listener=True)
        ready.set()
        _seccomp.install(_seccomp.build_filter(notify=notify))

    def _serve(self, ready: threading.Event) -> None:
        ready.wait()
        while True:
            call = _seccomp.next_call(self._listener)
            if call is not None:
                _seccomp.succeed(self._listener, call, -ALLOWED)

    def answer(self, call: Call) -> int:
        """Return the error of a call; 0 if it succeeded without having been made."""
        return -self._call(*call, *[0] * (7 - len(call)))


def _calls_from(page: int) -> bytes:
    lines = [
        (_LOAD, 0, 0, 12),
        (_EQUAL, 0, 4, page >> 32),
        (_LOAD, 0, 0, 8),
        (_AND, 0, 0, -mmap.PAGESIZE & 0xFFFFFFFF),
        (_EQUAL, 0, 1, page & 0xFFFFFFFF),
        (_RETURN, 0, 0, _NOTIFY),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def main() -> None:
    """Read calls, one JSON list per line; print the answers of both filters."""
    calls: list[Call] = [tuple(json.loads(line)) for line in sys.stdin]
    answers: list[list[int]] = []

    def ask(notify: bool) -> None:
        kernel = KernelFilter(notify=notify)
        answers.append([kernel.answer(call) for call in calls])

    for notify in (False, True):
        thread = threading.Thread(target=ask, args=[notify])
        thread.start()
        thread.join()
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
