"""Files of a training: checkpoints, and the rollouts of every step.

Checkpoints are written atomically and verified by checksums; the most recent and the best are kept. The batch of a step is
on disk before the step is made, so that the step can be repeated; beside it are the scores of the step: what its loss used
for each trained call.
"""

import gzip
import hashlib
import os
import re
import shutil
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import msgspec
import numpy as np
import structlog
from msgspec import Struct, structs
from numpy.typing import NDArray

from agentflow._decoding import DECODE_ERRORS
from agentflow._folder_files import open_file, read_lines
from agentflow._private_files import make_private, make_private_folder, open_private, write_private
from agentflow.errors import AgentFlowError, ConfigurationError, RunStopped, StopCause
from agentflow.learner._backbone import Backbone
from agentflow.learner._groups import Batch, Group, ReplacedGroup

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


_LEVEL = 1


class _Header(Struct, frozen=True, kw_only=True):
    """First line of a file: the batch without its groups."""

    step: int
    version: int
    taken: int
    pending: tuple[int, ...]
    dropped: dict[str, int]
    groups: int
    replaced: tuple[ReplacedGroup, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class CallScores:
    """Inputs of the loss for a trained call."""

    sample: int
    """Position of its episode in the batch."""
    call: int
    """Number in the episode, from 0."""
    advantage: float
    """Advantage of its tokens."""
    log_probs: NDArray[np.float32]
    """Log-probability of each trained token, computed by the trainer; empty if it does not tell."""


class RolloutStore:
    """The rollouts of a run: one file per step, `step_000012.jsonl.gz`, with a header and a line for each group.

    The scores of the step are in `step_000012.scores.npz`.
    """

    def __init__(self, folder: Path, *, root: Path | None = None) -> None:
        """:param root: folder of a run that may come from elsewhere, whose files are read with bounds."""
        self.folder = folder
        """Folder of the files."""
        self._root = root

    def path(self, step: int) -> Path:
        """Return the file of a step."""
        return self.folder / f"step_{step:06d}.jsonl.gz"

    def write(self, batch: Batch) -> None:
        """Store a batch; returns once it is on disk.

        :raises RunStopped: if it can't be written.
        """
        fields = {name: value for name, value in structs.asdict(batch).items() if name != "groups"}
        header = _Header(**fields, groups=len(batch.groups))
        lines = [msgspec.json.encode(line) for line in (header, *batch.groups)]
        path = self.path(batch.step)
        draft = path.with_name(f".{path.name}.new")
        try:
            make_private_folder(self.folder)
            with open_private(draft, "wb") as file:
                file.write(gzip.compress(b"\n".join(lines) + b"\n", compresslevel=_LEVEL, mtime=0))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            message = f"{path} can't be written: {error.strerror or error}; free some space, then run the same command to resume"
            raise RunStopped(StopCause.JOURNAL, message) from None

    def read(self, step: int) -> Batch | None:
        """Return the batch of a step; `None`: it is not stored.

        :raises ConfigurationError: if the file is damaged.
        """
        path = self.path(step)
        try:
            lines = self._lines(path)
            header = msgspec.json.decode(next(lines, b""), type=_Header)
            groups = tuple(msgspec.json.decode(line, type=Group) for line in lines)
        except FileNotFoundError:
            return None
        except (OSError, EOFError, zlib.error, *DECODE_ERRORS) as error:
            why = " ".join(str(getattr(error, "strerror", None) or error).split())
            raise ConfigurationError(
                f"{path}: can't be read: {why}{self._remedy('sample it again')}"
            ) from None
        if len(groups) != header.groups:
            count = f"has {len(groups)} of {header.groups} groups"
            raise ConfigurationError(f"{path}: {count}{self._remedy('sample it again')}")
        fields = {name: value for name, value in structs.asdict(header).items() if name != "groups"}
        return Batch(**fields, groups=groups)

    def _lines(self, path: Path) -> Iterator[bytes]:
        if self._root is not None:
            return read_lines(path, self._root)
        with gzip.open(path) as file:
            return iter(file.readlines())

    def _remedy(self, purpose: str) -> str:
        """Return the end of a line about a damaged file; somebody who only looks at a run is not told to remove it."""
        return f"; remove it to {purpose}" if self._root is None else ""

    def write_scores(self, step: int, scores: Sequence[CallScores]) -> None:
        """Store the scores of a step, at least one.

        :raises OSError: if they can't be written.
        """
        path = self._scores_path(step)
        draft = path.with_name(f".{path.name}.new")
        try:
            make_private_folder(self.folder)
            with open_private(draft, "wb") as file:
                np.savez(
                    file,
                    samples=np.array([call.sample for call in scores], np.int32),
                    calls=np.array([call.call for call in scores], np.int32),
                    advantages=np.array([call.advantage for call in scores], np.float32),
                    lengths=np.array([len(call.log_probs) for call in scores], np.int32),
                    log_probs=np.concatenate([call.log_probs for call in scores]),
                )
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def read_scores(self, step: int) -> Mapping[tuple[int, int], CallScores]:
        """Return the scores of a step by sample and call; empty if they were not stored.

        :raises ConfigurationError: if the file is damaged.
        """
        path = self._scores_path(step)
        try:
            with (
                open_file(path, self._root or self.folder) as file,
                np.load(file, allow_pickle=False) as stored,
            ):
                # They are written as they are; from elsewhere, they may be compressed.
                if sum(part.file_size for part in stored.zip.infolist()) > os.fstat(file.fileno()).st_size:
                    raise ValueError("it is compressed")
                samples, calls, advantages = (
                    stored[name].tolist() for name in ("samples", "calls", "advantages")
                )
                log_probs = np.split(stored["log_probs"], np.cumsum(stored["lengths"]))[:-1]
            return {
                (sample, call): CallScores(sample=sample, call=call, advantage=advantage, log_probs=values)
                for sample, call, advantage, values in zip(samples, calls, advantages, log_probs, strict=True)
            }
        except FileNotFoundError:
            return {}
        except (
            OSError,
            EOFError,
            ValueError,
            LookupError,
            TypeError,
            MemoryError,
            BadZipFile,
            zlib.error,
        ) as error:
            why = " ".join(str(getattr(error, "strerror", None) or error).split())
            raise ConfigurationError(f"{path}: can't be read: {why}{self._remedy('read the rest')}") from None

    def _scores_path(self, step: int) -> Path:
        return self.folder / f"step_{step:06d}.scores.npz"
