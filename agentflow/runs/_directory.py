"""Directory of a run: its journal, its settings, its control file, and output files that are replaced together."""

import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Literal, Self, TypeAlias

import anyio.to_thread

from agentflow._private_files import make_private_folder, open_private, replace_file
from agentflow.errors import ConfigurationError, RunStopped, StopCause, error_line
from agentflow.runs._config import RunConfig, render_config
from agentflow.runs._exported_images import BlobReader, ExportedImages
from agentflow.runs._output_lock import check_output, lock_output
from agentflow.telemetry import get_logger

logger = get_logger(__name__)

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
