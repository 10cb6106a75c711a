"""Attach mounts inside the root of a sandbox that is being built.

The sandbox this one is a copy of, or an archive, may have put links in the place of any folder. So the kernel resolves
each mount point below the sandbox's root, and the mount goes to the descriptor that this returned, not to a path.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Generator

from runtimes.process.linux import _syscalls as sc

_POINT = os.O_PATH | os.O_DIRECTORY
_LOWER = "/stage/lower"
_EMPTY = "/stage/empty"

READ_ONLY = sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV
"""Attributes of mounts of the host."""


def attach_system(root: int, path: str, mount: int) -> None:
    """Attach a mount that the runtime relies on; its mount point must not be reached through a link.

    :raises ValueError: if the files of the sandbox have something else there.
    """
    try:
        point = sc.open_beneath(root, path, _POINT | os.O_NOFOLLOW, links=False)
    except OSError as error:
        os.close(mount)
        raise ValueError(f"a snapshot can't replace the folder {path}: {error.strerror}") from None
    sc.attach_mount_to(mount, point)


def attach_folder(root: int, path: str, mount: int) -> None:
    """Attach a folder of the host at the place that the path means inside; create missing folders.

    No socket or FIFO in it is connected to the host's.
    """
    names = [name for name in path.split("/") if name]
    try:
        mount = _isolated(mount)
    except OSError as error:
        raise OSError(error.errno, f"can't mount a folder at {path}: {error.strerror}") from None
    try:
        for depth in range(1, len(names)):
            os.close(_open_or_create(root, "/".join(names[:depth])))
        point = _open_or_create(root, "/".join(names))
    except OSError as error:
        os.close(mount)
        raise OSError(error.errno, f"can't mount at {path}: {error.strerror}") from None
    sc.attach_mount_to(mount, point)


def _open_or_create(root: int, path: str) -> int:
    try:
        return sc.open_beneath(root, path, _POINT)
    except FileNotFoundError:
        above, _, name = path.rpartition("/")
        folder = sc.open_beneath(root, above or "/", _POINT)
        try:
            os.mkdir(name, 0o755, dir_fd=folder)
        finally:
            os.close(folder)
        return sc.open_beneath(root, path, _POINT)


def _isolated(mount: int) -> int:
    """Return a view of a folder of the host in which no socket or FIFO is connected to the host's.

    Read-only mounts do not stop a connection to a socket, nor data through a FIFO. In an overlay both are objects of
    their own, also those that the host creates later. A folder that the kernel does not accept as a layer, such as one
    with further mounts inside, is returned as it is if it has neither.

    :raises OSError: if it has sockets or FIFOs and can't be a layer.
    """
    for folder in (_LOWER, _EMPTY):
        os.makedirs(folder, 0o755, exist_ok=True)
    sc.attach_mount(mount, _LOWER)
    try:
        if not _has_mounts(_LOWER):
            with contextlib.suppress(OSError):
                return sc.new_mount("overlay", READ_ONLY, lowerdir=f"{_LOWER}:{_EMPTY}", userxattr=True)
        if special_path := special_file(_LOWER).removeprefix(_LOWER):
            raise OSError(
                errno.EPERM, f"it has a socket or FIFO, which would lead to the host: {special_path}"
            )
        return sc.clone_mount(_LOWER)
    finally:
        sc.unmount(_LOWER)


def _has_mounts(folder: str) -> bool:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return any(line.split(" ")[4].startswith(folder + "/") for line in file)


def special_file(top: str) -> str:
    """Return the path of a socket or FIFO: of `top` itself, or somewhere in that folder; an empty string if there is none.

    :raises OSError: if there is no `top`, or a folder that others can enter can't be read.
    """
    if _is_special(os.stat(top).st_mode):
        return top
    waiting = [top] if os.path.isdir(top) else []
    while waiting:
        with _unless_closed(folder := waiting.pop()), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                    continue
                else:
                    with contextlib.suppress(FileNotFoundError):
                        if _is_special(os.lstat(entry.path).st_mode):
                            return entry.path
    return ""


def _is_special(mode: int) -> bool:
    return stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)


@contextlib.contextmanager
def _unless_closed(folder: str) -> Generator[None]:
    """Skip a folder that was removed meanwhile, or that this process may neither read nor enter: then nor can a sandbox."""
    try:
        yield
    except FileNotFoundError:
        return
    except PermissionError:
        if os.access(folder, os.X_OK):
            raise
