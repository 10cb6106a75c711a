"""Messages between the trusted processes: JSON with descriptors, over sequenced-packet sockets."""

import array
import errno
import json
import os
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

Fields = dict[str, Any]
"""A message: always with `op` or `re` (the number of the request that it answers)."""

_MAX_BYTES = 160 * 1024
_MAX_FDS = 64


class Message(NamedTuple):
    """One message with the descriptors that came with it."""

    fields: Fields
    fds: list[int]


def letter(fields: Fields) -> int:
    """A descriptor from which one process reads what is meant for it alone.

    What passes through a trusted process stays behind in its memory, and later sandboxes start as forks of it.
    """
    fd = os.memfd_create("letter")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(json.dumps(fields).encode())
    return fd


def open_letter(fd: int) -> Fields:
    """What a letter says; closes it."""
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        return json.loads(file.read())


def failure(error: Exception) -> Fields:
    """How an error is told: its text, its kind, and for one about a path that and the reason."""
    if isinstance(error, RecursionError):
        # Trees are walked recursively, and a sandbox's can be as deep as it likes.
        return {"error": "directories are nested too deeply", "name": "ENAMETOOLONG"}
    if not isinstance(error, OSError):
        return {"error": str(error), "name": "failed"}
    fields: Fields = {"error": str(error), "name": errno.errorcode.get(error.errno or 0, "failed")}
    if isinstance(error.filename, str):
        fields |= {"path": error.filename, "reason": error.strerror}
    return fields


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, fields: Fields, fds: Sequence[int] = ()) -> None:
    """Send one message.

    :raises ValueError: if it is too long for one packet.
    """
    data = json.dumps(fields, separators=(",", ":")).encode()
    if len(data) > _MAX_BYTES:
        raise ValueError(f"a control message of {len(data)} bytes is over the limit of {_MAX_BYTES}")
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], ancillary)


def receive(sock: socket.socket) -> Message | None:
    """The next message, or `None` when the other end is closed."""
    try:
        data, ancillary, flags, _ = sock.recvmsg(
            _MAX_BYTES + 1, socket.CMSG_SPACE(_MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        return None
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    if not data:
        return None
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for fd in fds:
            os.close(fd)
        raise ValueError("a control message was cut off")
    return Message(json.loads(data), list(fds))
