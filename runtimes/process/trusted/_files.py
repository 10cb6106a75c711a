"""File operations inside a sandbox, done for the server by name, with the inhabitant's rights.

Every path is resolved by the kernel below the sandbox's root. Whole-file contents never pass through here:
the server gets an open descriptor.
"""

import errno
import functools
import os
import stat
from typing import Any

from runtimes.process.linux import _processes
from runtimes.process.linux import _syscalls as sc

_HOME = "/home/agent"
_PATH_MAX = 4096
_PARENT_FLAGS = os.O_PATH | os.O_DIRECTORY


def perform(root: int, uid: int, request: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Carry out one operation; returns descriptors and fields for the answer.

    :raises OSError: as the kernel says.
    """
    action = _ACTIONS[request["action"]]
    path = absolute(request["path"])
    permitted = _permitted_capabilities()
    visible = sc.prctl(sc.PR_GET_DUMPABLE)
    os.umask(0o022)
    sc.set_filesystem_ids(uid, uid)
    sc.capset(effective=0, permitted=permitted)
    try:
        return action(root, path, request)
    except OSError as error:
        raise told(error, path) from None
    finally:
        sc.capset(effective=permitted, permitted=permitted)
        sc.set_filesystem_ids(0, 0)
        # A change of ids hides a process, and its children, from its own namespace's root.
        sc.prctl(sc.PR_SET_DUMPABLE, visible)


def absolute(path: str) -> str:
    """A path as the inhabitant means it: relative ones start in the workspace.

    :raises OSError: if it can't be one.
    """
    whole = os.path.join(_HOME, path)
    try:
        usable = "\0" not in whole and len(os.fsencode(whole)) < _PATH_MAX
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise OSError(errno.EINVAL, "not a path", whole[:80])
    return whole


def told(error: OSError, path: str) -> OSError:
    """The same error about a path that the caller knows."""
    known = isinstance(error.filename, str) and error.filename.startswith("/")
    return OSError(error.errno, error.strerror, error.filename if known else path)


@functools.cache
def _permitted_capabilities() -> int:
    return int(_processes.status_fields(os.getpid())["CapPrm"], 16)


def split(root: int, path: str) -> tuple[int, str]:
    """The parent's descriptor and the last name of a path."""
    trimmed = path.rstrip("/")
    folder, _, name = trimmed.rpartition("/")
    if name in ("", ".", ".."):
        raise OSError(errno.EINVAL, "the path must end in a name", path)
    return sc.open_beneath(root, folder or "/", _PARENT_FLAGS), name


def open_checked(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open a path, but nothing of `/proc`: whoever opens there has more power over processes than the inhabitant."""
    fd = sc.open_beneath(root, path, flags, mode)
    if os.fstat(fd).st_dev == os.stat("proc", dir_fd=root).st_dev:
        os.close(fd)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return fd


def _open(root: int, path: str, request: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    fd = open_checked(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, os.strerror(number) if stat.S_ISDIR(mode) else "not a regular file", path)
    return [fd], {}


def _create(root: int, path: str, request: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Open for writing: in place to append, else a new file beside it, to be put in place by `commit`."""
    _make_parents(root, path)
    mode = 0o755 if request.get("executable") else 0o644
    if request.get("append"):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY
        fd = open_checked(root, path, flags, mode)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return [fd], {}
    existing = _target(root, path)
    parent, name = split(root, existing)
    try:
        info = _lstat(parent, name)
        if info is not None and stat.S_ISDIR(info.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if info is not None and not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if info is not None and not os.access(name, os.W_OK, dir_fd=parent, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        temporary = f".{request['token']}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, mode, dir_fd=parent)
        if info is not None and not request.get("executable"):
            os.fchmod(fd, stat.S_IMODE(info.st_mode) & 0o777)
    finally:
        os.close(parent)
    return [fd], {"temporary": temporary, "target": existing}


def _target(root: int, path: str) -> str:
    """Where a path that may end in a symlink leads, as a path inside."""
    for _ in range(40):
        parent, name = split(root, path)
        try:
            target = os.readlink(name, dir_fd=parent)
        except OSError:
            return path
        finally:
            os.close(parent)
        path = os.path.join(os.path.dirname(path), target)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _commit(root: int, path: str, request: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    parent, name = split(root, path)
    try:
        if request.get("abandon"):
            os.unlink(request["temporary"], dir_fd=parent)
        else:
            os.rename(request["temporary"], name, src_dir_fd=parent, dst_dir_fd=parent)
    finally:
        os.close(parent)
    return [], {}


def _lstat(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _make_parents(root: int, path: str) -> None:
    parts = [part for part in path.split("/")[:-1] if part]
    for depth in range(1, len(parts) + 1):
        folder = "/" + "/".join(parts[:depth])
        try:
            os.close(sc.open_beneath(root, folder, _PARENT_FLAGS))
        except FileNotFoundError:
            parent, name = split(root, folder)
            try:
                os.mkdir(name, 0o755, dir_fd=parent)
            except FileExistsError:
                pass
            finally:
                os.close(parent)


def _stat(root: int, path: str, request: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    normal = os.path.normpath(path)
    if normal == "/":
        return [], {"info": describe("/", os.stat("/", dir_fd=root), None)}
    parent, name = split(root, path if not path.rstrip("/").endswith(("/.", "/..")) else normal)
    try:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        target = os.readlink(name, dir_fd=parent) if stat.S_ISLNK(info.st_mode) else None
    finally:
        os.close(parent)
    return [], {"info": describe(normal, info, target)}


def describe(path: str, info: os.stat_result, target: str | None) -> list[Any]:
    """The fields of a `FileInfo`."""
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    kind = kinds.get(stat.S_IFMT(info.st_mode), "other")
    return [path, kind, info.st_size, stat.S_IMODE(info.st_mode), info.st_mtime, target]


def _mkdir(root: int, path: str, request: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    _make_parents(root, path.rstrip("/") + "/x")
    return [], {}


def _remove(root: int, path: str, request: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    parent, name = split(root, path)
    try:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(info.st_mode):
            os.unlink(name, dir_fd=parent)
        else:
            os.rmdir(name, dir_fd=parent)
    finally:
        os.close(parent)
    return [], {}


def _move(root: int, path: str, request: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    destination = absolute(request["destination"])
    source_parent, source_name = split(root, path)
    try:
        os.stat(source_name, dir_fd=source_parent, follow_symlinks=False)
        _make_parents(root, destination)
        target_parent, target_name = split(root, destination)
        try:
            if not request.get("replace") and _lstat(target_parent, target_name) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), destination)
            os.rename(source_name, target_name, src_dir_fd=source_parent, dst_dir_fd=target_parent)
        finally:
            os.close(target_parent)
    finally:
        os.close(source_parent)
    return [], {}


_ACTIONS = {
    "commit": _commit,
    "create": _create,
    "mkdir": _mkdir,
    "move": _move,
    "open": _open,
    "remove": _remove,
    "stat": _stat,
}
