"""The killer: a process that becomes a sandbox's user, to end all that this user runs.

As that user one call reaches every process, and the kernel lets none fork past it. Being of the mason's pid
namespace it is seen by nobody inside, whoever it is at the moment. The mason itself must not change its user: the
kernel would forget with whom it is to die.
"""

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterable
from typing import NoReturn

from runtimes.process.trusted import _confine, _wire

__all__ = ["Killer"]


class Killer:
    """The mason's line to that process, which is started with it, and again if it died."""

    def __init__(self, fork: Callable[[Callable[[], None]], int]) -> None:
        """Describe it.

        :param fork: starts a child with that body.
        """
        self._fork = fork
        self._socket = self._start()

    def kill(self, uids: Iterable[int]) -> None:
        """Kill every process of some users; returns when none of them runs another line.

        :raises OSError: if it can't be done.
        """
        request = {"uids": list(uids)}
        for _ in range(2):
            with contextlib.suppress(ConnectionError):
                _wire.send(self._socket, request)
                if _wire.receive(self._socket) is not None:
                    return
            self._socket.close()
            self._socket = self._start()
        raise OSError("the process that ends sandboxes died")

    def _start(self) -> socket.socket:
        ours, theirs = _wire.socket_pair()
        self._fork(lambda: _serve(theirs))
        theirs.close()
        return ours


def _serve(mason: socket.socket) -> NoReturn:
    _confine.close_from(3, keep=[mason.fileno()])
    with open("/proc/self/comm", "w", encoding="utf-8") as name:
        name.write("killer")
    os.setgroups([])
    while (message := _wire.receive(mason)) is not None:
        for uid in message.fields["uids"]:
            _kill_all_of(uid)
        _wire.send(mason, {"done": True})
    os._exit(0)


def _kill_all_of(uid: int) -> None:
    os.setresgid(uid, uid, 0)
    os.setresuid(uid, uid, 0)
    # Of nobody else: this user has no power over others, and its number is this sandbox's alone.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(-1, signal.SIGKILL)
    os.setresuid(0, 0, 0)
    os.setresgid(0, 0, 0)
