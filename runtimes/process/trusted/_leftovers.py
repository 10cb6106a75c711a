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

_LOCK = "lock"
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


def claim(folder: str) -> set[str]:
    """Make a server's folder and hold it; remove those of dead servers. Returns the living servers' names."""
    os.mkdir(folder, 0o700)
    fd = os.open(f"{folder}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    _held[folder] = fd
    alive: set[str] = set()
    with os.scandir(os.path.dirname(folder)) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.path == folder or _is_held(entry.path):
                    alive.add(entry.name)
                else:
                    shutil.rmtree(entry.path, ignore_errors=True)
    return alive


def realm(folder: str) -> str:
    """A short name of the folder that a server shares with others: they know of each other, and of nobody else."""
    parent = os.path.realpath(os.path.dirname(folder))
    return hashlib.sha256(parent.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def _is_held(folder: str) -> bool:
    try:
        fd = os.open(f"{folder}/{_LOCK}", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        # Being made at this instant, or half removed: the next start decides.
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def remove(folder: str) -> None:
    """Remove a folder and let it go."""
    shutil.rmtree(folder, ignore_errors=True)
    fd = _held.pop(folder, -1)
    if fd >= 0:
        os.close(fd)
