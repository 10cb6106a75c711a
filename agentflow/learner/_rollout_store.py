"""Stored rollouts: the batch of every step, on disk before the step is made, so that the step can be repeated.

Beside it are the scores of the step: what its loss used for each trained call.
"""

import gzip
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import msgspec
import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from agentflow._decoding import DECODE_ERRORS
from agentflow._folder_files import open_file, read_lines
from agentflow._private_files import make_private_folder, open_private
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.learner._groups import Batch, Group, ReplacedGroup

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
