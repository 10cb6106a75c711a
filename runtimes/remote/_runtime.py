"""Runtime whose instances are sandboxes of a service."""

import base64
import contextlib
import json
import os
import re
import secrets
import tempfile
from dataclasses import asdict
from typing import Final, Self

import anyio
import anyio.to_thread

from agentflow.errors import CannotFork, InstanceGone, IsolationUnavailable, RuntimeFailure
from agentflow.extras import extra_of, missing_extra
from runtimes._protocol import Capabilities, Fork, InstanceSpec
from runtimes.process._runtime import wire_limits
from runtimes.process.trusted import _server_folder
from runtimes.remote._bundle import bundle, unpack_command
from runtimes.remote._calls import SandboxCalls
from runtimes.remote._instance import RemoteInstance
from runtimes.remote._service import (
    REALM_LABEL,
    SERVER_LABEL,
    RemoteOptions,
    RemoteSandbox,
    SandboxService,
    ServiceName,
    one_line,
)
from runtimes.remote.inside._paths import ROOT

_ARCHIVE: Final = f"{ROOT}/bundle.tar.gz"
_SERVER: Final = re.compile(r"[0-9a-f]{12}")
"""Names of servers: `secrets.token_hex(6)`."""
_AGENT: Final = 64_111
"""User id of the agent inside: no user of an image has it."""
_RENEWALS: Final = 3
"""Renewals within the lifetime of a sandbox."""
_NOTES: Final = (
    "memory and file size are limited per process, processes per user; the service limits the rest",
    "a snapshot contains /home/agent and /tmp",
)
_REPLAY_NOTE: Final = (
    "a fork takes files and the shell along, but no live Python session: repeat its runs in the new sandbox"
)


class RemoteRuntime:
    """Runtime whose instances are sandboxes of a service. See docs/remote-runtimes.md.

    Example::

        async with RemoteRuntime("e2b", RemoteOptions(template="my-template")) as runtime:
            instance = await runtime.start()
            result = await instance.exec(["echo", "hi"])
    """

    def __init__(
        self,
        name: ServiceName,
        options: RemoteOptions | None = None,
        *,
        service: SandboxService | None = None,
    ) -> None:
        self._name = name
        self._options = options or RemoteOptions()
        self._service = service or make_service(name, self._options)
        self._instances: dict[str, RemoteInstance] = {}
        self._labels: dict[str, str] = {}
        self._folder = ""
        self._open = False

    async def __aenter__(self) -> Self:
        parent = await anyio.to_thread.run_sync(_server_folder.parent_folder)
        self._folder = os.path.join(parent, secrets.token_hex(6))
        self._labels = {
            SERVER_LABEL: os.path.basename(self._folder),
            REALM_LABEL: _server_folder.realm(self._folder),
        }
        await anyio.to_thread.run_sync(_server_folder.claim, self._folder)
        try:
            await self._service.open()
            await self._end_orphans(parent)
            self._tasks = anyio.create_task_group()
            await self._tasks.__aenter__()
        except BaseException:
            await self._release()
            raise
        if self._service.traits.renew:
            self._tasks.start_soon(self._renew)
        self._open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._open = False
        self._tasks.cancel_scope.cancel()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as tasks:
                    for instance in list(self._instances.values()):
                        tasks.start_soon(_stop, instance)
                await self._release()

    async def _release(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._service.close()
            await anyio.to_thread.run_sync(_server_folder.remove, self._folder)

    async def _end_orphans(self, parent: str) -> None:
        """End the sandboxes of killed servers of this user on this machine."""
        for sandbox_id, server in (await self._service.servers(self._labels[REALM_LABEL])).items():
            # Others with the same account can set any label.
            if not _SERVER.fullmatch(server):
                continue
            folder = os.path.join(parent, server)
            if not await anyio.to_thread.run_sync(_server_folder.is_held, folder):
                await self._service.end(sandbox_id)

    async def _renew(self) -> None:
        while True:
            await anyio.sleep(self._options.lifetime / _RENEWALS)
            for instance in list(self._instances.values()):
                # The next call reports a sandbox that is gone.
                with contextlib.suppress(RuntimeFailure):
                    await instance.calls.sandbox.renew(self._options.lifetime)

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the service."""
        traits = self._service.traits
        return Capabilities(
            fork="live" if traits.live_fork else "replay",
            snapshot=True,
            network=self._options.internet,
            gpu=False,
            screen=False,
            root=True,
            notes=(*_NOTES, *(() if traits.live_fork else (_REPLAY_NOTE,)), *traits.notes),
        )

    @property
    def alive(self) -> bool:
        """True while it is entered."""
        return self._open

    async def start(self, spec: InstanceSpec | None = None) -> RemoteInstance:
        """Start an instance.

        :raises IsolationUnavailable: if the service refuses, or the spec needs something that it lacks.
        :raises RuntimeFailure: if the runtime is closed.
        """
        spec = spec or InstanceSpec()
        self._check(spec)
        sandbox = await self._service.create(spec, self._labels)
        try:
            with anyio.fail_after(self._options.start_seconds):
                calls = SandboxCalls(sandbox)
                await self._prepare(calls, spec)
                instance = RemoteInstance(calls, spec, self._instances, self._fork)
                await instance.warm(spec.warm)
        except BaseException as error:
            self._instances.pop(sandbox.id, None)
            with anyio.CancelScope(shield=True):
                await _end(sandbox)
            if isinstance(error, TimeoutError):
                raise IsolationUnavailable(
                    f"{self._name}: the sandbox did not start within {self._options.start_seconds:g} seconds"
                ) from None
            raise
        return instance

    def _check(self, spec: InstanceSpec) -> None:
        if not self._open:
            raise RuntimeFailure("the runtime is not started: use `async with`")
        if spec.network is not None:
            raise IsolationUnavailable(
                f"{self._name}: network.allow works with the process runtime only: leave out network,"
                " or choose runtime: process"
            )
        if spec.mounts:
            raise IsolationUnavailable(
                f"{self._name}: a remote sandbox can't mount folders of this machine: leave out mounts,"
                " or write the files into the workspace"
            )

    async def _prepare(self, calls: SandboxCalls, spec: InstanceSpec) -> None:
        """Send the programs and start the server inside.

        :raises IsolationUnavailable: if the sandbox lacks something.
        """
        seconds = self._options.start_seconds
        archive = await calls.sandbox.upload(_ARCHIVE, await anyio.to_thread.run_sync(bundle))
        supported = (await calls.sandbox.command(unpack_command(archive), seconds)).strip()
        if supported != b"True":
            raise IsolationUnavailable(
                f"{self._name}: the sandbox needs bash and python3, 3.11 or newer: choose another template"
            )
        settings = {
            "spec": {"limits": asdict(spec.limits), "env": dict(spec.env)},
            "init": {"limits": wire_limits(spec.limits), "uid": _AGENT, "copies": True},
        }
        encoded = base64.b64encode(json.dumps(settings).encode()).decode("ascii")
        answer = await calls.program("start", encoded, seconds)
        if answer != "ready":
            raise IsolationUnavailable(f"{self._name}: {one_line(answer.removeprefix('error '))}")

    async def _fork(self, parent: RemoteInstance) -> Fork:
        if self._service.traits.live_fork:
            return await self._fork_live(parent)
        dump = await parent.dump_shell()
        child = await self.start(parent.spec)
        try:
            await _copy_files(parent, child)
            if dump.state is not None:
                await child.restore_shell(dump.state)
        except BaseException as error:
            await _abandon(child, error)
            raise
        return Fork(child, tuple(dump.left))

    async def _fork_live(self, parent: RemoteInstance) -> Fork:
        try:
            sandbox = await parent.calls.sandbox.fork(self._labels, self._options.lifetime)
        except InstanceGone:
            raise
        except RuntimeFailure as error:
            raise CannotFork(str(error)) from None
        child = RemoteInstance(SandboxCalls(sandbox), parent.spec, self._instances, self._fork)
        try:
            # Nobody waits for the parent's calls there; a sandbox without its memory has no server.
            await child.calls.request({"forget_others": True})
        except BaseException as error:
            await _abandon(child, error)
            if isinstance(error, RuntimeFailure):
                raise CannotFork(f"the copy of the sandbox does not answer: {error}") from None
            raise
        return Fork(child)


async def _stop(instance: RemoteInstance) -> None:
    # A sandbox that the service can't end now ends with its lifetime.
    with contextlib.suppress(RuntimeFailure):
        await instance.stop()


async def _end(sandbox: RemoteSandbox) -> None:
    with contextlib.suppress(RuntimeFailure):
        await sandbox.end()


async def _abandon(child: RemoteInstance, error: BaseException) -> None:
    with anyio.CancelScope(shield=True):
        await _stop(child)
    if isinstance(error, OSError):
        raise CannotFork(str(error)) from error


async def _copy_files(parent: RemoteInstance, child: RemoteInstance) -> None:
    file = await anyio.to_thread.run_sync(tempfile.TemporaryFile)
    try:
        await parent.save(file)
        await child.load(file)
    finally:
        file.close()


def make_service(name: ServiceName, options: RemoteOptions) -> SandboxService:
    """Return the client of a service.

    :raises IsolationUnavailable: if its library is not installed.
    """
    try:
        # Only the chosen service's library is imported.
        if name == "daytona":
            from runtimes.remote._daytona import DaytonaService

            return DaytonaService(options)
        if name == "e2b":
            from runtimes.remote._e2b import E2bService

            return E2bService(options)
        if name == "modal":
            from runtimes.remote._modal import ModalService

            return ModalService(options)
        from runtimes.remote._k8s import KubernetesService

        return KubernetesService(options)
    except ModuleNotFoundError as error:
        if error.name is None or extra_of(error.name) != name:
            raise
        raise IsolationUnavailable(missing_extra(f"runtime {name}", name)) from None
