"""Checkpoints on disk: whole or not there, known by their sums, the last few and the best kept."""

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

from agentflow.errors import AgentFlowError
from agentflow.learner._backbone import Backbone

__all__ = ["CheckpointError", "Checkpoints", "verify", "whole_folder"]

MANIFEST = "manifest.json"
SCORES = "scores.json"
_NAME = re.compile(r"step-(\d{8})")
_UNFINISHED = ".unfinished"
_log = structlog.get_logger(__name__)


class CheckpointError(AgentFlowError):
    """A checkpoint that could not be written, or one that can't be used. One line: which, why, what to do."""


class _Manifest(Struct, forbid_unknown_fields=True):
    files: dict[str, str]
    """The SHA-256 of each file."""


@contextmanager
def whole_folder(folder: Path) -> Generator[Path]:
    """A folder to write into, which gets its name when everything is on disk; one of that name is replaced.

    :raises CheckpointError: if it can't be written: nothing is left of it, and what had the name still has it.
    """
    unfinished = folder.with_name(folder.name + _UNFINISHED)
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        yield unfinished
        sums = {str(path.relative_to(unfinished)): _settled(path) for path in _files(unfinished)}
        (unfinished / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(_Manifest(files=sums))))
        _settled(unfinished / MANIFEST)
        _put(unfinished, folder)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckpointError(f"{folder} can't be written: {error.strerror or error}; make room") from error
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _settled(path: Path) -> str:
    """Its sum, once it is on disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _put(unfinished: Path, folder: Path) -> None:
    _settle_names(unfinished)
    former = folder.with_name(folder.name + ".former" + _UNFINISHED)
    if folder.exists():
        shutil.rmtree(former, ignore_errors=True)
        folder.rename(former)
    unfinished.rename(folder)
    _settle_names(folder.parent)
    shutil.rmtree(former, ignore_errors=True)


def _settle_names(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify(folder: Path) -> None:
    """Check that a folder is what was written.

    :raises CheckpointError: if it is half written or altered.
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
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{folder} can't be read: {error}; use another checkpoint") from None


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        """Nothing is read or written yet.

        :param keep: how many of the last ones stay; the one with the best score stays beside them.
        """
        self.folder = folder
        self._keep = keep

    def save(
        self, backbone: Backbone, step: int, position: Mapping[str, object], *, score: float | None = None
    ) -> Path:
        """Write one more, and remove those that are no longer kept.

        :param score: of an evaluation; the higher the better.
        :raises CheckpointError: if it can't be written: those before it stand, and training can go on.
        """
        target = backbone.save(self.folder / f"step-{step:08d}", position)
        scores = self._scores() | ({} if score is None else {target.name: score})
        kept = self._kept(scores)
        # What was being written when a process was killed goes, too.
        for folder in [*self.all(), *self.folder.glob(f"*{_UNFINISHED}")]:
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)
        self._write_scores({name: scores[name] for name in kept if name in scores})
        return target

    def load(self, backbone: Backbone) -> dict[str, object] | None:
        """Go on from the newest one that is whole; the loop's position, or `None` if there are none.

        :raises CheckpointError: if there are some, and not one is whole.
        """
        broken: list[str] = []
        for folder in reversed(self.all()):
            try:
                return backbone.load(folder)
            except CheckpointError as error:
                _log.warning("passed over a checkpoint", problem=str(error))
                broken.append(folder.name)
        if broken:
            raise CheckpointError(
                f"{self.folder}: no checkpoint is whole ({', '.join(broken)}); remove them to start from the beginning"
            )
        return None

    def all(self) -> list[Path]:
        """Those that are there, the oldest first; whether they are whole is seen when they are loaded."""
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name))

    def best(self) -> Path | None:
        """The one with the best score."""
        scores = self._scores()
        return self.folder / max(scores, key=lambda name: (scores[name], name)) if scores else None

    def _kept(self, scores: Mapping[str, float]) -> list[str]:
        last = [path.name for path in self.all()][-self._keep :]
        best = max(scores, key=lambda name: (scores[name], name), default=None)
        return last if best is None or best in last else [best, *last]

    def _scores(self) -> dict[str, float]:
        try:
            found = msgspec.json.decode((self.folder / SCORES).read_bytes(), type=dict[str, float])
        except (OSError, msgspec.DecodeError):
            # Without them the last ones are kept all the same.
            return {}
        return {name: score for name, score in found.items() if (self.folder / name).is_dir()}

    def _write_scores(self, scores: Mapping[str, float]) -> None:
        written = self.folder / f"{SCORES}{_UNFINISHED}"
        try:
            written.write_bytes(msgspec.json.encode(scores))
            written.replace(self.folder / SCORES)
        except OSError as error:
            raise CheckpointError(
                f"{self.folder / SCORES} can't be written: {error.strerror}; make room"
            ) from error
