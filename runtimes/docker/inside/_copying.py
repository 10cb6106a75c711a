"""File requests by copying, in a child with the agent's rights.

gVisor's kernel neither lends rights nor passes file descriptors.
"""

import errno
import functools
import os
from collections.abc import Callable
from typing import Any

from runtimes.process.trusted import _files, _spawn, _wire
from runtimes.process.trusted._reactor import PendingRequest, Reactor, check_report
from runtimes.process.trusted._requests import FileRequests
from runtimes.process.trusted._sandboxes import SandboxRecord

_PIECE = 1 << 20


class CopyingFileRequests(FileRequests):
    """File requests like `FileRequests`, with whole contents passed through a file that the server sends along."""

    def __init__(self, reactor: Reactor, saved: tuple[str, ...]) -> None:
        super().__init__(reactor, saved)
        self._children = reactor

    def file(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Carry out one operation by name."""
        request = message.fields["request"]
        ours, theirs = _wire.socket_pair()

        def child() -> None:
            try:
                _become(sandbox.uid)
                answer = _perform(sandbox, request, message.fds)
            except (OSError, ValueError, RecursionError) as error:
                answer = _wire.failure(error)
            _wire.send(theirs, answer)

        self._children.fork(child)
        theirs.close()
        with ours:
            answer = yield ours
        check_report(answer, "the helper process died: the instance's memory limit may be too small")
        assert answer is not None
        self._children.reply(message, **answer.fields)

    def list(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Write the entries of a directory to the received descriptor."""
        fd = message.fds[0]
        entries = functools.partial(_files.list_entries, sandbox.root, sandbox.uid, message.fields["request"])
        return self.in_child(
            sandbox, message, lambda: _as_agent(sandbox, lambda: _spawn.with_file(fd, "wb", entries))
        )

    def remove(self, sandbox: SandboxRecord, message: _wire.WireMessage) -> PendingRequest:
        """Remove a tree."""
        request = message.fields["request"]
        return self.in_child(
            sandbox,
            message,
            lambda: _as_agent(sandbox, lambda: _files.remove_tree(sandbox.root, sandbox.uid, request)),
        )


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _as_agent(sandbox: SandboxRecord, body: Callable[[], None]) -> None:
    _become(sandbox.uid)
    body()


def _perform(sandbox: SandboxRecord, request: dict[str, Any], fds: list[int]) -> _wire.Fields:
    opened, answer = _files.perform(sandbox.root, sandbox.uid, request)
    if request["action"] == "open":
        there = max(0, os.fstat(opened[0]).st_size - request["offset"])
        wanted = there if request["length"] is None else min(there, request["length"])
        os.lseek(opened[0], request["offset"], os.SEEK_SET)
        _copy(opened[0], fds[0], wanted)
        return {}
    if request["action"] == "create":
        _fill(sandbox, request, opened[0], fds[0], answer)
        return {}
    return answer


def _fill(
    sandbox: SandboxRecord, request: dict[str, Any], target: int, source: int, created: dict[str, Any]
) -> None:
    """Write the content that the server sent; all or nothing unless appending."""
    commit = {**request, **created, "action": "commit", "path": created.get("target", request["path"])}
    size = os.fstat(source).st_size
    try:
        if request["limit"] is not None and os.fstat(target).st_size + size > request["limit"]:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), request["path"])
        os.lseek(source, 0, os.SEEK_SET)
        _copy(source, target, size)
    except OSError:
        if not request["append"]:
            _files.perform(sandbox.root, sandbox.uid, {**commit, "abandon": True})
        raise
    if not request["append"]:
        _files.perform(sandbox.root, sandbox.uid, commit)


def _copy(source: int, target: int, count: int) -> None:
    while count and (piece := os.read(source, min(count, _PIECE))):
        view = memoryview(piece)
        count -= len(view)
        while view:
            view = view[os.write(target, view) :]
