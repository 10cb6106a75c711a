"""Sandboxes of Modal: containers under gVisor."""

import os
import shlex
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final

import modal
from modal.exception import ConflictError, NotFoundError

from agentflow.errors import IsolationUnavailable, NotOffered, RuntimeFailure
from runtimes._protocol import InstanceSpec
from runtimes.remote._service import (
    REALM_LABEL,
    SERVER_LABEL,
    RemoteOptions,
    RemoteSandbox,
    SandboxService,
    ServiceTraits,
    one_line,
    service_errors,
)

_KEY = "MODAL_TOKEN_SECRET"
_KEY_ID = "MODAL_TOKEN_ID"
_APP = "agentflow"
_MAX_SECONDS: Final = 24 * 3600
"""Modal's maximum lifetime of a sandbox."""
_CHUNK: Final = 1 << 20

# Their types are incomplete.
_create: Any = modal.Sandbox.create
_registry_image: Any = modal.Image.from_registry  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _is_gone(error: Exception) -> bool:
    return isinstance(error, NotFoundError | ConflictError)


def _errors() -> AbstractAsyncContextManager[None]:
    return service_errors("modal", _KEY, _is_gone)


class ModalSandbox:
    """Sandbox of Modal. See `runtimes.remote._service.RemoteSandbox`."""

    def __init__(self, sandbox: modal.Sandbox) -> None:
        self._sandbox = sandbox

    @property
    def id(self) -> str:
        """Id that Modal gave it."""
        return self._sandbox.object_id

    async def command(self, command: str, seconds: float) -> bytes:
        """Run a shell command as root."""
        return await self._run(command, seconds, None)

    async def upload(self, path: str, data: bytes) -> str:
        """Write a file as root."""
        folder, file = shlex.quote(os.path.dirname(path)), shlex.quote(path)
        await self._run(f"mkdir -p {folder} && cat > {file}", 120.0, data)
        return path

    async def download(self, path: str) -> bytes:
        """Read a file as root."""
        return await self._run(f"cat {shlex.quote(path)}", 120.0, None)

    async def renew(self, seconds: int) -> None:
        """Run a command: a sandbox ends after a time without any."""
        await self._run("true", 30.0, None)

    async def fork(self, labels: Mapping[str, str], seconds: int) -> RemoteSandbox:
        """Refuse: Modal's snapshots of the memory are experimental."""
        raise NotOffered("modal: a sandbox is not copied with its memory")

    async def end(self) -> None:
        """Terminate it."""
        async with _errors():
            await self._sandbox.terminate.aio()

    async def _run(self, command: str, seconds: float, data: bytes | None) -> bytes:
        async with _errors():
            process = await self._sandbox.exec.aio(
                "bash", "-c", command, timeout=int(seconds), workdir="/", text=False
            )
            if data is not None:
                # A command that ends before it has read everything reports the reason by its status.
                with suppress(ConflictError):
                    for start in range(0, len(data), _CHUNK):
                        process.stdin.write(data[start : start + _CHUNK])
                        await process.stdin.drain.aio()
                    process.stdin.write_eof()
                    await process.stdin.drain.aio()
            output = await process.stdout.read.aio()
            if await process.wait.aio():
                reason = (await process.stderr.read.aio()).decode("utf-8", "replace")
                raise RuntimeFailure(f"modal: a command failed: {one_line(reason)}")
            return output
        raise AssertionError("unreachable: the context does not suppress")


class ModalService(SandboxService):
    """Client of Modal. See `runtimes.remote._service.SandboxService`."""

    traits = ServiceTraits(renew=True, notes=("a sandbox ends 24 hours after its start",))

    def __init__(self, options: RemoteOptions) -> None:
        self._options = options
        self._client: modal.Client | None = None
        self._app: modal.App | None = None

    async def open(self) -> None:
        """Connect, and make the app that the sandboxes belong to."""
        key_id, key = os.environ.get(_KEY_ID), os.environ.get(_KEY)
        if not key_id or not key:
            raise IsolationUnavailable(f"runtime modal needs a key: set {_KEY_ID} and {_KEY}")
        async with _errors():
            self._client = await modal.Client.from_credentials.aio(key_id, key)
            self._app = await modal.App.lookup.aio(_APP, create_if_missing=True, client=self._client)

    async def create(self, spec: InstanceSpec, labels: Mapping[str, str]) -> RemoteSandbox:
        """Start a sandbox that Modal ends when no command has run in it for its lifetime."""
        template = self._options.template
        try:
            async with _errors():
                sandbox = await _create.aio(
                    "sleep",
                    str(_MAX_SECONDS),
                    app=self._app,
                    image=None if template is None else _registry_image(template),
                    tags=dict(labels),
                    timeout=_MAX_SECONDS,
                    idle_timeout=self._options.lifetime,
                    block_network=not self._options.internet,
                    client=self._client,
                )
                return ModalSandbox(sandbox)
        except RuntimeFailure as error:
            raise IsolationUnavailable(str(error)) from None
        raise AssertionError("unreachable: the context does not suppress")

    async def servers(self, realm: str) -> dict[str, str]:
        """Return the running sandboxes of a realm."""
        server_of_sandbox: dict[str, str] = {}
        app_id = None if self._app is None else self._app.app_id
        async with _errors():
            listed = modal.Sandbox.list.aio(app_id=app_id, tags={REALM_LABEL: realm}, client=self._client)
            async for sandbox in listed:
                # It may have ended since.
                with suppress(NotFoundError):
                    server_of_sandbox[sandbox.object_id] = (await sandbox.get_tags.aio()).get(
                        SERVER_LABEL, ""
                    )
        return server_of_sandbox

    async def end(self, sandbox_id: str) -> None:
        """Terminate a sandbox."""
        async with _errors():
            with suppress(NotFoundError):
                sandbox = await modal.Sandbox.from_id.aio(sandbox_id, client=self._client)
                await sandbox.terminate.aio()

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            client, self._client = self._client, None
            async with _errors():
                await client.close.aio()
