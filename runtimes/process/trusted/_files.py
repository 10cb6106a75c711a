"""File operations inside a sandbox, performed for the server with the rights of the sandbox user.

The kernel resolves every path below the sandbox's root (`openat2`). File contents never pass through here: the
server gets an open descriptor. Directory trees can be arbitrarily large and deep, so they are listed and removed
in a forked child that drops to the sandbox user for good.
"""

import contextlib
import errno
import functools
import json
import os
import shutil
import stat
from collections.abc import Generator
from typing import IO, Any

from runtimes.process.linux import _processes
from runtimes.process.linux import _syscalls as sc

_HOME = "/home/agent"
_PATH_MAX = 4096
_MAX_ENTRIES = 500_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_PARENT_FLAGS = os.O_PATH | os.O_DIRECTORY

_Answer = tuple[list[int], dict[str, Any]]
"""Descriptors and fields of a reply."""


def perform(root: int, uid: int, request: dict[str, Any]) -> _Answer:
    """Perform one operation; return descriptors and fields for the reply.

    :raises OSError: if the kernel refuses it.
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
        raise with_path(error, path) from None
    finally:
        sc.capset(effective=permitted, permitted=permitted)
        sc.set_filesystem_ids(0, 0)
        # Changing ids clears the dumpable flag, which hides the process and its children from root of its namespace.
        sc.prctl(sc.PR_SET_DUMPABLE, visible)


def absolute(path: str) -> str:
    """Return the absolute form of a path; relative paths start in the workspace.

    :raises OSError: if it is not a valid path.
    """
    whole = os.path.join(_HOME, path)
    try:
        usable = "\0" not in whole and len(os.fsencode(whole)) < _PATH_MAX
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise OSError(errno.EINVAL, "not a valid path", whole[:80])
    return whole


def with_path(error: OSError, path: str) -> OSError:
    """Return the error with the path that the caller gave."""
    has_path = isinstance(error.filename, str) and error.filename.startswith("/")
    return OSError(error.errno, error.strerror, error.filename if has_path else path)


@functools.cache
def _permitted_capabilities() -> int:
    return int(_processes.status_fields(os.getpid())["CapPrm"], 16)


def split(root: int, path: str) -> tuple[int, str]:
    """Return the parent's descriptor and the last component of a path."""
    trimmed = path.rstrip("/")
    folder, _, name = trimmed.rpartition("/")
    if name in ("", ".", ".."):
        raise OSError(errno.EINVAL, "the path must end in a name", path)
    return sc.open_beneath(root, folder or "/", _PARENT_FLAGS), name


@contextlib.contextmanager
def _parent_of(root: int, path: str) -> Generator[tuple[int, str]]:
    """Open the parent of a path; yield its descriptor and the last component."""
    parent, name = split(root, path)
    try:
        yield parent, name
    finally:
        os.close(parent)


def open_checked(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open a path outside `/proc`, where this process has more rights than the sandbox user."""
    fd = sc.open_beneath(root, path, flags, mode)
    if os.fstat(fd).st_dev == os.stat("proc", dir_fd=root).st_dev:
        os.close(fd)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return fd


def _open(root: int, path: str, request: dict[str, Any]) -> _Answer:
    fd = open_checked(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, os.strerror(number) if stat.S_ISDIR(mode) else "not a regular file", path)
    return [fd], {}


def _create(root: int, path: str, request: dict[str, Any]) -> _Answer:
    """Open a file to append to it, or a temporary file next to it that `commit` renames into place."""
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
    with _parent_of(root, existing) as (parent, name):
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
    return [fd], {"temporary": temporary, "target": existing}


def _target(root: int, path: str) -> str:
    """Resolve a path that may end in a symlink, without leaving the sandbox."""
    for _ in range(40):
        with _parent_of(root, path) as (parent, name):
            try:
                target = os.readlink(name, dir_fd=parent)
            except OSError:
                return path
        path = os.path.join(os.path.dirname(path), target)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _commit(root: int, path: str, request: dict[str, Any]) -> _Answer:
    with _parent_of(root, path) as (parent, name):
        if request.get("abandon"):
            os.unlink(request["temporary"], dir_fd=parent)
        else:
            os.rename(request["temporary"], name, src_dir_fd=parent, dst_dir_fd=parent)
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
            with _parent_of(root, folder) as (parent, name), contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=parent)


def _stat(root: int, path: str, request: dict[str, Any]) -> _Answer:
    normal = os.path.normpath(path)
    if normal == "/":
        return [], {"info": describe("/", os.stat("/", dir_fd=root), None)}
    with _parent_of(root, normal if path.rstrip("/").endswith(("/.", "/..")) else path) as (parent, name):
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        target = os.readlink(name, dir_fd=parent) if stat.S_ISLNK(info.st_mode) else None
    return [], {"info": describe(normal, info, target)}


def describe(path: str, info: os.stat_result, target: str | None) -> list[Any]:
    """Return the fields of a `FileInfo`."""
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    kind = kinds.get(stat.S_IFMT(info.st_mode), "other")
    return [path, kind, info.st_size, stat.S_IMODE(info.st_mode), info.st_mtime, target]


def _mkdir(root: int, path: str, request: dict[str, Any]) -> _Answer:
    _make_parents(root, path.rstrip("/") + "/x")
    return [], {}


def _remove(root: int, path: str, request: dict[str, Any]) -> _Answer:
    with _parent_of(root, path) as (parent, name):
        is_folder = stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        if is_folder:
            os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    return [], {}


def _move(root: int, path: str, request: dict[str, Any]) -> _Answer:
    destination = absolute(request["destination"])
    with _parent_of(root, path) as (source_parent, source_name):
        os.stat(source_name, dir_fd=source_parent, follow_symlinks=False)
        _make_parents(root, destination)
        with _parent_of(root, destination) as (target_parent, target_name):
            if not request.get("replace") and _lstat(target_parent, target_name) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), destination)
            os.rename(source_name, target_name, src_dir_fd=source_parent, dst_dir_fd=target_parent)
    return [], {}


def _become_sandbox_user(uid: int) -> None:
    sc.set_filesystem_ids(uid, uid)
    sc.capset(effective=0, permitted=0)


def list_entries(root: int, uid: int, request: dict[str, Any], out: IO[bytes]) -> None:
    """Write the fields of each entry of a directory as one line of JSON; with `recursive`, of the whole tree.

    Entries below it that can't be read are left out.

    :raises OSError: if the directory itself can't be read, or the tree has more than 500,000 entries.
    """
    path = absolute(request["path"])
    proc = os.stat("proc", dir_fd=root).st_dev
    _become_sandbox_user(uid)
    try:
        top = open_checked(root, path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise with_path(error, path) from None
    base, pending, count = os.path.normpath(path), ["."], 0
    while pending:
        folder = pending.pop()
        try:
            fd = sc.open_beneath(top, folder, _FOLDER)
        except OSError:
            continue
        try:
            entries = _entries(fd, folder) if os.fstat(fd).st_dev != proc else []
        finally:
            os.close(fd)
        for name, info, target in entries:
            out.write(json.dumps(describe(os.path.join(base, name), info, target)).encode() + b"\n")
            if request["recursive"] and stat.S_ISDIR(info.st_mode):
                pending.append(name)
        count += len(entries)
        if count > _MAX_ENTRIES:
            raise OSError(errno.EFBIG, f"more than {_MAX_ENTRIES} entries", path)


def _entries(fd: int, folder: str) -> list[tuple[str, os.stat_result, str | None]]:
    entries: list[tuple[str, os.stat_result, str | None]] = []
    for name in os.listdir(fd):
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            target = os.readlink(name, dir_fd=fd) if stat.S_ISLNK(info.st_mode) else None
        except OSError:
            # Removed in the meantime, or in a directory that can be read but not searched.
            continue
        entries.append((os.path.normpath(os.path.join(folder, name)), info, target))
    return entries


def remove_tree(root: int, uid: int, request: dict[str, Any]) -> None:
    """Remove a file, or a directory and everything in it.

    :raises OSError: if the kernel refuses it.
    """
    path = absolute(request["path"])
    _become_sandbox_user(uid)
    try:
        parent, name = split(root, path)
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    except OSError as error:
        raise with_path(error, path) from None
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, "directories are nested too deeply", path) from None


_ACTIONS = {
    "commit": _commit,
    "create": _create,
    "mkdir": _mkdir,
    "move": _move,
    "open": _open,
    "remove": _remove,
    "stat": _stat,
}
