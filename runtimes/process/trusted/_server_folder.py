"""Private folder of a server on disk, and removal of the folders of killed servers.

Each server has a folder with a locked file in it. The kernel drops the lock with the process that holds it, so a
folder whose file can be locked belongs to a dead server.
"""

import contextlib
import fcntl
import glob
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

    Other users can take its name in a directory for temporary files. Then it has a random ending, by which later servers
    find it.

    :raises OSError: if no folder can be created.
    """
    root = os.environ.get("XDG_RUNTIME_DIR", "")
    if _permissions(root) is None:
        root = tempfile.gettempdir()
    name = f"agentflow-{os.geteuid()}"
    path = os.path.join(root, name)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    others = sorted(glob.glob(f"{glob.escape(path)}-*"))
    private = next((folder for folder in (path, *others) if _permissions(folder) == 0o700), None)
    return private or tempfile.mkdtemp(prefix=f"{name}-", dir=root)


def _permissions(path: str) -> int | None:
    """Return the permissions of a directory of this user; `None`: it is missing, a link, a file or another user's."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_mode & 0o777 if stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() else None


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
