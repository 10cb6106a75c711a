"""Messages between the trusted processes: JSON and file descriptors over sequenced-packet sockets."""

import array
import errno
import json
import os
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

Fields = dict[str, Any]
"""Fields of a message: `op` for a request, `re` (number of the request) for a reply, `event` otherwise."""

_MAX_BYTES = 160 * 1024
_MAX_FDS = 64


class WireMessage(NamedTuple):
    """A received message and its descriptors."""

    fields: Fields
    fds: list[int]


def payload(fields: Fields) -> int:
    """Return a descriptor of a memory file with fields that only the receiving process may read.

    Data that passed through a trusted process would stay in its memory, and later sandboxes are forks of it.
    """
    fd = os.memfd_create("payload")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(json.dumps(fields).encode())
    return fd


def read_payload(fd: int) -> Fields:
    """Read the fields of a payload and close it."""
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        return json.loads(file.read())


def failure(error: Exception) -> Fields:
    """Return the fields that describe an error: text and errno name, and for a path error the path and the reason."""
    if isinstance(error, RecursionError):
        # Trees are walked recursively, and a sandbox can make them arbitrarily deep.
        return {"error": "directories are nested too deeply", "name": "ENAMETOOLONG"}
    if isinstance(error, MemoryError):
        return {"error": "the operation needs too much memory", "name": "failed"}
    if not isinstance(error, OSError):
        return {"error": str(error), "name": "failed"}
    fields: Fields = {"error": str(error), "name": errno.errorcode.get(error.errno or 0, "failed")}
    if isinstance(error.filename, str):
        fields |= {"path": error.filename, "reason": error.strerror}
    return fields


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, fields: Fields, fds: Sequence[int] = ()) -> None:
    """Send one message.

    :raises ValueError: if it has more than 160 KiB.
    """
    data = json.dumps(fields, separators=(",", ":")).encode()
    if len(data) > _MAX_BYTES:
        raise ValueError(f"a control message of {len(data)} bytes is over the limit of {_MAX_BYTES}")
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], ancillary)


def receive(sock: socket.socket) -> WireMessage | None:
    """Receive the next message, or `None` if the other end is closed."""
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
        raise ValueError("a control message was truncated")
    return WireMessage(json.loads(data), list(fds))
