"""Configuration of an OCI bundle for a container plan."""

from typing import Any

from runtimes.docker._plan import CAPABILITIES, ContainerPlan

_MASKED_OF_PROC = (
    "acpi",
    "asound",
    "interrupts",
    "kallsyms",
    "kcore",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "timer_list",
    "timer_stats",
)
MASKED = (*(f"/proc/{name}" for name in _MASKED_OF_PROC), "/sys/firmware", "/sys/devices/virtual/powercap")
"""Paths that appear empty, because they describe the machine and not the container."""
_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_CPU_PERIOD = 100_000


def bundle_config(plan: ContainerPlan, rootfs: str, group: str, cpus: float | None) -> dict[str, Any]:
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
    own = [
        _mount("/proc", "proc", ["nosuid", "noexec", "nodev"]),
        _tmpfs("/dev", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        _mount(
            "/dev/pts",
            "devpts",
            ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
        ),
        _tmpfs("/dev/shm", ["nosuid", "noexec", "nodev", "mode=1777", f"size={plan.shared_memory}"]),
        _mount("/sys", "sysfs", ["nosuid", "noexec", "nodev", "ro"]),
        _mount("/sys/fs/cgroup", "cgroup", ["nosuid", "noexec", "nodev", "relatime", "ro"]),
    ]
    mounts = [
        {"destination": one.target, "type": "bind", "source": one.source, "options": ["rbind", "ro", "nosuid", "nodev"]}
        for one in plan.mounts
    ]  # fmt: skip
    mounts += [_tmpfs(path, ["ro", "size=4k", "mode=0555"]) for path in plan.hidden]
    mounts += [
        _tmpfs(
            one.target,
            ["nosuid", "nodev", f"mode={one.mode}", f"size={one.bytes}", f"nr_inodes={one.files}"],
        )
        for one in plan.folders
    ]
    # Parents first: a mount hides what was mounted below it before.
    return own + sorted(mounts, key=lambda mount: mount["destination"].count("/"))


def _mount(path: str, kind: str, options: list[str]) -> dict[str, Any]:
    return {"destination": path, "type": kind, "source": kind, "options": options}


def _tmpfs(path: str, options: list[str]) -> dict[str, Any]:
    return _mount(path, "tmpfs", options)
