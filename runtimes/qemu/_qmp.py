"""Client of QEMU's machine protocol (QMP): commands and events, one JSON object a line."""

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from typing import Any

import anyio

from agentflow.errors import InstanceGone, RuntimeFailure
from runtimes._framing import LineDecoder, decode_object

_MAX_LINE = 1 << 20
_TIMEOUT_SECONDS = 60.0


class QmpError(RuntimeFailure):
    """Command that QEMU refused."""


class QmpClient(asyncio.Protocol):
    """Connection to one QEMU, over an unnamed socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lines = LineDecoder(_MAX_LINE)
        self._next = 0
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._waiters: list[tuple[Callable[[str, dict[str, Any]], bool], asyncio.Future[dict[str, Any]]]] = []
        self._transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()
        """Set once QEMU is gone."""

    async def open(self) -> None:
        """Wait for the greeting and negotiate.

        :raises InstanceGone: if QEMU ends instead.
        """
        await asyncio.get_running_loop().create_connection(lambda: self, sock=self._sock)
        await self._greeted
        await self.execute("qmp_capabilities")

    async def execute(self, command: str, /, *, fds: Sequence[int] = (), **arguments: object) -> object:
        """Run a command and return its result; `fds` are passed along.

        :raises QmpError: if it is refused.
        :raises InstanceGone: if QEMU ends.
        """
        if self.ended.is_set() or self._transport is None:
            raise InstanceGone("the machine has ended")
        self._next += 1
        number = self._next
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        names = {name.replace("_", "-"): value for name, value in arguments.items()}
        message = json.dumps({"execute": command, "arguments": names, "id": number}).encode()
        try:
            if fds:
                # The few bytes always fit: nothing else is in flight while a descriptor is passed.
                socket.send_fds(self._sock, [message], fds)
            else:
                self._transport.write(message)
            with anyio.fail_after(_TIMEOUT_SECONDS):
                return await reply
        except TimeoutError:
            raise RuntimeFailure(f"QEMU does not answer {command}") from None
        except OSError:
            raise InstanceGone("the machine has ended") from None
        finally:
            self._replies.pop(number, None)

    def expect(self, wanted: Callable[[str, dict[str, Any]], bool]) -> "asyncio.Future[dict[str, Any]]":
        """Return a future of the next matching event's data; call it before the command that triggers the event."""
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiters.append((wanted, future))
        return future

    @property
    def opened(self) -> bool:
        """True once a connection was made."""
        return self._transport is not None

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()
        else:
            self._sock.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._lines.feed(data)
        try:
            for line in filter(bytes.strip, self._lines):
                self._handle(decode_object(line))
        except (ValueError, AttributeError, RecursionError):
            # Malformed: the peer is no longer trusted.
            self.close()

    def _handle(self, message: dict[str, Any]) -> None:
        if "QMP" in message:
            if not self._greeted.done():
                self._greeted.set_result(None)
        elif "event" in message:
            name, data = str(message["event"]), message.get("data", {})
            for waiter in [waiter for waiter in self._waiters if waiter[0](name, data)]:
                self._waiters.remove(waiter)
                if not waiter[1].done():
                    waiter[1].set_result(data)
        else:
            reply = self._replies.get(message.get("id", -1))
            if reply is None or reply.done():
                return
            if "error" in message:
                reply.set_exception(QmpError(f"QEMU: {message['error'].get('desc', 'it refused')}"))
            else:
                reply.set_result(message.get("return"))

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.ended.set()
        waiting = [self._greeted, *self._replies.values(), *(future for _, future in self._waiters)]
        self._waiters.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(InstanceGone("the machine has ended"))
                # The result may have no reader any more.
                future.exception()
