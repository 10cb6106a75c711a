"""The program that a family's first process is: it sleeps, and weighs nothing.

Every family has such a process for all its life. An interpreter would cost it megabytes; these are two pages. The
kernel reaps orphans for a process that ignores their signals, so there is nothing to do but to wait.
"""

import platform
import struct

_ADDRESS = 0x400000
_HEADERS = 64 + 56
_CODE = {
    # again: mov eax, 34 (pause); syscall; jmp again
    "x86_64": (62, bytes.fromhex("b822000000 0f05 ebf7")),
    # again: x0 to x3 = 0; x8 = 73 (ppoll); svc 0; b again
    "aarch64": (183, bytes.fromhex("000080d2 010080d2 020080d2 030080d2 280980d2 010000d4 faffff17")),
}

PLACE = "/sleeper"
"""Where it lies in the builder's world."""


def program() -> bytes:
    """An executable file that sleeps for ever, for this machine."""
    machine, code = _CODE[platform.machine()]
    size = _HEADERS + len(code)
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, _ADDRESS + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _ADDRESS, _ADDRESS, size, size, 0x10000)
    return identity + header + segment + code
