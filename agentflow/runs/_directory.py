"""Directory of a run: its lock, its journal, settings and control file, and output files that are replaced together."""

import errno
import fcntl
import os
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Final, Literal, Self, TypeAlias

import anyio.to_thread

from agentflow._folder_files import read_file
from agentflow._private_files import make_private_folder, open_private, replace_file
from agentflow.errors import ConfigurationError, RunStopped, StopCause, error_line
from agentflow.runs._config import RunConfig, render_config
from agentflow.telemetry import get_logger
from agentflow.trace import Blob

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
        path = folder.resolve()
        is_directory = path.is_dir() or not path.exists()
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"output_dir: {folder}: {why}; name another") from None
    if not is_directory:
        raise ConfigurationError(f"output_dir: {folder} is not a directory; name another")
    if problem := _problem(path):
        raise ConfigurationError(
            f"output_dir: {folder} is {problem}; name a directory for this run, such as ./results"
        )


def _problem(path: Path) -> str:
    """Describe a place that can't be meant; empty if it can."""
    if path.is_relative_to(Path(__file__).resolve().parents[1]):
        return "inside the package"
    if str(path) in _SHARED or path == _home():
        return "shared with other files"
    is_memory = path.is_relative_to("/dev/shm")
    return "a directory of the system" if any(map(path.is_relative_to, _SYSTEM)) and not is_memory else ""


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
        holder = _holder(folder)
        if holder is None or holder[2] != socket.gethostname():
            return False
        os.kill(int(holder[1]), 0)
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
        holder = _holder(folder)
    except (OSError, UnicodeError):
        return False
    return holder is not None and holder[2] == socket.gethostname() and not is_output_active(folder)


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
        current = path.stat()
    except FileNotFoundError:
        return False
    held_file = os.fstat(held)
    return (held_file.st_dev, held_file.st_ino) == (current.st_dev, current.st_ino)


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


IMAGES: Final = "images"
"""Folder of the images, beside the files."""
BlobReader: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Returns the bytes of a blob, given its hash.

:raises KeyError: if it is unknown.
"""
_SUFFIXES: Final = {
    "image/bmp": "bmp",
    "image/gif": "gif",
    "image/jpeg": "jpg",
    "image/png": "png",
    "image/svg+xml": "svg",
    "image/tiff": "tiff",
    "image/webp": "webp",
}
_KNOWN: Final = frozenset({*_SUFFIXES.values(), "bin"})
_REFERENCE: Final = re.compile(rb'"' + IMAGES.encode() + rb"/([0-9a-f]{64})\.([a-z]+)\"")


def image_file(blob: Blob) -> str:
    """Return the path of an image, relative to the files of its run.

    >>> image_file(Blob("c4a7", "image/png"))
    'images/c4a7.png'
    """
    return f"{IMAGES}/{blob.hash}.{_SUFFIXES.get(blob.mime, 'bin')}"


def image_record(blob: Blob) -> dict[str, str]:
    """Return the record of an image in a file: its hash, its type and its path.

    >>> image_record(Blob("c4a7", "image/png"))
    {'hash': 'c4a7', 'mime': 'image/png', 'file': 'images/c4a7.png'}
    """
    return {"hash": blob.hash, "mime": blob.mime, "file": image_file(blob)}


class ExportedImages:
    """The images of a folder with files. An image is complete or not there; one that is there is not read again."""

    def __init__(self, folder: Path, read: BlobReader) -> None:
        self._folder = folder
        self._read = read
        self._done: set[str] = set()

    async def write(self, lines: Iterable[bytes]) -> None:
        """Write the images to which these lines refer, unless they exist; one is in memory at a time.

        :raises OSError: if one can't be written.
        """
        for line in lines:
            if IMAGES.encode() not in line:
                continue
            for reference in _REFERENCE.finditer(line):
                hash, suffix = reference[1].decode(), reference[2].decode()
                name = f"{hash}.{suffix}"
                if suffix not in _KNOWN or name in self._done:
                    continue
                self._done.add(name)
                await self._export(hash, self._folder / IMAGES / name)

    async def _export(self, hash: str, path: Path) -> None:
        if await anyio.to_thread.run_sync(path.is_file):
            return
        try:
            data = await self._read(hash)
        except KeyError:
            # A text that a tool returned may look like a reference.
            logger.warning("no such image", hash=hash)
            return
        await anyio.to_thread.run_sync(partial(_write, path, data))


def _write(path: Path, data: bytes) -> None:
    make_private_folder(path.parent)
    replace_file(path, data)


Resume: TypeAlias = Literal["auto", "always", "never"]
"""Handling of an existing run: `auto` resumes it if there is one, `always` requires one, `never` refuses one."""


JOURNAL_FILE = "journal.db"


SETTINGS_FILE = "settings.yaml"


CONTROL_FILE = "control.json"


class RunDirectory:
    """Output directory of a run."""

    def __init__(self, config: RunConfig, folder: Path, resume: Resume) -> None:
        self.folder = folder
        """Path of the directory."""
        self.control = folder / CONTROL_FILE
        """File with the address of the control server while the run is active."""
        self._config = config
        self._resume = resume
        self._lock = ExitStack()
        self._is_locked = False
        self._own_journal = (folder / JOURNAL_FILE).absolute()

    @property
    def journal(self) -> str:
        """URL of the journal."""
        return self._config.journal or f"sqlite:///{self._own_journal}"

    def lock(self) -> None:
        """Check the path, and lock the directory if it exists. The lock is held until `unlock`.

        :raises ConfigurationError: if another run is active in it, or it can't be meant.
        """
        check_output(self.folder)
        if not self._is_locked and self.folder.is_dir():
            self._lock.enter_context(lock_output(self.folder))
            self._is_locked = True

    def unlock(self) -> None:
        """Release the lock, if it is held."""
        self._lock.close()
        self._is_locked = False

    def prepare(self) -> None:
        """Create and lock the directory.

        :raises ConfigurationError: if it can't be created or locked, or `resume` is `always` and there is no run.
        """
        if self._config.journal is None and not self._own_journal.exists():
            self.check(exists=False)
        try:
            make_private_folder(self.folder)
        except OSError as error:
            raise ConfigurationError(
                f"output_dir: {self.folder} can't be created: {error.strerror}; name another"
            ) from None
        self.lock()

    def check(self, exists: bool) -> None:
        """Check `resume` against the existence of the run.

        :raises ConfigurationError: if they contradict each other.
        """
        name = f"run {self._config.run_name!r} in {self.folder}"
        if exists and self._resume == "never":
            raise ConfigurationError(
                f"resume: there is a {name} already; name another output_dir, or remove resume=never"
            )
        if not exists and self._resume == "always":
            raise ConfigurationError(f"resume: there is no {name} to resume; check output_dir")

    def write_settings(self) -> None:
        """Write the resolved settings, secrets masked, to `settings.yaml`."""
        settings = self.folder / SETTINGS_FILE
        try:
            replace_file(settings, render_config(self._config).encode())
        except OSError as error:
            raise ConfigurationError(
                f"{settings}: can't be written: {error.strerror}; name another output_dir"
            ) from None


class AtomicFiles:
    """New versions of a set of files, written beside the old ones and renamed together at the end of the block.

    The images to which their lines refer by `image_file` are written before, each once. An error in the block leaves the
    old files unchanged. An `OSError` in it is raised as `RunStopped`.
    """

    def __init__(self, folder: Path, names: Sequence[str], read_blob: BlobReader | None = None) -> None:
        self._folder = folder
        self._names = names
        self._images = None if read_blob is None else ExportedImages(folder, read_blob)
        self._open: dict[str, BinaryIO] = {}

    @classmethod
    @asynccontextmanager
    async def replace(
        cls, folder: Path, names: Sequence[str], read_blob: BlobReader | None = None
    ) -> AsyncGenerator[Self]:
        """Yield the new versions of these files in a directory.

        :param read_blob: reads images; without it, none are written.
        """
        files = cls(folder, names, read_blob)
        with report_disk_errors(folder), ExitStack() as stack:
            await anyio.to_thread.run_sync(files._create, stack)
            yield files
            await anyio.to_thread.run_sync(files._finish)

    async def write(self, lines: Mapping[str, Sequence[bytes]]) -> None:
        """Append lines to files, by file name."""
        if self._images is not None:
            for added in lines.values():
                await self._images.write(added)
        await anyio.to_thread.run_sync(self._write, lines)

    def _create(self, stack: ExitStack) -> None:
        make_private_folder(self._folder)
        _remove_orphans(self._folder, self._names)
        for name in self._names:
            path = self._new(name)
            stack.callback(path.unlink, missing_ok=True)
            self._open[name] = stack.enter_context(open_private(path, "wb"))

    def _write(self, lines: Mapping[str, Sequence[bytes]]) -> None:
        for name, added in lines.items():
            self._open[name].writelines(line + b"\n" for line in added)

    def _finish(self) -> None:
        for file in self._open.values():
            file.flush()
            os.fsync(file.fileno())
        for name in self._open:
            self._new(name).replace(self._folder / name)
        _sync_folder(self._folder)

    def _new(self, name: str) -> Path:
        return self._folder / f".{name}.{os.getpid()}.new"


@contextmanager
def report_disk_errors(folder: Path) -> Generator[None]:
    """Raise `RunStopped` with the file and the reason for an `OSError` in the block."""
    try:
        yield
    except OSError as error:
        raise RunStopped(
            StopCause.JOURNAL,
            f"{error.filename or folder}: can't be written: {error.strerror}; fix it and run the same command again",
        ) from error


def _remove_orphans(folder: Path, names: Sequence[str]) -> None:
    """Remove the new versions that killed processes left behind."""
    for path in [path for name in names for path in folder.glob(f".{name}.*.new")]:
        pid = path.name.split(".")[-2]
        if not pid.isdigit() or not _is_alive(int(pid)):
            path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def _sync_folder(folder: Path) -> None:
    # Some file systems can't sync a directory; there the renames are only as durable as the system makes them.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


async def write_report_page(folder: Path, journal: str = "", name: str = "") -> None:
    """Write `report.html` into the directory of a run that has ended. A run never fails because of it.

    See docs/view.md.

    :param journal: URL of its journal, if that is not in the directory.
    :param name: name of the run in that journal.
    """
    with anyio.CancelScope(shield=True):
        try:
            await anyio.to_thread.run_sync(_write_page, folder, journal, name)
        except (
            Exception
        ) as error:  # boundary: the page is an extra, and anything may be wrong with the files it reads
            logger.warning("no report.html", folder=str(folder), reason=error_line(error))


def _write_page(*run: object) -> None:
    # By its name: the pages are in a higher layer, and a run must not need them.
    write: Callable[..., object] = import_module("agentflow.dashboard").write_report
    write(*run)
