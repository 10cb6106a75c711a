"""The mason's line to the zygote: started at first need, and again if it died."""

import selectors
import socket
from collections.abc import Callable, Generator

from runtimes.process.trusted import _namespaces, _spawn, _wire, _zygote
from runtimes.process.trusted._reactor import Reactor, finished

_ROOM_BYTES = 64 << 20
_ROOM_FILES = 10_000


class ZygoteLink:
    """Requests to the template interpreter, and what it tells."""

    def __init__(self, reactor: Reactor, world: _spawn.World, on_exit: Callable[[int], None]) -> None:
        self._reactor = reactor
        self._world = world
        self._on_exit = on_exit
        self._socket: socket.socket | None = None
        self.pid = 0
        """The zygote's process."""
        self._waiting: dict[int, tuple[socket.socket, socket.socket]] = {}

    def ask(
        self, fields: _wire.Fields, fds: list[int]
    ) -> Generator[socket.socket, _wire.Message | None, _wire.Fields]:
        """Send a request and wait for its answer.

        :raises RequestError: if it fails, or the zygote dies.
        """
        try:
            _wire.send(self._socket or self._start(), fields, fds)
        except ConnectionError:
            # It died, and its end has not been noticed yet.
            self.died()
            _wire.send(self._start(), fields, fds)
        ours, theirs = _wire.socket_pair()
        self._waiting[fields["n"]] = ours, theirs
        answer = yield ours
        ours.close()
        finished(answer, "the template interpreter died")
        assert answer is not None
        return answer.fields

    def _start(self) -> socket.socket:
        ours, theirs = _wire.socket_pair()
        places = self._world.places
        plan = _namespaces.RoomPlan(0, 0, _ROOM_BYTES, _ROOM_FILES, places, locked_etc=False)
        self.pid = self._reactor.fork(lambda: _zygote.main(theirs, self._world, plan))
        theirs.close()
        self._socket = ours
        self._reactor.selector.register(ours, selectors.EVENT_READ, lambda: self._receive(ours))
        return ours

    def _receive(self, sock: socket.socket) -> None:
        if sock is not self._socket:
            # That one's end was noticed by another sign at the same instant.
            return
        message = _wire.receive(sock)
        if message is None:
            self.died()
            return
        fields = message.fields
        if "listener" in fields:
            self._reactor.gate.add(message.fds[0])
        elif "exited" in fields:
            self._on_exit(fields["exited"])
            self._reactor.tell({"event": "exit", "pid": fields["exited"], "status": fields["status"]})
        else:
            ours, theirs = self._waiting.pop(fields["n"])
            with theirs:
                _wire.send(theirs, fields)
            # Now: that a session has ended, which may be the next message, must not be told before that it has begun.
            self._reactor.selector.get_key(ours).data()

    def died(self) -> None:
        """The zygote is gone: whoever waits for it is told, and the next request starts another."""
        if self._socket is None:
            return
        self._reactor.selector.unregister(self._socket)
        self._socket.close()
        self._socket = None
        for _, theirs in self._waiting.values():
            theirs.close()
        self._waiting.clear()
