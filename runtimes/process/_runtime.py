"""The process runtime: many sandboxes that share one small set of trusted processes."""

import asyncio
import contextlib
import os
import resource
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.to_thread

from agentflow.errors import InstanceGone, IsolationUnavailable, RuntimeFailure
from runtimes._protocol import Capabilities, InstanceSpec, Limits
from runtimes.process._channel import RequestChannel
from runtimes.process._containment import Lack
from runtimes.process._fonts import font_list
from runtimes.process._instance import ProcessInstance, new_name
from runtimes.process._network import InstanceNetwork
from runtimes.process._pool import InstancePool
from runtimes.process._probe import missing
from runtimes.process.trusted import _server_folder, _wire

if TYPE_CHECKING:
    from runtimes.egress import Resolve

PRELOAD = ("numpy", "pandas")
"""Modules that the zygote imports, if installed, so that sessions start with them."""

# A session needs some descriptors itself, and a few more during a fork.
_FEWEST_OPEN_FILES = 48
_HERE = Path(__file__).parent
_START = "import sys; sys.path.insert(0, {root!r}); from runtimes.process.trusted._host_monitor import main; main(*{fds})"


class HostMonitorClient(RequestChannel):
    """The trusted processes of one runtime and the requests in flight."""

    async def start(self, preload: Sequence[str], *, idle: bool) -> None:
        """Start the host monitor and wait for the sandbox init process.

        :raises IsolationUnavailable: if sandboxes can't be isolated on this machine.
        """
        fonts = await anyio.to_thread.run_sync(font_list)
        # A session needs three descriptors: the usual soft limit of 1024 would allow about 300 sessions.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        ours, theirs = _wire.socket_pair()
        alive_read, self._alive = os.pipe2(os.O_CLOEXEC)
        folder = os.path.join(_server_folder.parent_folder(), secrets.token_hex(6))
        fds = theirs.fileno(), alive_read
        self._process = _start_host_monitor(fds)
        theirs.close()
        os.close(alive_read)
        _wire.send(
            ours,
            {
                "folder": folder,
                "path": os.environ.get("PATH", os.defpath),
                "preload": list(preload),
                "idle": idle,
                "fonts": str(fonts) if fonts else "",
                "shell_driver": (_HERE / "inside" / "_shell.bash").read_text(encoding="utf-8"),
                "shell_entry": (_HERE / "inside" / "_shell_entry.bash").read_text(encoding="utf-8"),
            },
        )
        try:
            await self.open(ours)
        except RuntimeFailure as error:
            raise IsolationUnavailable(f"the sandboxes' processes did not start: {error}") from error
        if not self.facts["started"]:
            await self.close()
            raise IsolationUnavailable(self.facts["error"])

    async def close(self) -> None:
        """End every sandbox and wait for the end of the trusted processes."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
        self.hang_up()
        waiting = self._loop.run_in_executor(None, self._process.wait)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(waiting)
        if not waiting.done():
            await waiting


def _start_host_monitor(fds: tuple[int, int]) -> subprocess.Popen[bytes]:
    """Start the host monitor in an interpreter that inherits only two descriptors."""
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _START.format(root=str(_HERE.parent.parent), fds=fds)],
        pass_fds=fds,
        env={"LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        # Sandboxes are other users, who read the directories made for them.
        umask=0o022,
    )


class ProcessRuntime:
    """Runtime whose sandboxes are Linux namespaces on this machine, without a daemon. See `runtimes.Runtime`.

    Example::

        async with ProcessRuntime() as runtime:
            instance = await runtime.start()
            result = await instance.run("python", "1 + 1")
            assert result.value == "2"

    :param preload: modules that the zygote imports before sessions start.
    :param idle: run sandboxes at idle priority, with CPU time that no other process wants.
    :param pool: number of instances of `pool_spec` to keep ready, each with its warm sessions.
    :param pool_spec: spec of these instances; by default one with a warm Python session.
    :param resolve: name resolution for instances with a network; by default the system's.
    """

    def __init__(
        self,
        *,
        preload: Sequence[str] = PRELOAD,
        idle: bool = False,
        pool: int = 0,
        pool_spec: InstanceSpec | None = None,
        resolve: "Resolve | None" = None,
    ) -> None:
        self._preload = tuple(preload)
        self._resolve = resolve
        self._idle = idle
        self._client = HostMonitorClient()
        self._instances: dict[str, ProcessInstance] = {}
        self._pool = InstancePool(self._make, pool, pool_spec or InstanceSpec(warm=frozenset({"python"})))
        self._capabilities: Capabilities | None = None

    async def __aenter__(self) -> Self:
        if problems := missing():
            raise IsolationUnavailable(problems[0])
        await self._client.start(self._preload, idle=self._idle)
        self._capabilities = _capabilities(self._client.facts)
        try:
            await self._pool.__aenter__()
        except BaseException:
            await self._client.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self._pool.__aexit__()
        finally:
            with anyio.CancelScope(shield=True):
                await self._client.close()
                for instance in list(self._instances.values()):
                    await instance.stop()

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities on this machine.

        :raises RuntimeFailure: if the runtime is not started.
        """
        if self._capabilities is None:
            raise RuntimeFailure("the runtime is not started: use `async with`")
        return self._capabilities

    @property
    def lacks(self) -> frozenset[Lack]:
        """Mechanisms of isolation that this machine lacks; `CONTAINMENT` has their effects.

        :raises RuntimeFailure: if the runtime is not started.
        """
        if self._capabilities is None:
            raise RuntimeFailure("the runtime is not started: use `async with`")
        return _lacks(self._client.facts)

    @property
    def alive(self) -> bool:
        """Its processes are running: false before `async with`, after it, and once they have died."""
        return self._client.alive

    async def warmup(self) -> list[str]:
        """Start the zygote and fill the pool; return the modules that the zygote imported."""
        preloaded = list((await self._client.ask("warm")).fields["preloaded"])
        await self._pool.full()
        return preloaded

    async def start(self, spec: InstanceSpec | None = None) -> ProcessInstance:
        """Start an instance, or take one from the pool.

        :raises IsolationUnavailable: if the sandbox can't be built on this machine.
        """
        spec = spec or InstanceSpec()
        return self._pool.take_for(spec) or await self._make(spec)

    async def _make(self, spec: InstanceSpec) -> ProcessInstance:
        network = InstanceNetwork(spec.network, self._resolve)
        instance = ProcessInstance(self._client, new_name(), spec, self._instances, network=network)
        limits = wire_limits(spec.limits, proxy_port=network.port)
        try:
            reply = await self._client.ask("open", id=instance.id, limits=limits, mounts=dict(spec.mounts))
        except InstanceGone:
            raise
        except (OSError, RuntimeFailure) as error:
            raise IsolationUnavailable(f"can't build a sandbox: {error}") from error
        self._instances[instance.id] = instance
        try:
            await instance.attach(reply)
            await instance.warm(spec.warm)
        except BaseException:
            await instance.stop()
            raise
        return instance


def wire_limits(limits: Limits, *, proxy_port: int = 0) -> dict[str, Any]:
    """Return limits in the form that the sandbox init process takes, with the port of the instance's proxy."""
    return {
        "memory": limits.memory_bytes,
        "processes": limits.processes,
        "file": limits.file_bytes,
        "disk": limits.disk_bytes,
        "files": limits.files,
        "open_files": max(limits.open_files, _FEWEST_OPEN_FILES),
        "proxy_port": proxy_port,
    }


def _lacks(facts: dict[str, Any]) -> frozenset[Lack]:
    missing_by_lack: dict[Lack, bool] = {
        "landlock": not facts["landlock"],
        "cgroups": not facts["grouped"],
        "cpu-cgroup": not facts["shares_cpu"],
        "autogroup": not facts["shares_cpu"] and _autogroup(),
        "id-range": facts["single_user"],
    }
    return frozenset(lack for lack, missing in missing_by_lack.items() if missing)


def _autogroup() -> bool:
    """Return whether the kernel divides the CPU by session."""
    try:
        return Path("/proc/sys/kernel/sched_autogroup_enabled").read_text(encoding="utf-8").strip() == "1"
    except OSError:
        return False


def _capabilities(facts: dict[str, Any]) -> Capabilities:
    notes = [facts["note"]] if facts["note"] else []
    if not facts["landlock"]:
        notes.append("no Landlock: the kernel is older than 5.13 or was built without it")
    if not facts["grouped"]:
        notes.append(
            "cgroups can't be created: memory is limited per process; run as root, or in a delegated cgroup "
            "(systemd-run --user --scope -p Delegate=yes COMMAND)"
        )
    if not facts["shares_cpu"]:
        unit = "command" if _autogroup() else "process"
        notes.append(
            f"no cgroup limits the CPU: each {unit} in a sandbox has the share of a program of the host, "
            "so that many slow the server down; run as root, or in a cgroup with the controller cpu delegated"
        )
    if not facts["watches_limited"]:
        notes.append(
            "the kernel's settings are read-only here: one sandbox can use up the inotify instances of this user"
        )
    root, fork = (False, "none") if facts["single_user"] else (True, "live")
    return Capabilities(
        fork=fork, snapshot=True, network=True, gpu=False, screen=False, root=root, notes=tuple(notes)
    )
