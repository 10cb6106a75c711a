"""Sandboxes of E2B: microVMs that are forked with their memory."""

import os
from collections.abc import Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from e2b import AsyncSandbox, SandboxQuery
from e2b.exceptions import NotFoundException, SandboxNotRunningException

from agentflow.errors import IsolationUnavailable, RuntimeFailure
from runtimes._protocol import InstanceSpec
from runtimes.remote._service import (
    REALM_LABEL,
    SERVER_LABEL,
    RemoteOptions,
    RemoteSandbox,
    SandboxService,
    ServiceTraits,
    service_errors,
)

_KEY = "E2B_API_KEY"


def _is_gone(error: Exception) -> bool:
    return isinstance(error, NotFoundException | SandboxNotRunningException)


def _errors() -> AbstractAsyncContextManager[None]:
    return service_errors("e2b", _KEY, _is_gone)


class _Files(Protocol):
    """Part of the library's files, whose types are incomplete."""

    def write(self, path: str, data: bytes, user: str | None = None) -> Awaitable[object]: ...


class E2bSandbox:
    """Sandbox of E2B. See `runtimes.remote._service.RemoteSandbox`."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox
        self._files: _Files = sandbox.files

    @property
    def id(self) -> str:
        """Id that E2B gave it."""
        return self._sandbox.sandbox_id

    async def command(self, command: str, seconds: float) -> bytes:
        """Run a shell command as root."""
        async with _errors():
            done = await self._sandbox.commands.run(command, user="root", cwd="/", timeout=seconds)
            return done.stdout.encode()
        raise AssertionError("unreachable: the context does not suppress")

    async def upload(self, path: str, data: bytes) -> str:
        """Write a file as root."""
        async with _errors():
            await self._files.write(path, data, user="root")
        return path

    async def download(self, path: str) -> bytes:
        """Read a file as root."""
        async with _errors():
            return bytes(await self._sandbox.files.read(path, format="bytes", user="root"))
        raise AssertionError("unreachable: the context does not suppress")

    async def renew(self, seconds: int) -> None:
        """Set its end."""
        async with _errors():
            await self._sandbox.set_timeout(seconds)

    async def fork(self, labels: Mapping[str, str], seconds: int) -> RemoteSandbox:
        """Copy it with its memory. The copy has the labels of the original."""
        async with _errors():
            (child,) = await self._sandbox.fork(timeout=seconds, count=1)
            if isinstance(child, Exception):
                raise child
            return E2bSandbox(child)
        raise AssertionError("unreachable: the context does not suppress")

    async def end(self) -> None:
        """Kill it."""
        async with _errors():
            await self._sandbox.kill()


class E2bService(SandboxService):
    """Client of E2B. See `runtimes.remote._service.SandboxService`."""

    traits = ServiceTraits(
        live_fork=True,
        renew=True,
        notes=("forks start with the same random state, and share secrets that the parent had in memory",),
    )

    def __init__(self, options: RemoteOptions) -> None:
        self._options = options

    async def open(self) -> None:
        """Check that there is a key."""
        if not os.environ.get(_KEY):
            raise IsolationUnavailable(f"runtime e2b needs a key: set {_KEY}")

    async def create(self, spec: InstanceSpec, labels: Mapping[str, str]) -> RemoteSandbox:
        """Start a sandbox that is killed at the end of its lifetime."""
        try:
            async with _errors():
                return E2bSandbox(
                    await AsyncSandbox.create(
                        self._options.template,
                        timeout=self._options.lifetime,
                        metadata=dict(labels),
                        allow_internet_access=self._options.internet,
                        lifecycle={"on_timeout": "kill"},
                    )
                )
        except RuntimeFailure as error:
            raise IsolationUnavailable(str(error)) from None
        raise AssertionError("unreachable: the context does not suppress")

    async def servers(self, realm: str) -> dict[str, str]:
        """Return the sandboxes of a realm."""
        server_of_sandbox: dict[str, str] = {}
        async with _errors():
            pages = AsyncSandbox.list(SandboxQuery(metadata={REALM_LABEL: realm}))
            while pages.has_next:
                for info in await pages.next_items():
                    if info.metadata.get(REALM_LABEL) == realm:
                        server_of_sandbox[info.sandbox_id] = info.metadata.get(SERVER_LABEL, "")
        return server_of_sandbox

    async def end(self, sandbox_id: str) -> None:
        """Kill a sandbox."""
        async with _errors():
            await AsyncSandbox.kill(sandbox_id)

    async def close(self) -> None:
        """Do nothing: the library keeps its own connections."""
