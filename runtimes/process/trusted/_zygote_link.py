"""The mason's line to the zygote: started at first need, and again if it died."""

import selectors
import socket
from collections.abc import Callable, Generator

from runtimes.process.trusted import _rooms, _spawn, _wire, _zygote
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
        self._waiting: dict[int, socket.socket] = {}

    def ask(
        self, fields: _wire.Fields, fds: list[int]
    ) -> Generator[socket.socket, _wire.Message | None, _wire.Fields]:
        """Send a request and wait for its answer.

        :raises RequestError: if it fails, or the zygote dies.
        """
        sock = self._socket or self._start()
        ours, theirs = _wire.socket_pair()
        self._waiting[fields["n"]] = theirs
        _wire.send(sock, fields, fds)
        answer = yield ours
        ours.close()
        finished(answer, "the template interpreter died")
        assert answer is not None
        return answer.fields

    def _start(self) -> socket.socket:
        ours, theirs = _wire.socket_pair()
        places = self._world.places
        plan = _rooms.RoomPlan(0, 0, _ROOM_BYTES, _ROOM_FILES, places, locked_etc=False)
        self.pid = self._reactor.fork(lambda: _zygote.main(theirs, self._world, plan))
        theirs.close()
        self._socket = ours
        self._reactor.selector.register(ours, selectors.EVENT_READ, self._receive)
        return ours

    def _receive(self) -> None:
        assert self._socket is not None
        message = _wire.receive(self._socket)
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
            with self._waiting.pop(fields["n"]) as sock:
                _wire.send(sock, fields)

    def died(self) -> None:
        """The zygote is gone: whoever waits for it is told, and the next request starts another."""
        if self._socket is None:
            return
        self._reactor.selector.unregister(self._socket)
        self._socket.close()
        self._socket = None
        for sock in self._waiting.values():
            sock.close()
        self._waiting.clear()
