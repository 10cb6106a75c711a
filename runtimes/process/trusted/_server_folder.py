"""Private folder of a server on disk, and removal of the folders of killed servers.

Each server has a folder with a locked file in it. The kernel drops the lock with the process that holds it, so a
folder whose file can be locked belongs to a dead server.
"""

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time

_LOCK = "lock"
_NEW_SECONDS = 60
_held: dict[str, int] = {}


def parent_folder() -> str:
    """Return the folder that all servers of this user share; create it if it does not exist.

    :raises OSError: if another user created it.
    """
    root = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    path = os.path.join(root, f"agentflow-{os.geteuid()}")
    os.makedirs(path, 0o700, exist_ok=True)
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise PermissionError(f"{path} is not a private folder of this user; remove it")
    return path


def claim(folder: str) -> None:
    """Create and lock a server's folder; remove those of dead servers."""
    os.mkdir(folder, 0o700)
    fd = os.open(f"{folder}/{_LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    # Locked before it gets the name that other servers check.
    os.rename(f"{folder}/{_LOCK}.new", f"{folder}/{_LOCK}")
    _held[folder] = fd
    with os.scandir(os.path.dirname(folder)) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not is_held(entry.path):
                shutil.rmtree(entry.path, ignore_errors=True)


def realm(folder: str) -> str:
    """Return a short id of the parent folder: servers sweep the cgroups of servers with the same id only."""
    parent = os.path.realpath(os.path.dirname(folder))
    return hashlib.sha256(parent.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def is_held(folder: str) -> bool:
    """Return whether a server's folder is locked by a live process.

    A server creates cgroups under its name only while it holds its folder. So find a cgroup first and call this
    afterwards: the cgroup of a server that started meanwhile is then not taken for a dead one's.
    """
    try:
        fd = os.open(f"{folder}/{_LOCK}", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return _is_new(folder)
    try:
        # Shared: two processes that check at once don't take each other for the holder.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _is_new(folder: str) -> bool:
    """Return whether a folder without a lock file is under 60 seconds old, so that it may still be in creation."""
    try:
        return time.time() - os.stat(folder).st_mtime < _NEW_SECONDS
    except FileNotFoundError:
        return False


def remove(folder: str) -> None:
    """Remove a folder and release its lock."""
    shutil.rmtree(folder, ignore_errors=True)
    fd = _held.pop(folder, -1)
    if fd >= 0:
        os.close(fd)
