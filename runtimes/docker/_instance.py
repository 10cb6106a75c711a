"""Instance that is a container, and the host end of the connection to its init process."""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import anyio

from agentflow.errors import CannotFork, InstanceGone, IsolationUnavailable, RuntimeFailure
from runtimes._protocol import Fork, InstanceSpec
from runtimes.process import ProcessInstance
from runtimes.process._channel import RequestChannel
from runtimes.process.trusted import _wire

if TYPE_CHECKING:
    from runtimes.docker._plan import Container


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

    async def answer(
        self, container: "Container", settings: dict[str, Any], seconds: float
    ) -> RequestChannel:
        """Accept the connection of the init process and send it its settings. No further connection is accepted.

        :raises IsolationUnavailable: if the init process does not connect.
        """
        channel = RequestChannel("the container has ended")
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
        self, channel: RequestChannel, container: "Container", settings: dict[str, Any], seconds: float
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


class ContainerStarter(Protocol):
    """Function that starts another container."""

    async def __call__(self, spec: InstanceSpec, *, image: str | None) -> "ContainerInstance":
        """Start one, optionally from a different image."""
        ...


class ContainerInstance(ProcessInstance):
    """Container. Requests go to its init process. See `runtimes.Instance`."""

    def __init__(
        self,
        channel: RequestChannel,
        name: str,
        spec: InstanceSpec,
        instances: dict[str, ProcessInstance],
        env: Mapping[str, str],
        container: "Container",
        make: ContainerStarter,
    ) -> None:
        super().__init__(channel, name, spec, instances, env)
        self._container = container
        self._start_another = make

    async def begin(self) -> None:
        """Fetch the descriptors of the limit counters and register the instance."""
        await self.attach(await self._client.ask("counters"))
        self._instances[self._id] = self

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """See `runtimes.Instance.read`."""
        if not self._client.facts["copies"]:
            return await super().read(path, offset=offset, length=length)
        if offset < 0 or (length is not None and length < 0):
            raise ValueError("offset and length must not be negative")
        with _memory_file() as file:
            await self._file("open", path, {"offset": offset, "length": length}, fds=[file.fileno()])
            file.seek(0)
            return file.read()

    async def write(self, path: str, data: bytes, *, append: bool = False, executable: bool = False) -> None:
        """See `runtimes.Instance.write`."""
        if not self._client.facts["copies"]:
            await super().write(path, data, append=append, executable=executable)
            return
        details = {"append": append, "executable": executable, "limit": self._spec.limits.file_bytes}
        with _memory_file() as file:
            file.write(data)
            file.flush()
            await self._file("create", path, {**details, "token": secrets.token_hex(8)}, fds=[file.fileno()])

    async def answers(self) -> bool:
        """Return true if the init process answers."""
        try:
            await self._client.ask("ping")
        except RuntimeFailure:
            return False
        return True

    async def commit(self, image: str) -> None:
        """Save the changes to the image's directories as another image, `name:tag`, without the workspace.

        :raises NotOffered: if the runtime has no images, or its containers are read-only.
        """
        self._check()
        await self._container.commit(image)

    async def _fork(self) -> Fork:
        if self._python.used:
            raise CannotFork(
                "a live interpreter cannot be copied into another container: repeat its runs there,"
                " or use the process runtime, which forks it"
            )
        child = await self._start_another(self._spec, image=await self._container.layer())
        try:
            await self._copy_files_to(child)
            left = await self._copy_shell_to(child)
            child._python.inherit_loss(self._python)
        except BaseException as error:
            await self._abandon(child, error)
            raise
        return Fork(child, tuple(left))

    async def _copy_files_to(self, child: "ContainerInstance") -> None:
        fd = os.memfd_create("files")
        try:
            await self._client.ask("pack", [fd])
            await child._client.ask("unpack", [fd])
        finally:
            os.close(fd)

    async def _end(self) -> None:
        # Closing the socket ends the init process, and the container with it.
        self._client.hang_up()
        with contextlib.suppress(RuntimeFailure):
            await self._container.end()


def _memory_file() -> IO[bytes]:
    """Return an anonymous file in memory."""
    return os.fdopen(os.memfd_create("content"), "w+b")
