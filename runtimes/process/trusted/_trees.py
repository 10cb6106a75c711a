"""Whole directory trees of a sandbox: listed and removed in a process of their own.

A tree can be as large and as deep as the sandbox likes, so the builder itself never walks one. Everything here
runs in a fork of it that becomes the inhabitant for good.
"""

import errno
import json
import os
import shutil
import stat
from typing import IO, Any

from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _files

_MAX_ENTRIES = 500_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def _become_inhabitant(uid: int) -> None:
    sc.set_filesystem_ids(uid, uid)
    sc.capset(effective=0, permitted=0)


def list_entries(root: int, uid: int, request: dict[str, Any], out: IO[bytes]) -> None:
    """Write the fields of each entry of a directory, a line each; with `recursive` of all below it.

    :raises OSError: as the kernel says of the directory itself; what can't be read below it is left out.
    """
    path = _files.absolute(request["path"])
    proc = os.stat("proc", dir_fd=root).st_dev
    _become_inhabitant(uid)
    try:
        top = _files.open_checked(root, path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _files.told(error, path) from None
    place, waiting, count = os.path.normpath(path), ["."], 0
    while waiting:
        folder = waiting.pop()
        try:
            fd = sc.open_beneath(top, folder, _FOLDER)
        except OSError:
            continue
        try:
            entries = _entries(fd, folder) if os.fstat(fd).st_dev != proc else []
        finally:
            os.close(fd)
        for name, info, target in entries:
            out.write(json.dumps(_files.describe(os.path.join(place, name), info, target)).encode() + b"\n")
            if request["recursive"] and stat.S_ISDIR(info.st_mode):
                waiting.append(name)
        count += len(entries)
        if count > _MAX_ENTRIES:
            raise OSError(errno.EFBIG, f"more than {_MAX_ENTRIES} entries", path)


def _entries(fd: int, folder: str) -> list[tuple[str, os.stat_result, str | None]]:
    found: list[tuple[str, os.stat_result, str | None]] = []
    for name in os.listdir(fd):
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            target = os.readlink(name, dir_fd=fd) if stat.S_ISLNK(info.st_mode) else None
        except OSError:
            # Gone in the meantime, or in a directory that can be read but not entered.
            continue
        found.append((os.path.normpath(os.path.join(folder, name)), info, target))
    return found


def remove(root: int, uid: int, request: dict[str, Any]) -> None:
    """Remove a file, or a directory with all in it.

    :raises OSError: as the kernel says.
    """
    path = _files.absolute(request["path"])
    _become_inhabitant(uid)
    try:
        parent, name = _files.split(root, path)
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    except OSError as error:
        raise _files.told(error, path) from None
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, "directories are nested too deeply", path) from None
