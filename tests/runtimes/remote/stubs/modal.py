"""Stub of Modal: the part of its control plane that has sandboxes, and the command router of a worker, on one address.

It executes commands in boxes. Images are not built.
"""

import asyncio
import contextlib
import itertools
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from grpclib import GRPCError, Status
from grpclib.server import Server, Stream
from grpclib.utils import graceful_exit
from modal_proto import api_pb2 as api
from modal_proto import task_command_router_pb2 as router
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from tests.runtimes.remote.stubs.boxes import Box

Service = TypeVar("Service")
Asked = TypeVar("Asked")
Answered = TypeVar("Answered")

_KEY = os.environ["STUB_KEY"]
_TOKEN = "eyJhbGciOiJub25lIn0.eyJleHAiOjQxMDI0NDQ4MDB9."
"""Web token without a signature that is valid until the year 2100."""
_WORKER_TOKEN = "worker"
_ENDED: Final = api.GenericResult(status=api.GenericResult.GENERIC_STATUS_TERMINATED)
_TICKS = itertools.count(1)
ADDRESS: list[str] = []
TASKS: list[asyncio.TaskGroup] = []


@dataclass
class Sandbox:
    """Sandbox of the stub."""

    box: Box
    definition: api.Sandbox
    tags: list[api.SandboxTag]
    created: float = field(default_factory=lambda: float(next(_TICKS)))
    active: float = 0.0
    """Time of the last command."""


SANDBOXES: dict[str, Sandbox] = {}


class Execution:
    """Running command."""

    def __init__(self) -> None:
        self.output: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self.status: int | None = None
        self.changed = asyncio.Condition()
        self.received = 0
        self._stdin, self._write = os.pipe()
        self._writing = asyncio.Lock()

    async def run(self, box: Box, request: router.TaskExecStartRequest) -> None:
        """Run it to its end or its deadline; a command that can't be started ends like one that is killed."""
        try:
            async with asyncio.timeout(request.timeout_secs or None):
                await self._run(box, list(request.command_args), request.workdir or "/")
        except OSError:
            await self._end(137)

    async def _run(self, box: Box, argv: list[str], cwd: str) -> None:
        async with contextlib.aclosing(box.run(argv, cwd=cwd, stdin=self._stdin)) as pieces:
            async for name, value in pieces:
                if isinstance(value, int):
                    await self._end(value)
                else:
                    async with self.changed:
                        self.output[name] += value
                        self.changed.notify_all()

    async def _end(self, status: int) -> None:
        async with self.changed:
            self.status = status
            self.changed.notify_all()
        # Ends a write that nobody reads.
        os.close(self._stdin)
        async with self._writing:
            self._close_stdin()

    async def feed(self, request: router.TaskExecStdinWriteRequest) -> None:
        """Write to its standard input what it has not received before."""
        if self.status is not None:
            raise GRPCError(Status.FAILED_PRECONDITION, "the process has exited")
        async with self._writing:
            data = request.data[self.received - request.offset :]
            self.received += len(data)
            try:
                while data:
                    data = data[await asyncio.to_thread(os.write, self._write, data) :]
            except OSError:
                raise GRPCError(Status.FAILED_PRECONDITION, "the process has closed its stdin") from None
            if request.eof:
                self._close_stdin()

    def _close_stdin(self) -> None:
        if self._write >= 0:
            os.close(self._write)
            self._write = -1


EXECUTIONS: dict[str, Execution] = {}


def _unary(
    answer: Callable[[Service, Asked], Awaitable[Answered]],
) -> Callable[[Service, Stream[Asked, Answered]], Awaitable[None]]:
    """Turn a function of a request into a method, which checks the key."""

    async def handle(self: Service, stream: Stream[Asked, Answered]) -> None:
        assert stream.metadata is not None
        key = stream.metadata.get("x-modal-token-secret")
        if key != _KEY and stream.metadata.get("authorization") != f"Bearer {_WORKER_TOKEN}":
            raise GRPCError(Status.UNAUTHENTICATED, f"the key {key} is not valid")
        request = await stream.recv_message()
        assert request is not None
        await stream.send_message(await answer(self, request))

    return handle


def _sandbox(name: str) -> Sandbox:
    if name not in SANDBOXES:
        raise GRPCError(Status.NOT_FOUND, f"sandbox {name} not found")
    return SANDBOXES[name]


class ControlPlane:
    """Service that has the sandboxes."""

    @_unary
    async def AppGetOrCreate(self, request: api.AppGetOrCreateRequest) -> api.AppGetOrCreateResponse:
        """Return the app of a name."""
        return api.AppGetOrCreateResponse(app_id=f"ap-{request.app_name}")

    @_unary
    async def EnvironmentGetOrCreate(
        self, request: api.EnvironmentGetOrCreateRequest
    ) -> api.EnvironmentGetOrCreateResponse:
        """Return the default environment."""
        settings = api.EnvironmentSettings(image_builder_version="2025.06")
        return api.EnvironmentGetOrCreateResponse(
            environment_id="en-stub", metadata=api.EnvironmentMetadata(name="main", settings=settings)
        )

    @_unary
    async def AuthTokenGet(self, request: api.AuthTokenGetRequest) -> api.AuthTokenGetResponse:
        """Return a token for the calls of sandboxes."""
        return api.AuthTokenGetResponse(token=_TOKEN)

    @_unary
    async def ImageGetOrCreate(self, request: api.ImageGetOrCreateRequest) -> api.ImageGetOrCreateResponse:
        """Pretend to have built an image."""
        status, reason = api.GenericResult.GENERIC_STATUS_SUCCESS, ""
        if "FROM missing" in request.image.dockerfile_commands:
            status, reason = api.GenericResult.GENERIC_STATUS_FAILURE, "manifest for missing not found"
        result = api.GenericResult(status=status, exception=reason)
        return api.ImageGetOrCreateResponse(image_id=f"im-{secrets.token_hex(8)}", result=result)

    @_unary
    async def SandboxCreateV2(self, request: api.SandboxCreateV2Request) -> api.SandboxCreateV2Response:
        """Start a sandbox."""
        name = f"sb-{secrets.token_hex(13)}"
        SANDBOXES[name] = Sandbox(await Box.start(), request.definition, list(request.tags))
        return api.SandboxCreateV2Response(sandbox_id=name, task_id=f"ta-{name}")

    @_unary
    async def SandboxGetCommandRouterAccess(
        self, request: api.SandboxGetCommandRouterAccessRequest
    ) -> api.SandboxGetCommandRouterAccessResponse:
        """Return the address of a sandbox's worker."""
        _sandbox(request.sandbox_id or request.task_id.removeprefix("ta-"))
        return api.SandboxGetCommandRouterAccessResponse(url=ADDRESS[0], jwt=_WORKER_TOKEN)

    @_unary
    async def SandboxListV2(self, request: api.SandboxListRequest) -> api.SandboxListResponse:
        """List running sandboxes. The name is the kind of network, `ready_at` the last command's time."""
        wanted = {(tag.tag_name, tag.tag_value) for tag in request.tags}
        infos = [
            api.SandboxInfo(
                id=name,
                created_at=sandbox.created,
                app_id="ap-agentflow",
                tags=sandbox.tags,
                timeout_secs=sandbox.definition.timeout_secs,
                idle_timeout_secs=sandbox.definition.idle_timeout_secs,
                name=api.NetworkAccess.NetworkAccessType.Name(
                    sandbox.definition.network_access.network_access_type
                ),
                ready_at=sandbox.active,
            )
            for name, sandbox in reversed(SANDBOXES.items())
            if wanted <= {(tag.tag_name, tag.tag_value) for tag in sandbox.tags}
            and sandbox.created < (request.before_timestamp or float("inf"))
            and request.app_id in ("", "ap-agentflow")
        ]
        return api.SandboxListResponse(sandboxes=infos)

    @_unary
    async def SandboxTagsGetV2(self, request: api.SandboxTagsGetRequest) -> api.SandboxTagsGetResponse:
        """Return the tags of a sandbox."""
        return api.SandboxTagsGetResponse(tags=_sandbox(request.sandbox_id).tags)

    @_unary
    async def SandboxWaitV2(self, request: api.SandboxWaitRequest) -> api.SandboxWaitResponse:
        """Describe a running sandbox."""
        _sandbox(request.sandbox_id)
        return api.SandboxWaitResponse()

    @_unary
    async def SandboxTerminateV2(self, request: api.SandboxTerminateRequest) -> api.SandboxTerminateResponse:
        """End a sandbox; one that has ended is fine."""
        sandbox = SANDBOXES.pop(request.sandbox_id, None)
        if sandbox is not None:
            await sandbox.box.end()
        return api.SandboxTerminateResponse(existing_result=_ENDED)


class Worker:
    """Service that runs commands in sandboxes."""

    @_unary
    async def TaskExecStart(self, request: router.TaskExecStartRequest) -> router.TaskExecStartResponse:
        """Start a command; a repeated request starts nothing."""
        sandbox = _sandbox(request.task_id.removeprefix("ta-"))
        if request.exec_id not in EXECUTIONS:
            sandbox.active = float(next(_TICKS))
            execution = EXECUTIONS[request.exec_id] = Execution()
            TASKS[0].create_task(execution.run(sandbox.box, request))
        return router.TaskExecStartResponse()

    @_unary
    async def TaskExecStdinWrite(
        self, request: router.TaskExecStdinWriteRequest
    ) -> router.TaskExecStdinWriteResponse:
        """Write to the standard input of a command."""
        await EXECUTIONS[request.exec_id].feed(request)
        return router.TaskExecStdinWriteResponse()

    @_unary
    async def TaskExecWait(self, request: router.TaskExecWaitRequest) -> router.TaskExecWaitResponse:
        """Wait for the end of a command."""
        execution = EXECUTIONS[request.exec_id]
        async with execution.changed:
            await execution.changed.wait_for(lambda: execution.status is not None)
        return router.TaskExecWaitResponse(code=execution.status or 0)

    async def TaskExecStdioRead(
        self, stream: Stream[router.TaskExecStdioReadRequest, router.TaskExecStdioReadResponse]
    ) -> None:
        """Stream an output of a command to its end."""
        request = await stream.recv_message()
        assert request is not None
        execution = EXECUTIONS[request.exec_id]
        is_stdout = request.file_descriptor == router.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
        output, offset = execution.output["stdout" if is_stdout else "stderr"], request.offset
        while True:
            async with execution.changed:
                while len(output) == offset and execution.status is None:
                    await execution.changed.wait()
            if len(output) == offset:
                return
            piece = bytes(output[offset : offset + (1 << 20)])
            offset += len(piece)
            await stream.send_message(router.TaskExecStdioReadResponse(data=piece))


async def _absent(self: object, stream: Stream[Any, Any]) -> None:
    raise GRPCError(Status.UNIMPLEMENTED, "the stub has no such method")


def _served(stub: type, published: type) -> Any:  # noqa: ANN401 - grpclib does not export its type
    """Return a published service of which the stub has some methods."""
    missing = getattr(published, "__abstractmethods__", frozenset[str]()) - vars(stub).keys()
    return type(stub.__name__, (stub, published), dict.fromkeys(missing, _absent))()


async def main() -> None:
    """Serve until the process is told to end."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    ADDRESS.append(f"http://127.0.0.1:{port}")
    server = Server([_served(ControlPlane, ModalClientBase), _served(Worker, TaskCommandRouterBase)])
    async with asyncio.TaskGroup() as tasks:
        TASKS.append(tasks)
        with graceful_exit([server]):
            await server.start(sock=listener)
            sys.stdout.write(f"{port}\n")
            sys.stdout.flush()
            await server.wait_closed()
        for sandbox in SANDBOXES.values():
            await sandbox.box.end()


if __name__ == "__main__":
    asyncio.run(main())
