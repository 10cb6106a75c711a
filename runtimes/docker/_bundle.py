"""Containers without a daemon: one OCI bundle each, run by `runc` or by gVisor's `runsc`, in cgroups found by name."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.abc
import anyio.to_thread

from agentflow.errors import IsolationUnavailable, NotOffered
from runtimes.docker import _host_root
from runtimes.docker._plan import (
    CAPABILITIES,
    MASKED,
    WRITABLE_FOLDERS,
    Container,
    ContainerLauncher,
    ContainerOptions,
    ContainerPlan,
    exit_reason,
)
from runtimes.process.linux import _cgroups

CGROUP_PREFIX = "agentflow-oci-"
"""Prefix of the names of the cgroups; the realm and the server follow."""
_CGROUPS = "/sys/fs/cgroup"
_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_CPU_PERIOD = 100_000
_PACKAGES = {"runc": "runc", "gvisor": "runsc"}
_FLAGS = {
    "runc": (),
    # gVisor brings its own network stack; the init process connects to a socket of the host.
    "gvisor": ("--network=none", "--platform=ptrace", "--ignore-cgroups", "--host-uds=all"),
}
_NOTES = {
    "runc": (),
    "gvisor": (
        "gVisor support is experimental: memory is limited per process, and the number of processes is not limited",
        "processes that a command leaves running continue until their container ends",
    ),
}
SEARCHED = "/usr/local/sbin:/usr/sbin:/sbin"
"""Directories searched besides `PATH`, which lacks them for an ordinary user."""
_KILL_SECONDS = 5.0
_RETRY_SECONDS = 0.05


class BundleContainer:
    """Container that a `run` process holds. See `runtimes.docker._plan.Container`."""

    def __init__(self, process: anyio.abc.Process, delete: list[str], folder: str) -> None:
        self._process = process
        self._delete = delete
        self._folder = folder

    async def failed(self) -> str:
        """Wait until the container ends by itself; return the reason."""
        status = await self._process.wait()
        errors = b""
        assert self._process.stderr is not None
        with contextlib.suppress(anyio.EndOfStream):
            errors = await self._process.stderr.receive()
        return (
            errors.decode("utf-8", "replace").split("\n")[0].strip()
            if errors.strip()
            else exit_reason(status)
        )

    async def layer(self) -> str | None:
        """Return `None`: the root is read-only."""
        return None

    async def commit(self, image: str) -> None:
        """Refuse: this runtime has no images."""
        raise NotOffered(f"cannot make the image {image!r} without a Docker engine: use runtime docker")

    async def end(self) -> None:
        """Kill the container and remove everything that belongs to it."""
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(_KILL_SECONDS):
                # Repeated: before `run` has created the container there is nothing to delete.
                while self._process.returncode is None:
                    await anyio.run_process(
                        self._delete,
                        check=False,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                    with anyio.move_on_after(_RETRY_SECONDS):
                        await self._process.wait()
            if self._process.returncode is None:
                self._process.kill()
            await self._process.aclose()
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(self._folder, ignore_errors=True))


class BundleLauncher(ContainerLauncher):
    """Launcher that runs OCI bundles. See `runtimes.docker._plan.ContainerLauncher`."""

    def __init__(self, tier: Literal["runc", "gvisor"], options: ContainerOptions) -> None:
        self._tier = tier
        self._options = options
        self._rootfs = ""
        self._folder = ""
        self._command: list[str] = []
        self._group = ""
        self.notes = _NOTES[tier]

    async def open(self, folder: str, realm: str, lives: Callable[[str], bool]) -> None:
        """Find the program and prepare the root file system."""
        program = await anyio.to_thread.run_sync(self._find_program)
        self._folder = folder
        self._group = f"{CGROUP_PREFIX}{realm}-{os.path.basename(folder)}"
        self._command = [program, "--root", os.path.join(folder, "state"), *_FLAGS[self._tier]]
        await anyio.to_thread.run_sync(self._prepare_root)
        self.alive = True

    def _find_program(self) -> str:
        package = _PACKAGES[self._tier]
        program = shutil.which(package, path=f"{os.environ.get('PATH', os.defpath)}:{SEARCHED}")
        if program is None:
            raise IsolationUnavailable(
                f"runtime {self._tier} needs the program {package}: install the package {package}"
            )
        if os.geteuid() != 0:
            raise IsolationUnavailable(
                f"runtime {self._tier} needs root: run as root, or use the process runtime"
            )
        if self._options.image is not None:
            raise IsolationUnavailable(
                f"runtime {self._tier} has no images: unpack {self._options.image!r} into a directory and set rootfs to it"
            )
        return program

    def _prepare_root(self) -> None:
        rootfs = self._options.rootfs
        if rootfs is not None:
            if not (rootfs / "usr").is_dir():
                raise IsolationUnavailable(
                    f"rootfs: {rootfs} contains no system: unpack an image or run debootstrap there"
                )
            self._rootfs = str(rootfs.resolve())
            self.env = {}
            return
        self.root = _host_root.host_root()
        self._rootfs = os.path.join(self._folder, "root")
        os.mkdir(self._rootfs, 0o755)
        _host_root.create_root(self._rootfs)

    async def launch(self, plan: ContainerPlan) -> Container:
        """Write the bundle and run it."""
        bundle = os.path.join(self._folder, f"{plan.name}.bundle")
        config = _bundle_config(plan, self._rootfs, f"/{self._group}/{plan.name}", self._options.cpus)
        await anyio.to_thread.run_sync(_write_bundle, bundle, config)
        # Shielded: cancellation would kill `run` and leave behind whatever it has created so far.
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                [*self._command, "run", "--bundle", bundle, plan.name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            return BundleContainer(process, [*self._command, "delete", "--force", plan.name], bundle)
        raise AssertionError("unreachable: the scope only shields")

    async def close(self) -> None:
        """Remove this server's cgroups."""
        self.alive = False
        if self._group:
            await anyio.to_thread.run_sync(lambda: remove_dead_cgroups(self._group, lambda _: False))


def _write_bundle(bundle: str, config: dict[str, Any]) -> None:
    os.mkdir(bundle, 0o700)
    Path(bundle, "config.json").write_text(json.dumps(config), encoding="utf-8")


def _bundle_config(plan: ContainerPlan, rootfs: str, group: str, cpus: float | None) -> dict[str, Any]:
    """Return the content of `config.json`."""
    capabilities = [f"CAP_{name}" for name in CAPABILITIES]
    return {
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "root": {"path": rootfs, "readonly": True},
        "process": {
            "args": list(plan.argv),
            "cwd": "/",
            "env": [f"{name}={value}" for name, value in plan.env.items()],
            "user": {"uid": 0, "gid": 0},
            "noNewPrivileges": True,
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
        },
        "mounts": _mounts(plan),
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")],
            "cgroupsPath": group,
            "resources": _resources(plan, cpus),
            "maskedPaths": list(MASKED),
            "readonlyPaths": [f"/proc/{name}" for name in _READ_ONLY],
        },
    }


def _resources(plan: ContainerPlan, cpus: float | None) -> dict[str, Any]:
    resources: dict[str, Any] = {"devices": [{"allow": False, "access": "rwm"}]}
    if plan.limits.memory_bytes is not None:
        resources["memory"] = {"limit": plan.limits.memory_bytes, "swap": plan.limits.memory_bytes}
    if plan.processes is not None:
        resources["pids"] = {"limit": plan.processes}
    if cpus is not None:
        resources["cpu"] = {"quota": int(cpus * _CPU_PERIOD), "period": _CPU_PERIOD}
    return resources


def _mounts(plan: ContainerPlan) -> list[dict[str, Any]]:
    system_mounts = [
        _mount("/proc", ["nosuid", "noexec", "nodev"], "proc"),
        _mount("/dev", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        _mount("/dev/pts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"], "devpts"),
        _mount("/dev/shm", ["nosuid", "noexec", "nodev", "mode=1777", f"size={plan.shared_memory}"]),
        _mount("/sys", ["nosuid", "noexec", "nodev", "ro"], "sysfs"),
        _mount("/sys/fs/cgroup", ["nosuid", "noexec", "nodev", "relatime", "ro"], "cgroup"),
    ]
    mounts = [
        {"destination": mount.target, "type": "bind", "source": mount.source, "options": ["rbind", "ro", "nosuid", "nodev"]}
        for mount in plan.mounts
    ]  # fmt: skip
    mounts += [_mount(path, ["ro", "size=4k", "mode=0555"]) for path in plan.hidden]
    size = [f"size={plan.limits.disk_bytes}", f"nr_inodes={plan.limits.files}"]
    mounts += [_mount(path, ["nosuid", "nodev", "mode=1777", *size]) for path in WRITABLE_FOLDERS]
    # Parents first: a mount hides what was mounted below it before.
    return system_mounts + sorted(mounts, key=lambda mount: mount["destination"].count("/"))


def _mount(path: str, options: list[str], kind: str = "tmpfs") -> dict[str, Any]:
    return {"destination": path, "type": kind, "source": kind, "options": options}


def remove_dead_cgroups(prefix: str, lives: Callable[[str], bool]) -> None:
    """Remove the cgroups named after the prefix and a server that is not alive."""
    unified = os.path.exists(f"{_CGROUPS}/cgroup.controllers")
    hierarchies = [] if unified or not os.path.isdir(_CGROUPS) else os.listdir(_CGROUPS)
    parents = [_CGROUPS] if unified else [f"{_CGROUPS}/{name}" for name in hierarchies]
    _cgroups.remove_dead(parents, prefix, lives, tries=100)
