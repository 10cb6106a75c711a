"""Build the namespaces, root and files of one sandbox.

Runs in a short-lived process that has capabilities only in the runtime's user namespace, and whose root is the tree
made by `_base.assemble`.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from runtimes.process.linux import _quotas
from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _archive, _confine, _copy, _mounting

SAVED_FOLDERS = ("upper", "shm")
"""Writable layers that a fork copies and a snapshot archives."""
_HOME = "upper/home/agent"
_TERMINALS = "64"

Fill = Callable[[int], None]
"""Function that puts files into the empty writable layers below a descriptor."""


@dataclass(frozen=True, slots=True)
class NamespacePlan:
    """Parameters of a sandbox's namespaces."""

    uid: int
    """Id of the sandbox user in the runtime's user namespace."""
    shown_uid: int
    """Its id as seen from inside."""
    disk_bytes: int
    """Total size of all files."""
    files: int
    """Maximum number of files."""
    trees: tuple[str, ...]
    """Mount points of the shared trees."""
    locked_etc: bool
    """Mount /etc read-only, because the sandbox user owns the files that the builder makes."""
    uncounted_bytes: int | None = None
    """Limit of System V shared memory, if no cgroup counts it; queues and buffers of connections are then smaller, too."""
    proxy_port: int = 0
    """Port of the loopback interface on which the server's proxy listens; 0: no network."""


def build(plan: NamespacePlan, fill: Fill | None, mounts: list[tuple[str, int]]) -> list[int]:
    """Create the namespaces around the calling process.

    `fill` adds the first files. `mounts` are further read-only trees, detached. Return descriptors of the mount, net,
    ipc and uts namespaces, of the root, of the folder with the writable layers, and of the proxy's listening socket, if any.
    """
    flags = sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV | sc.MOUNT_ATTR_NOEXEC
    proc = sc.new_mount("proc", flags, hidepid="invisible", subset="pid")
    sc.unshare(sc.CLONE_NEWNS | sc.CLONE_NEWNET | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS)
    if plan.uncounted_bytes is not None:
        _quotas.limit_uncounted(plan.uncounted_bytes)
    sc.set_hostname("sandbox")
    sc.loopback_up()
    listener = _listen(plan.proxy_port) if plan.proxy_port else []
    files = _make_files(plan, fill)
    overlay = sc.new_mount(
        "overlay",
        sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV,
        lowerdir="/skeleton",
        upperdir="/stage/upper",
        workdir="/stage/work",
        userxattr=True,
        volatile=True,
    )
    sc.attach_mount(overlay, "/r")
    root = os.open("/r", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for number, path in enumerate(plan.trees):
        _mounting.attach_system(root, path, sc.clone_mount(f"/trees/{number}"))
    dev = sc.clone_mount("/dev")
    # All sandboxes share /dev, and in a single-user runtime they own its files.
    sc.set_mount_attributes(dev, sc.MOUNT_ATTR_RDONLY, recursive=False)
    _mounting.attach_system(root, "/dev", dev)
    pts = sc.new_mount(
        "devpts",
        sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NOEXEC,
        newinstance=True,
        ptmxmode="0666",
        mode="0620",
        # All terminals of the machine share one limit, 4096 by default.
        max=_TERMINALS,
    )
    _mounting.attach_system(root, "/dev/pts", pts)
    _mounting.attach_system(root, "/dev/shm", sc.clone_mount("/stage/shm", recursive=False))
    _mounting.attach_system(root, "/proc", proc)
    if plan.locked_etc:
        etc = sc.clone_mount("/r/etc", recursive=False)
        sc.set_mount_attributes(etc, sc.MOUNT_ATTR_RDONLY)
        _mounting.attach_system(root, "/etc", etc)
    for path, mount in mounts:
        _mounting.attach_folder(root, path, mount)
    namespaces = _confine.open_namespaces()
    sc.unmount("/stage")
    sc.unmount("/proc")
    return [*namespaces, root, files, *listener]


def _listen(port: int) -> list[int]:
    """Listen in this network namespace, before any program that could take the port, for the server to accept."""
    with socket.create_server(("127.0.0.1", port), backlog=128) as listener:
        return [listener.detach()]


def _make_files(plan: NamespacePlan, fill: Fill | None) -> int:
    tmpfs = sc.new_mount(
        "tmpfs",
        sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV,
        size=str(plan.disk_bytes),
        nr_inodes=str(plan.files),
        mode="0711",
    )
    sc.attach_mount(tmpfs, "/stage")
    files = os.open("/stage", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    os.mkdir("/stage/work", 0o700)
    for folder in SAVED_FOLDERS:
        os.mkdir(f"/stage/{folder}", 0o755)
    if fill is not None:
        fill(files)
    else:
        os.makedirs(f"/stage/{_HOME}", 0o755)
        os.chown(f"/stage/{_HOME}", plan.uid, plan.uid)
        os.chmod(f"/stage/{_HOME}", 0o700)
    os.chmod("/stage/shm", 0o1777)
    if plan.shown_uid == plan.uid:
        _write_accounts(plan.uid, fill is not None)
    return files


def copy_of(source: int, uid: int, new_uid: int) -> Fill:
    """Copy the files of another sandbox and map its ids to the new one's."""
    uids = {uid + number: new_uid + number for number in range(_confine.IDS)}

    def fill(files: int) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        for folder in SAVED_FOLDERS:
            inner = os.open(folder, flags, dir_fd=source)
            outer = os.open(folder, flags, dir_fd=files)
            _copy.copy_tree(inner, outer, uids)
            os.close(inner)
            os.close(outer)

    return fill


def contents_of(archive: int, uid: int) -> Fill:
    """Unpack an archive written by `pack`."""

    def fill(files: int) -> None:
        with os.fdopen(os.dup(archive), "rb") as source:
            _archive.unpack(files, SAVED_FOLDERS, uid, source)
        os.chdir("/")

    return fill


def _write_accounts(uid: int, copied: bool) -> None:
    """Add the sandbox user to the account files; keep users created in the copied sandbox."""
    # Root inside may have replaced these files by links, which must not lead to files that all sandboxes share.
    if os.path.islink("/stage/upper/etc"):
        return
    os.makedirs("/stage/upper/etc", 0o755, exist_ok=True)
    for name, line in (
        ("passwd", f"agent:x:{uid}:{uid}::/home/agent:/bin/bash\n"),
        ("group", f"agent:x:{uid}:\n"),
    ):
        path = f"/stage/upper/etc/{name}"
        if os.path.islink(path) or (os.path.lexists(path) and not os.path.isfile(path)):
            continue
        accounts = path if copied and os.path.exists(path) else f"/skeleton/etc/{name}"
        with open(accounts, encoding="utf-8", errors="surrogateescape") as file:
            others = [text for text in file if not text.startswith("agent:")]
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines([*others, line])
