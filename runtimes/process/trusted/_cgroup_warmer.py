"""Keeping moves between cgroups quick while sandboxes are being made.

Moving a process takes a kernel-wide lock that is cheap for whoever forks and slow for whoever moves: the first
move after a pause waits some ten milliseconds for a grace period, those that follow closely don't. So for a
little while after each sandbox that is made, a process of its own moves itself to where it already is, every
few milliseconds. It changes nothing and keeps the lock ready.
"""

import contextlib
import os
import select
import signal
import time
from typing import NoReturn

from runtimes.process.linux import _cgroups
from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _confine

_LASTS = 2.0
_INTERVAL_MS = 4


class Pacer:
    """The process that keeps the lock ready; where there are no groups to move between, nothing."""

    def __init__(self, hierarchies: _cgroups.Hierarchies) -> None:
        self._writer = self._pid = -1
        place = _cgroups.open_own(hierarchies)
        if place < 0:
            return
        reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            _pace(reader, place)
        os.close(reader)
        os.close(place)

    def wake(self) -> None:
        """A sandbox is being made: be ready for a while."""
        if self._writer >= 0:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._writer, b"x")

    def end(self) -> None:
        """End the process."""
        if self._pid > 0:
            os.close(self._writer)
            os.waitpid(self._pid, 0)
            self._writer = self._pid = -1


def _pace(reader: int, place: int) -> NoReturn:
    try:
        sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
        _confine.close_from(3, keep=[reader, place])
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        until = 0.0
        while True:
            now = time.monotonic()
            if poll.poll(_INTERVAL_MS if now < until else None):
                if not os.read(reader, 4096):
                    break
                until = time.monotonic() + _LASTS
            os.write(place, b"0")
    except OSError:
        # Whatever it is, sandboxes can be made without this process, only slower.
        os._exit(1)
    finally:
        os._exit(0)
