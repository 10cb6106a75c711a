"""The files of a run: projections of its harvests, each written whole or not at all."""

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final, Self

import anyio.to_thread
import msgspec

from agentflow.errors import RunStopped, StopCause
from agentflow.synthesis._config import SynthesisConfig
from agentflow.synthesis._harvest import Harvest
from agentflow.synthesis._records import pair_record, trajectory_record, tree_record
from agentflow.synthesis._report import Report, Tally
from agentflow.synthesis._twins import Asked
from agentflow.trajectory import Seed

__all__ = ["PAIRS", "REPORT", "TRAJECTORIES", "TREES", "write_files"]

PAIRS: Final = "synthesized_qa.jsonl"
"""The question-answer pairs."""
TRAJECTORIES: Final = "trajectories.jsonl"
"""The selected paths."""
TREES: Final = "trees.jsonl"
"""The whole trees."""
REPORT: Final = "report.json"
"""The quality report."""
_ENCODER: Final = msgspec.json.Encoder()


async def write_files(
    harvests: AsyncIterator[tuple[Seed, Harvest]],
    output_dir: Path,
    config: SynthesisConfig,
    *,
    dropped_tools: Mapping[str, str] = MappingProxyType({}),
) -> Report:
    """Write what the harvests give, in their order, and report on it. All files change at once, at the end.

    A pair is dropped if an earlier one asks the same. One harvest is held at a time.

    :param dropped_tools: tools that could not be used, with why, for the report.
    :raises RunStopped: if a file can't be written; those of before stay as they are.
    """
    tally = Tally(config, dropped_tools)
    asked = Asked(config.question_similarity)
    try:
        with _Files(output_dir) as files:
            await anyio.to_thread.run_sync(files.open)
            async for seed, harvest in harvests:
                tally.add(seed, harvest)
                lines = _lines(seed, harvest, tally, asked)
                await anyio.to_thread.run_sync(files.write, lines)
            report = tally.report()
            text = msgspec.json.format(_ENCODER.encode(report), indent=2) + b"\n"
            await anyio.to_thread.run_sync(files.finish, text)
    except OSError as error:
        raise RunStopped(
            StopCause.JOURNAL,
            f"{error.filename or output_dir}: can't be written: {error.strerror}; mend it and run the same command again",
        ) from error
    return report


def _lines(seed: Seed, harvest: Harvest, tally: Tally, asked: Asked) -> dict[str, list[bytes]]:
    """The lines that a harvest adds to each file."""
    if harvest.tree is None:
        return {}
    trajectories = {trajectory.id: trajectory for trajectory in harvest.trajectories}
    pairs: list[bytes] = []
    for pair in harvest.pairs:
        if asked.before(pair.question, pair.answer) is not None:
            tally.drop()
            continue
        asked.add(pair.question, pair.answer, pair.id)
        tally.keep(pair)
        pairs.append(_ENCODER.encode(pair_record(seed, pair, trajectories[pair.trajectory_id])))
    paths = [_ENCODER.encode(trajectory_record(harvest.tree, one)) for one in harvest.trajectories]
    return {PAIRS: pairs, TRAJECTORIES: paths, TREES: [_ENCODER.encode(tree_record(harvest.tree))]}


class _Files:
    """New versions of all files, beside the old ones until they are whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, BinaryIO] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self) -> None:
        """Begin."""
        self._folder.mkdir(parents=True, exist_ok=True)
        _remove_orphans(self._folder)
        for name in (PAIRS, TRAJECTORIES, TREES, REPORT):
            path = self._new(name)
            self._stack.callback(path.unlink, missing_ok=True)
            self._open[name] = self._stack.enter_context(path.open("wb"))

    def write(self, lines: dict[str, list[bytes]]) -> None:
        """Add lines to files."""
        for name, added in lines.items():
            self._open[name].writelines(line + b"\n" for line in added)

    def finish(self, report: bytes) -> None:
        """Put the new versions in the place of the old ones."""
        self._open[REPORT].write(report)
        for file in self._open.values():
            file.flush()
            os.fsync(file.fileno())
        for name in self._open:
            self._new(name).replace(self._folder / name)
        _sync_folder(self._folder)

    def _new(self, name: str) -> Path:
        return self._folder / f".{name}.{os.getpid()}.new"


def _remove_orphans(folder: Path) -> None:
    """Remove what processes left that were killed while they wrote."""
    for path in _unfinished(folder):
        pid = path.name.split(".")[-2]
        if not pid.isdigit() or not _lives(int(pid)):
            path.unlink(missing_ok=True)


def _unfinished(folder: Path) -> Iterable[Path]:
    return [path for name in (PAIRS, TRAJECTORIES, TREES, REPORT) for path in folder.glob(f".{name}.*.new")]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def _sync_folder(folder: Path) -> None:
    # Some file systems can't sync a folder; there the renames are as durable as they can be.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
