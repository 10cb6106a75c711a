"""Lock of an output directory, and refusal of paths that can't be meant as one."""

import errno
import fcntl
import os
import re
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentflow._folder_files import read_file
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.telemetry import get_logger

logger = get_logger(__name__)

LOCK_FILE = ".lock"
"""File that an active run locks; it has the run's process id and is removed at the end."""
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_SYSTEM = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/proc",
    "/sbin",
    "/sys",
    "/usr/bin",
    "/usr/lib",
    "/usr/sbin",
)
_SHARED = (
    "/",
    "/home",
    "/opt",
    "/root",
    "/run",
    "/tmp",
    "/usr",
    "/usr/local",
    "/var",
    "/var/tmp",
    "/dev/shm",
)
_HOLDER = re.compile(r"pid (\d{1,9}) on (.+)")
_MAX_LOCK = 1 << 10
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_output(folder: Path) -> None:
    """Check that a directory can be meant as an output directory.

    Example::

        check_output(Path("results"))

    :raises ConfigurationError: one line, if it is a directory of the system or shared with other files, or no directory.
    """
    try:
        os.fsencode(folder)
        named = not _CONTROL.search(str(folder))
    except UnicodeError:
        named = False
    if not named:
        raise ConfigurationError(f"output_dir: {str(folder)!r} is no name of a directory; name another")
    if folder.parts[:1] and folder.parts[0].startswith("~"):
        whole = os.path.expanduser(folder)
        raise ConfigurationError(
            f"output_dir: {folder}: ~ is not expanded in settings; write {whole} or another path"
        )
    try:
        place = folder.resolve()
        is_directory = place.is_dir() or not place.exists()
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"output_dir: {folder}: {why}; name another") from None
    if not is_directory:
        raise ConfigurationError(f"output_dir: {folder} is not a directory; name another")
    if problem := _problem(place):
        raise ConfigurationError(
            f"output_dir: {folder} is {problem}; name a directory for this run, such as ./results"
        )


def _problem(place: Path) -> str:
    """Describe a place that can't be meant; empty if it can."""
    if place.is_relative_to(Path(__file__).resolve().parents[1]):
        return "inside the package"
    if str(place) in _SHARED or place == _home():
        return "shared with other files"
    is_memory = place.is_relative_to("/dev/shm")
    return "a directory of the system" if any(map(place.is_relative_to, _SYSTEM)) and not is_memory else ""


def _home() -> Path | None:
    with suppress(RuntimeError):
        return Path.home().resolve()
    return None


@contextmanager
def lock_output(folder: Path) -> Generator[None]:
    """Hold the lock of an output directory; it ends with the block or the process, however that ends.

    See docs/supervisor.md.

    :raises ConfigurationError: if another run holds it, or it can't be created.
    :raises RunStopped: if the disk is full.
    """
    path = folder / LOCK_FILE
    held = _acquire(path)
    if held is None:
        yield
        return
    try:
        yield
    finally:
        # Remove it while it is locked: a run that opened it meanwhile finds that it is gone.
        with suppress(OSError):
            path.unlink()
        _held.discard(held)
        os.close(held)


def is_output_active(folder: Path) -> bool:
    """Return true if a run of this machine is active in a directory. The lock is not touched.

    See docs/supervisor.md.
    """
    try:
        found = _holder(folder)
        if found is None or found[2] != socket.gethostname():
            return False
        os.kill(int(found[1]), 0)
    except PermissionError:
        return True
    except (OSError, UnicodeError):
        return False
    return True


def is_output_abandoned(folder: Path) -> bool:
    """Return true if a run of this machine was killed in a directory: it has left its lock behind.

    See docs/supervisor.md.
    """
    try:
        found = _holder(folder)
    except (OSError, UnicodeError):
        return False
    return found is not None and found[2] == socket.gethostname() and not is_output_active(folder)


def _holder(folder: Path) -> re.Match[str] | None:
    """Return the process id and the host in the lock of a folder, which may come from elsewhere."""
    text = read_file(folder / LOCK_FILE, folder, _MAX_LOCK).decode()
    return _HOLDER.fullmatch(text.strip())


def _acquire(path: Path) -> int | None:
    """Return the descriptor that holds the lock; `None` if the file system has no locks."""
    try:
        while True:
            held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(held, path):
                    _sign(held)
                    _held.add(held)
                    return held
            except BlockingIOError:
                holder = os.pread(held, 100, 0).decode(errors="replace").strip()
                os.close(held)
                named = f" ({holder})" if holder else ""
                raise ConfigurationError(
                    f"output_dir: a run is active in {path.parent}{named}; wait for it, stop it, or name another output_dir"
                ) from None
            except OSError:
                os.close(held)
                raise
            os.close(held)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            logger.warning("output_dir not locked", folder=str(path.parent), reason=error.strerror)
            return None
        if error.errno in _NO_ROOM:
            raise RunStopped(
                StopCause.JOURNAL, f"{path}: no room is left; make room, then run the same command again"
            ) from None
        raise ConfigurationError(
            f"output_dir: {path.parent} can't be written: {error.strerror}; name another"
        ) from None


def _is_at(held: int, path: Path) -> bool:
    """Return true if the open file is the one at the path: the holder before may have removed it."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(held)
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)


def _sign(held: int) -> None:
    """Write the process into the lock. A full disk is no reason to fail: the lock is held."""
    with suppress(OSError):
        os.ftruncate(held, 0)
        os.pwrite(held, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def _close_in_child() -> None:
    while _held:
        os.close(_held.pop())


_held: set[int] = set()
# A process forked without exec must not hold the locks when this one has ended.
os.register_at_fork(after_in_child=_close_in_child)
