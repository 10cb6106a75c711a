"""Requests that concern the files of one sandbox: done here, or in a child where they can take long."""

import functools
from collections.abc import Callable
from typing import IO

from runtimes.process.linux import _cgroups
from runtimes.process.trusted import _copy, _files, _spawn, _trees, _wire
from runtimes.process.trusted._members import Member
from runtimes.process.trusted._reactor import Reactor, Waiting, close_all, finished


class Filing:
    """Looks after files; `saved` are the folders, below a member's `files`, that a snapshot holds."""

    def __init__(self, reactor: Reactor, saved: tuple[str, ...]) -> None:
        self._reactor = reactor
        self._saved = saved

    def file(self, member: Member, message: _wire.Message) -> Waiting:
        """Carry out one operation by name."""
        fds, answer = _files.perform(member.root, member.uid, message.fields["request"])
        self._reactor.reply(message, fds, **answer)
        close_all(fds)
        yield from ()

    def list(self, member: Member, message: _wire.Message) -> Waiting:
        """Write the entries of a folder to the descriptor that came along."""
        request = message.fields["request"]
        body = functools.partial(_trees.list_entries, member.root, member.uid, request)
        return self._with_file(member, message, "wb", body)

    def remove(self, member: Member, message: _wire.Message) -> Waiting:
        """Remove a tree."""
        request = message.fields["request"]
        return self.in_child(member, message, lambda: _trees.remove(member.root, member.uid, request))

    def pack(self, member: Member, message: _wire.Message) -> Waiting:
        """Write all files to the descriptor that came along."""
        return self._with_file(member, message, "wb", lambda out: _copy.pack(member.files, self._saved, out))

    def check_archive(self, member: Member, message: _wire.Message) -> Waiting:
        """See whether what came along is something that `pack` wrote."""
        return self._with_file(member, message, "rb", lambda source: _copy.check(self._saved, source))

    def _with_file(
        self, member: Member, message: _wire.Message, mode: str, body: Callable[[IO[bytes]], None]
    ) -> Waiting:
        fd = message.fds[0]
        return self.in_child(member, message, lambda: _spawn.with_file(fd, mode, body))

    def in_child(self, member: Member, message: _wire.Message, body: Callable[[], None]) -> Waiting:
        """Do something in a child, which its sandbox's limits bind; answer when it is done."""
        ours, theirs = _wire.socket_pair()

        def child() -> None:
            _cgroups.attach(member.group)
            _spawn.tell_outcome(theirs, body)

        self._reactor.fork(child)
        theirs.close()
        with ours:
            finished((yield ours), "its process died: the instance's memory limit may be too small")
        self._reactor.reply(message)
