"""Sandboxes of Daytona, through the clients that are generated from its API.

The package `daytona` is not used: it needs an older obstore than the extra `s3`.
"""

import json
import math
import os
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from copy import copy
from typing import Any, Final, TypeVar

import anyio
import daytona_toolbox_api_client_async as toolbox
from daytona_api_client_async import (
    ApiClient,
    Configuration,
    CreateSandbox,
    Sandbox,
    SandboxApi,
    SandboxState,
)
from daytona_api_client_async.exceptions import ApiException, NotFoundException

from agentflow.errors import InstanceGone, IsolationUnavailable, NotOffered, RuntimeFailure
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

T = TypeVar("T")

_KEY = "DAYTONA_API_KEY"
_URL = "https://app.daytona.io/api"
_POLL_SECONDS: Final = 0.2
_SLACK_SECONDS: Final = 5.0
"""Time that a request may take longer than its command."""
_CHUNK: Final = 1 << 20
"""Size of a request up to which sending it does not block the event loop."""
_RUNNING: Final = (
    SandboxState.CREATING,
    SandboxState.STARTING,
    SandboxState.STARTED,
    SandboxState.PENDING_BUILD,
    SandboxState.BUILDING_SNAPSHOT,
    SandboxState.PULLING_SNAPSHOT,
    SandboxState.UNKNOWN,
)


def _is_gone(error: Exception) -> bool:
    return isinstance(error, NotFoundException)


def _never(error: Exception) -> bool:
    return False


@asynccontextmanager
async def _errors(is_gone: Callable[[Exception], bool] = _is_gone) -> AsyncGenerator[None]:
    async with service_errors("daytona", _KEY, is_gone):
        try:
            yield
        except (ApiException, toolbox.ApiException) as error:
            if is_gone(error):
                raise
            raise RuntimeFailure(f"daytona: {one_line(_reason(error), _KEY)}") from None


def _reason(error: Exception) -> str:
    """Return the message of an error; its text begins with all headers."""
    try:
        return str(json.loads(getattr(error, "body", None) or "")["message"])
    except (ValueError, LookupError, TypeError):
        return f"status {getattr(error, 'status', None)}"


def _minutes(seconds: int) -> int:
    return math.ceil(seconds / 60)


class DaytonaSandbox:
    """Sandbox of Daytona. See `runtimes.remote._service.RemoteSandbox`."""

    def __init__(self, service: "DaytonaService", sandbox: Sandbox, client: toolbox.ApiClient) -> None:
        self._service = service
        self._id = sandbox.id
        self._process = toolbox.ProcessApi(client)
        self._files = toolbox.FileSystemApi(client)

    @property
    def id(self) -> str:
        """Id that Daytona gave it."""
        return self._id

    async def command(self, command: str, seconds: float) -> bytes:
        """Run a shell command as the user of the sandbox."""
        # The result has both outputs, and a shell that is not always bash.
        text = f"bash -c {shlex.quote(command)} 2>/dev/null"
        request = toolbox.ExecuteRequest(command=text, cwd="/", timeout=int(seconds))
        done = await self._call(
            self._process.execute_command(request, _request_timeout=seconds + _SLACK_SECONDS)
        )
        if done.exit_code:
            raise RuntimeFailure(f"daytona: a command failed with status {done.exit_code}")
        return done.result.encode()

    async def upload(self, path: str, data: bytes) -> str:
        """Write a file as the user of the sandbox."""
        if len(data) <= _CHUNK:
            await self._call(self._files.upload_file(path, (os.path.basename(path), data)))
            return path
        parts: list[str] = []
        for start in range(0, len(data), _CHUNK):
            parts.append(await self.upload(f"{path}.{len(parts)}", data[start : start + _CHUNK]))
        names = " ".join(shlex.quote(part) for part in parts)
        await self.command(f"cat {names} > {shlex.quote(path)} && rm {names}", 120.0)
        return path

    async def download(self, path: str) -> bytes:
        """Read a file as the user of the sandbox."""
        return bytes(await self._call(self._files.download_file(path)))

    async def renew(self, seconds: int) -> None:
        """Set its time to live."""
        await self._service.set_end(self._id, seconds)

    async def fork(self, labels: Mapping[str, str], seconds: int) -> RemoteSandbox:
        """Refuse: Daytona promises that a fork has the files, and the memory for some sandboxes only."""
        raise NotOffered("daytona: a sandbox is not copied with its memory")

    async def end(self) -> None:
        """Delete it."""
        await self._service.end(self._id)

    async def _call(self, answer: Awaitable[T]) -> T:
        try:
            async with _errors():
                return await answer
        except RuntimeFailure:
            # The proxy in front of a sandbox does not say that it has ended.
            await self._service.check(self._id)
            raise
        raise AssertionError("unreachable: the context does not suppress")


class DaytonaService(SandboxService):
    """Client of Daytona. See `runtimes.remote._service.SandboxService`."""

    traits = ServiceTraits(
        renew=True, notes=("programs inside run as root only if the snapshot allows the user root",)
    )

    def __init__(self, options: RemoteOptions) -> None:
        self._options = options
        # Their types are incomplete.
        self._client: Any = ApiClient(Configuration(host=os.environ.get("DAYTONA_API_URL") or _URL))
        self._toolbox: Any = toolbox.ApiClient(toolbox.Configuration())
        self._api = SandboxApi(self._client)

    async def open(self) -> None:
        """Set the key."""
        key = os.environ.get(_KEY)
        if not key:
            raise IsolationUnavailable(f"runtime daytona needs a key: set {_KEY}")
        self._client.default_headers["Authorization"] = f"Bearer {key}"
        self._toolbox.default_headers["Authorization"] = f"Bearer {key}"

    async def create(self, spec: InstanceSpec, labels: Mapping[str, str]) -> RemoteSandbox:
        """Start a sandbox that Daytona deletes at the end of its lifetime, or when it is stopped."""
        wanted = CreateSandbox(
            snapshot=self._options.template,
            user="root",
            labels=dict(labels),
            target=os.environ.get("DAYTONA_TARGET"),
            network_block_all=not self._options.internet,
            auto_stop_interval=0,
            auto_delete_interval=0,
            ttl_minutes=_minutes(self._options.lifetime),
        )
        try:
            async with _errors(_never):
                sandbox = await self._api.create_sandbox(wanted)
            try:
                with anyio.fail_after(self._options.start_seconds):
                    await self._started(sandbox.id)
            except BaseException:
                with anyio.CancelScope(shield=True), suppress(RuntimeFailure):
                    await self.end(sandbox.id)
                raise
        except (RuntimeFailure, TimeoutError) as error:
            reason = str(error) or f"daytona: no sandbox within {self._options.start_seconds:g} seconds"
            raise IsolationUnavailable(reason) from None
        client = copy(self._toolbox)
        client.configuration = toolbox.Configuration(host=f"{sandbox.toolbox_proxy_url}/{sandbox.id}")
        return DaytonaSandbox(self, sandbox, client)

    async def _started(self, sandbox_id: str) -> None:
        """Wait until a sandbox has started.

        :raises RuntimeFailure: if it never will.
        """
        while True:
            if await self.check(sandbox_id) == SandboxState.STARTED:
                return
            await anyio.sleep(_POLL_SECONDS)

    async def check(self, sandbox_id: str) -> SandboxState:
        """Return the state of a sandbox that starts or runs.

        :raises InstanceGone: if it does not.
        """
        async with _errors():
            sandbox = await self._api.get_sandbox(sandbox_id)
        state = sandbox.state or SandboxState.UNKNOWN
        if state not in _RUNNING:
            raise InstanceGone(f"daytona: the sandbox has ended: {one_line(sandbox.error_reason or state)}")
        return state

    async def servers(self, realm: str) -> dict[str, str]:
        """Return the sandboxes of a realm."""
        server_of_sandbox: dict[str, str] = {}
        cursor: str | None = None
        while True:
            async with _errors():
                page = await self._api.list_sandboxes(cursor=cursor, labels=json.dumps({REALM_LABEL: realm}))
            for sandbox in page.items:
                if sandbox.labels.get(REALM_LABEL) == realm:
                    server_of_sandbox[sandbox.id] = sandbox.labels.get(SERVER_LABEL, "")
            cursor = page.next_cursor
            if not cursor:
                return server_of_sandbox

    async def set_end(self, sandbox_id: str, seconds: int) -> None:
        """Set the time until Daytona deletes a sandbox."""
        async with _errors():
            await self._api.set_ttl(sandbox_id, _minutes(seconds))

    async def end(self, sandbox_id: str) -> None:
        """Delete a sandbox."""
        with suppress(InstanceGone):
            async with _errors():
                await self._api.delete_sandbox(sandbox_id)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
        await self._toolbox.close()
