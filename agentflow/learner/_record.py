"""Stored rollouts: what every step learned from, on disk before the step is made, so that it can be made again."""

import gzip
import os
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.learner._groups import Batch, Group

__all__ = ["Rollouts"]

_LEVEL = 1


class _Head(Struct, frozen=True, kw_only=True):
    """The first line of a file: the batch without its groups."""

    step: int
    version: int
    taken: int
    pending: tuple[int, ...]
    dropped: dict[str, int]
    groups: int


class Rollouts:
    """The rollouts of a run: a file for each step, `step_000012.jsonl.gz`; after its head, a line for each group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """Where they are."""

    def path(self, step: int) -> Path:
        """The file of a step."""
        return self.folder / f"step_{step:06d}.jsonl.gz"

    def write(self, batch: Batch) -> None:
        """Store what a step learns from; returns once it is on disk.

        :raises RunStopped: if it can't be written.
        """
        said = {name: value for name, value in structs.asdict(batch).items() if name != "groups"}
        head = _Head(**said, groups=len(batch.groups))
        lines = [msgspec.json.encode(line) for line in (head, *batch.groups)]
        path = self.path(batch.step)
        draft = path.with_name(f".{path.name}.new")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                file.write(gzip.compress(b"\n".join(lines) + b"\n", compresslevel=_LEVEL, mtime=0))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            message = (
                f"{path} can't be written: {error.strerror or error}; make room, then run the same again"
            )
            raise RunStopped(StopCause.JOURNAL, message) from None

    def read(self, step: int) -> Batch | None:
        """What a step learned from; `None`: it is not stored.

        :raises ConfigurationError: one line, if the file is none.
        """
        path = self.path(step)
        try:
            first, *lines = gzip.decompress(path.read_bytes()).splitlines()
            head = msgspec.json.decode(first, type=_Head)
            groups = tuple(msgspec.json.decode(line, type=Group) for line in lines)
        except FileNotFoundError:
            return None
        except (OSError, EOFError, ValueError, msgspec.MsgspecError) as error:
            why = " ".join(str(error).split())
            raise ConfigurationError(
                f"{path}: can't be read: {why}; remove it, and it is sampled again"
            ) from None
        if len(groups) != head.groups:
            raise ConfigurationError(
                f"{path}: has {len(groups)} of {head.groups} groups; remove it, and it is sampled again"
            )
        said = {name: value for name, value in structs.asdict(head).items() if name != "groups"}
        return Batch(**said, groups=groups)
