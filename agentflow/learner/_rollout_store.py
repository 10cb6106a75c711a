"""Stored rollouts: the batch of every step, on disk before the step is made, so that the step can be repeated."""

import gzip
import os
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from agentflow._private_files import make_private_folder, open_private
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.learner._groups import Batch, Group

_LEVEL = 1


class _Header(Struct, frozen=True, kw_only=True):
    """First line of a file: the batch without its groups."""

    step: int
    version: int
    taken: int
    pending: tuple[int, ...]
    dropped: dict[str, int]
    groups: int


class RolloutStore:
    """The rollouts of a run: one file per step, `step_000012.jsonl.gz`, with a header and a line for each group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """Folder of the files."""

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
            first, *lines = gzip.decompress(path.read_bytes()).splitlines()
            header = msgspec.json.decode(first, type=_Header)
            groups = tuple(msgspec.json.decode(line, type=Group) for line in lines)
        except FileNotFoundError:
            return None
        except (OSError, EOFError, ValueError, msgspec.MsgspecError) as error:
            why = " ".join(str(error).split())
            raise ConfigurationError(f"{path}: can't be read: {why}; remove it to sample it again") from None
        if len(groups) != header.groups:
            raise ConfigurationError(
                f"{path}: has {len(groups)} of {header.groups} groups; remove it to sample it again"
            )
        fields = {name: value for name, value in structs.asdict(header).items() if name != "groups"}
        return Batch(**fields, groups=groups)
