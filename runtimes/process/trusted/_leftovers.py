"""What a server keeps on disk, and how what a killed one left is found and removed.

Each server has a folder of its own with a locked file in it. The lock goes with the process that holds it, so
a folder whose file can be locked belongs to nobody any more.
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
    """The folder that all servers of this user share; made if it isn't there.

    :raises OSError: if somebody else made it.
    """
    root = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    path = os.path.join(root, f"agentflow-{os.geteuid()}")
    os.makedirs(path, 0o700, exist_ok=True)
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise PermissionError(f"{path} is not a private folder of this user; remove it")
    return path


def claim(folder: str) -> None:
    """Make a server's folder and hold it; remove those of dead servers."""
    os.mkdir(folder, 0o700)
    fd = os.open(f"{folder}/{_LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    # Held before it has the name by which others ask for it.
    os.rename(f"{folder}/{_LOCK}.new", f"{folder}/{_LOCK}")
    _held[folder] = fd
    with os.scandir(os.path.dirname(folder)) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not lives(entry.path):
                shutil.rmtree(entry.path, ignore_errors=True)


def realm(folder: str) -> str:
    """A short name of the folder that a server shares with others: they know of each other, and of nobody else."""
    parent = os.path.realpath(os.path.dirname(folder))
    return hashlib.sha256(parent.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def lives(folder: str) -> bool:
    """Whether a server's folder is held.

    What it has elsewhere under its name it makes while it holds its folder, and removes before: ask this after such
    a thing was found, and what belongs to a server that began meanwhile is not taken for a dead one's.
    """
    try:
        fd = os.open(f"{folder}/{_LOCK}", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return _is_new(folder)
    try:
        # Shared: two that ask at once don't take each other for the holder.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _is_new(folder: str) -> bool:
    """It is being made at this instant, unless whoever made or removed it was killed just then, a while ago."""
    try:
        return time.time() - os.stat(folder).st_mtime < _NEW_SECONDS
    except FileNotFoundError:
        return False


def remove(folder: str) -> None:
    """Remove a folder and let it go."""
    shutil.rmtree(folder, ignore_errors=True)
    fd = _held.pop(folder, -1)
    if fd >= 0:
        os.close(fd)
