"""Container runtimes: one container with one init process for each instance."""

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Self

import anyio
import anyio.to_thread

from agentflow.errors import IsolationUnavailable, RuntimeFailure
from agentflow.extras import extra_of, missing_extra
from runtimes._protocol import WORKSPACE, Capabilities, InstanceSpec
from runtimes.docker._bundle import CGROUP_PREFIX, BundleLauncher, remove_dead_cgroups
from runtimes.docker._instance import ContainerInstance, InitConnection
from runtimes.docker._plan import ContainerLauncher, ContainerMount, ContainerOptions, ContainerPlan, Tier
from runtimes.docker.inside import _paths
from runtimes.process._instance import environment, new_name
from runtimes.process._pool import InstancePool
from runtimes.process._runtime import wire_limits
from runtimes.process.trusted import _server_folder
from runtimes.process.trusted._mounting import special_file

if TYPE_CHECKING:
    from runtimes.process import ProcessInstance

_SOURCE = Path(__file__).parents[1]
_INSIDE = _SOURCE / "process" / "inside"
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAM = (
    f"import sys; sys.version_info >= (3, 11) or sys.exit({_paths.OLD_PYTHON}); "
    f"sys.path.insert(0, {_paths.LIBRARY!r}); from runtimes.docker.inside._container_init import main; main()"
)
_FORK_NOTE = (
    "a fork takes files and the shell along, but no live Python session: repeat its runs in the new container"
)


class DockerRuntime:
    """Runtime whose instances are containers. See `runtimes.Runtime` and docs/docker-runtime.md.

    `tier` selects the program: a Docker engine, `runc` or gVisor. `options.pool` containers of `pool_spec` are kept
    ready, each with the sessions that the spec warms.
    Example::
        async with DockerRuntime(ContainerOptions(pool=2)) as runtime:
            instance = await runtime.start()
            result = await instance.exec(["echo", "hi"])
    """

    def __init__(
        self,
        options: ContainerOptions | None = None,
        *,
        tier: Tier = "docker",
        pool_spec: InstanceSpec | None = None,
    ) -> None:
        self._options = options or ContainerOptions()
        self._tier = tier
        self._launcher = make_launcher(tier, self._options)
        self._instances: dict[str, ProcessInstance] = {}
        self._pool = InstancePool(
            self._make, self._options.pool, pool_spec or InstanceSpec(warm=frozenset({"python"}))
        )
        self._folder = ""
        self._closed = False
        self._checked_mounts: set[str] = set()
        self._starts: set[anyio.CancelScope] = set()
        self._start_ended = anyio.Event()

    async def __aenter__(self) -> Self:
        parent = await anyio.to_thread.run_sync(_server_folder.parent_folder)
        self._folder = os.path.join(parent, secrets.token_hex(6))
        realm = _server_folder.realm(self._folder)

        def lives(server: str) -> bool:
            return _server_folder.is_held(os.path.join(parent, server))

        try:
            await anyio.to_thread.run_sync(_server_folder.claim, self._folder)
            await anyio.to_thread.run_sync(remove_dead_cgroups, f"{CGROUP_PREFIX}{realm}-", lives)
            await self._launcher.open(self._folder, realm, lives)
            await self._pool.__aenter__()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._close()

    async def _close(self) -> None:
        self._closed = True
        try:
            await self._pool.__aexit__()
        finally:
            with anyio.CancelScope(shield=True):
                await self._cancel_starts()
                async with anyio.create_task_group() as tasks:
                    for instance in list(self._instances.values()):
                        tasks.start_soon(instance.stop)
                await self._launcher.close()
                await anyio.to_thread.run_sync(_server_folder.remove, self._folder)

    async def _cancel_starts(self) -> None:
        """Cancel the starts in progress and wait until each has removed its container or registered its instance."""
        for scope in self._starts:
            scope.cancel()
        while self._starts:
            self._start_ended = anyio.Event()
            await self._start_ended.wait()

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities on this machine.

        :raises RuntimeFailure: before it is entered.
        """
        if not self._folder:
            raise RuntimeFailure("the runtime is not started: use `async with`")
        network, notes = self._launcher.network, (_FORK_NOTE, *self._launcher.notes)
        return Capabilities(
            fork="replay", snapshot=True, network=network, gpu=False, screen=False, root=True, notes=notes
        )

    @property
    def alive(self) -> bool:
        """True while it is entered and the engine can be reached."""
        return self._launcher.alive

    async def warmup(self) -> None:
        """Wait until the pool is filled."""
        await self._pool.full()

    async def start(self, spec: InstanceSpec | None = None, *, image: str | None = None) -> ContainerInstance:
        """Start an instance, optionally from a different image.

        :raises IsolationUnavailable: if no container can be started.
        :raises RuntimeFailure: if the runtime is closed meanwhile.
        """
        spec = spec or InstanceSpec()
        if spec.network is not None:
            raise IsolationUnavailable(
                f"{self._tier}: network.allow works with the process runtime only: leave out network, or choose runtime: process"
            )
        if image is not None:
            return await self._make(spec, image)
        while (instance := self._pool.take_for(spec)) is not None:
            if await instance.answers():
                return instance
            await instance.stop()
        return await self._make(spec)

    async def _make(self, spec: InstanceSpec, image: str | None = None) -> ContainerInstance:
        if self._closed:
            raise RuntimeFailure("the runtime is closed")
        with anyio.CancelScope() as scope:
            self._starts.add(scope)
            try:
                return await self._start_container(spec, image)
            finally:
                self._starts.discard(scope)
                self._start_ended.set()
        raise RuntimeFailure("the runtime was closed while the container was being started")

    async def _start_container(self, spec: InstanceSpec, image: str | None) -> ContainerInstance:
        for source in set(spec.mounts.values()) - self._checked_mounts:
            await anyio.to_thread.run_sync(_check_mount, source)
            self._checked_mounts.add(source)
        name = new_name()
        link = InitConnection(os.path.join(self._folder, name))
        try:
            container = await self._launcher.launch(self._plan(name, link.path, spec, image))
            try:
                settings = {
                    "limits": wire_limits(spec.limits),
                    "uid": self._options.user,
                    "shell_driver": (_INSIDE / "_shell.bash").read_text(encoding="utf-8"),
                    # gVisor's kernel cannot pass file descriptors.
                    "copies": self._tier == "gvisor",
                }
                channel = await link.answer(container, settings, self._options.start_seconds)
                instance = ContainerInstance(
                    channel, name, spec, self._instances, self._env(spec), container, self.start
                )
            except BaseException:
                # First: an init process that connects now would wait for an answer instead of ending.
                link.close()
                with anyio.CancelScope(shield=True):
                    await container.end()
                raise
        finally:
            link.close()
        try:
            await instance.begin()
            await instance.warm(spec.warm)
        except BaseException:
            await instance.stop()
            raise
        return instance

    def _plan(self, name: str, socket: str, spec: InstanceSpec, image: str | None) -> ContainerPlan:
        launcher = self._launcher
        agentflow_mounts = [
            ContainerMount(str(_SOURCE), f"{_paths.LIBRARY}/runtimes"),
            ContainerMount(socket, _paths.SOCKET),
        ]
        if launcher.env is not None:
            agentflow_mounts.append(ContainerMount(str(_INSIDE / "_shell_entry.bash"), _paths.SHELL_ENTRY))
        return ContainerPlan(
            name=f"agentflow-{name}",
            argv=(launcher.root.python, "-I", "-c", _PROGRAM),
            env={"LANG": "C.UTF-8", "PATH": (launcher.env or {}).get("PATH", _USUAL_PATH)},
            mounts=(
                *launcher.root.mounts,
                *agentflow_mounts,
                *(ContainerMount(path, target) for target, path in spec.mounts.items()),
            ),
            hidden=launcher.root.hidden,
            limits=spec.limits,
            image=image,
        )

    def _env(self, spec: InstanceSpec) -> dict[str, str]:
        """Return the environment of processes inside: the image's, and the small clean set that every runtime adds."""
        image = self._launcher.env
        if image is None:
            return environment({"MPLCONFIGDIR": _paths.MATPLOTLIB_FOLDER, **spec.env})
        path = f"{WORKSPACE}/.local/bin:{image.get('PATH', _USUAL_PATH)}"
        return {**image, **environment({"PATH": path}), **spec.env}


def _check_mount(source: str) -> None:
    """Refuse a folder of the host with sockets or FIFOs, which a read-only mount does not close.

    :raises IsolationUnavailable: if it has one.
    """
    try:
        special_path = special_file(source)
    except FileNotFoundError:
        # The engine reports a missing folder.
        return
    except OSError as error:
        raise IsolationUnavailable(f"can't mount {source}: {error}") from error
    if special_path:
        raise IsolationUnavailable(
            f"can't mount {source}: {special_path} is a socket or FIFO and would lead to the host; mount a folder without one"
        )


def make_launcher(tier: Tier, options: ContainerOptions) -> ContainerLauncher:
    """Return the launcher of a tier.

    :raises IsolationUnavailable: if its library is not installed.
    """
    if tier == "docker":
        try:
            from runtimes.docker._engine import (
                EngineLauncher,  # The client is imported only where there is an engine.
            )
        except ModuleNotFoundError as error:
            if error.name is None or extra_of(error.name) != "docker":
                raise
            raise IsolationUnavailable(missing_extra("runtime docker", "docker")) from None
        return EngineLauncher(options)
    return BundleLauncher(tier, options)
