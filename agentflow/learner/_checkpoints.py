"""Checkpoints on disk: written atomically, verified by checksums; the most recent and the best are kept."""

import hashlib
import os
import re
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from agentflow._decoding import DECODE_ERRORS
from agentflow._private_files import make_private, make_private_folder, write_private
from agentflow.errors import AgentFlowError
from agentflow.learner._backbone import Backbone

MANIFEST = "manifest.json"
SCORES = "scores.json"
_NAME = re.compile(r"step-(\d{8})")
_UNFINISHED = ".unfinished"
_log = structlog.get_logger(__name__)


class CheckpointError(AgentFlowError):
    """A checkpoint can't be written or used. One line: which, why, how to fix it."""


class _Manifest(Struct, forbid_unknown_fields=True):
    files: dict[str, str]
    """SHA-256 of each file."""


@contextmanager
def atomic_folder(folder: Path, *, durable: bool = True) -> Generator[Path]:
    """Yield a folder to write into; it gets its name, replacing an existing one, once everything is on disk.

    :param durable: survive a power failure, and have checksums; otherwise it is only complete.
    :raises CheckpointError: if it can't be written: it is removed, and an existing one is kept.
    """
    unfinished = folder.with_name(folder.name + _UNFINISHED)
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        make_private_folder(unfinished)
        yield unfinished
        make_private(unfinished.rglob("*"))
        if durable:
            sums = {str(path.relative_to(unfinished)): _synced(path) for path in _files(unfinished)}
            manifest = msgspec.json.encode(_Manifest(files=sums))
            write_private(unfinished / MANIFEST, msgspec.json.format(manifest))
            _synced(unfinished / MANIFEST)
        _replace(unfinished, folder)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckpointError(
            f"{folder} can't be written: {error.strerror or error}; free some space"
        ) from error
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _synced(path: Path) -> str:
    """Flush a file to disk and return its checksum."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _replace(unfinished: Path, folder: Path) -> None:
    _sync_folder(unfinished)
    former = folder.with_name(folder.name + ".former" + _UNFINISHED)
    if folder.exists():
        shutil.rmtree(former, ignore_errors=True)
        folder.rename(former)
    unfinished.rename(folder)
    _sync_folder(folder.parent)
    shutil.rmtree(former, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify(folder: Path) -> None:
    """Check that a folder is complete and unchanged.

    :raises CheckpointError: if it is incomplete or altered.
    """
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=_Manifest)
        for name, expected in manifest.files.items():
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                    raise CheckpointError(f"{folder}: {name} was altered; use another checkpoint")
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise CheckpointError(f"{folder}: {missing} is missing; use another checkpoint") from None
    except (OSError, *DECODE_ERRORS) as error:
        raise CheckpointError(f"{folder} can't be read: {error}; use another checkpoint") from None


class Checkpoints:
    """The checkpoints of one run, in one folder.

    Example::

        checkpoints = Checkpoints(Path("checkpoints"), keep=2)
        position = checkpoints.load(backbone)
    """

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        """Configure it; nothing is read or written yet.

        :param keep: number of most recent checkpoints to keep, beside the one with the best score.
        """
        self.folder = folder
        self._keep = keep

    def save(
        self, backbone: Backbone, step: int, position: Mapping[str, object], *, score: float | None = None
    ) -> Path:
        """Write a checkpoint, and remove those that are no longer kept.

        :param score: evaluation score; higher is better.
        :raises CheckpointError: if it can't be written: earlier ones are kept, and training can continue.
        """
        target = backbone.save(self.folder / f"step-{step:08d}", position)
        scores = self._scores() | ({} if score is None else {target.name: score})
        kept = self._kept(scores)
        # Includes folders left unfinished by a killed process.
        for folder in [*self.all(), *self.folder.glob(f"*{_UNFINISHED}")]:
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)
        self._write_scores({name: scores[name] for name in kept if name in scores})
        return target

    def load(self, backbone: Backbone) -> dict[str, object] | None:
        """Restore the newest complete checkpoint; return the loop's position, or `None` if there is no checkpoint.

        :raises CheckpointError: if there are checkpoints, and none is complete.
        """
        broken: list[str] = []
        for folder in reversed(self.all()):
            try:
                return backbone.load(folder)
            except CheckpointError as error:
                _log.warning("skipped an unusable checkpoint", problem=str(error))
                broken.append(folder.name)
        if broken:
            raise CheckpointError(
                f"{self.folder}: no checkpoint is complete ({', '.join(broken)}); remove them to start from the beginning"
            )
        return None

    def all(self) -> list[Path]:
        """Return the checkpoints, the oldest first; they are verified when they are loaded."""
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name))

    def best(self) -> Path | None:
        """Return the checkpoint with the best score."""
        name = _best(self._scores())
        return None if name is None else self.folder / name

    def _kept(self, scores: Mapping[str, float]) -> list[str]:
        last = [path.name for path in self.all()][-self._keep :]
        best = _best(scores)
        return last if best is None or best in last else [best, *last]

    def _scores(self) -> dict[str, float]:
        try:
            scores = msgspec.json.decode((self.folder / SCORES).read_bytes(), type=dict[str, float])
        except (OSError, *DECODE_ERRORS):
            # Without scores, the most recent checkpoints are still kept.
            return {}
        return {name: score for name, score in scores.items() if (self.folder / name).is_dir()}

    def _write_scores(self, scores: Mapping[str, float]) -> None:
        written = self.folder / f"{SCORES}{_UNFINISHED}"
        try:
            write_private(written, msgspec.json.encode(scores))
            written.replace(self.folder / SCORES)
        except OSError as error:
            raise CheckpointError(
                f"{self.folder / SCORES} can't be written: {error.strerror}; free some space"
            ) from error


def _best(scores: Mapping[str, float]) -> str | None:
    return max(scores, key=lambda name: (scores[name], name), default=None)
