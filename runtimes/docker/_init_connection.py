"""Host end of the connection to a container's init process."""

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import Any

import anyio

from agentflow.errors import InstanceGone, IsolationUnavailable, RuntimeFailure
from runtimes.docker._plan import Container
from runtimes.process._channel import RequestChannel
from runtimes.process.trusted import _wire

_INSIDE = Path(__file__).parents[1] / "process" / "inside"


class InitChannel(RequestChannel):
    """Requests in flight to one container's init process."""

    lost = "the container has ended"


class InitConnection:
    """Listening socket that one container connects to."""

    def __init__(self, path: str) -> None:
        self.path = path
        """Path on this machine."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        self._listener.bind(path)
        # Its directory is private; inside, root may be any user of this machine.
        os.chmod(path, 0o666)
        self._listener.listen(1)

    async def answer(self, container: Container, settings: dict[str, Any], seconds: float) -> InitChannel:
        """Accept the connection of the init process and send it its settings. No further connection is accepted.

        :raises IsolationUnavailable: if the init process does not connect.
        """
        channel = InitChannel()
        try:
            reason = await self._called(channel, container, settings, seconds)
        except BaseException:
            channel.hang_up()
            raise
        if not channel.facts.get("started"):
            channel.hang_up()
            raise IsolationUnavailable(str(channel.facts.get("error", reason)))
        return channel

    async def _called(
        self, channel: RequestChannel, container: Container, settings: dict[str, Any], seconds: float
    ) -> str:
        """Wait for the init process, the container's end or the deadline; return the reason if it was not the first."""
        reason = f"the container did not answer within {seconds:g} seconds"
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as tasks:

                async def watch() -> None:
                    nonlocal reason
                    reason = f"the container did not start: {await container.failed()}"
                    tasks.cancel_scope.cancel()

                tasks.start_soon(watch)
                # The end of the container reports an init process that dies at once.
                with contextlib.suppress(RuntimeFailure, InstanceGone, ConnectionError):
                    await self._meet(channel, settings)
                    tasks.cancel_scope.cancel()
        return reason

    async def _meet(self, channel: RequestChannel, settings: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        sock, _ = await loop.sock_accept(self._listener)
        self.close()
        try:
            _wire.send(sock, settings)
        except BaseException:
            sock.close()
            raise
        await channel.open(sock)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
        Path(self.path).unlink(missing_ok=True)


def init_settings(limits: dict[str, Any], uid: int, *, copies: bool) -> dict[str, Any]:
    """Return the settings that the init process receives first; with `copies` its kernel cannot pass file descriptors."""
    driver = (_INSIDE / "_shell.bash").read_text(encoding="utf-8")
    return {"limits": limits, "uid": uid, "shell_driver": driver, "copies": copies}
