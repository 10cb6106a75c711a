"""Files of a rollout: results as tasks finish, and at the end all files in order."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from agentflow._private_files import open_private
from agentflow.rollouts._config import RolloutConfig
from agentflow.rollouts._result import TaskResult, result_record, trajectory_record, trajectory_result
from agentflow.rollouts._summary import RolloutSummary, SummaryBuilder
from agentflow.runs import AtomicFiles, BlobReader, ExportedImages, report_disk_errors

RESULTS: Final = "results.jsonl"
"""File with a result per task."""
TRAJECTORIES: Final = "trajectories.jsonl"
"""File of the episodes."""
SUMMARY: Final = "summary.json"
"""File of the summary."""
_ENCODER: Final = msgspec.json.Encoder()


class ResultLines:
    """`results.jsonl` during the run: a line for each task, in the order in which they finish."""

    def __init__(self, folder: Path, config: RolloutConfig, read_blob: BlobReader) -> None:
        """Describe it.

        :param read_blob: reads the images, which are written beside the file.
        """
        self._read_blob = read_blob
        self._images = ExportedImages(folder, read_blob)
        self._file = folder / RESULTS
        self._folder = folder
        self._config = config
        self._turn = anyio.Lock()
        self._pending: list[bytes] = []

    async def begin(self, results: AsyncIterator[TaskResult]) -> None:
        """Write the tasks that are already finished.

        :raises RunStopped: if it can't be written.
        """
        if not self._config.save_results:
            return
        async with AtomicFiles.replace(self._folder, (RESULTS,), self._read_blob) as files:
            async for result in results:
                await files.write({RESULTS: [_line(result, self._config)]})

    async def add(self, result: TaskResult) -> None:
        """Add a line.

        :raises RunStopped: if it can't be written.
        """
        if not self._config.save_results:
            return
        self._pending.append(_line(result, self._config) + b"\n")
        async with self._turn:
            # One task writes the lines of all that wait for the lock.
            lines, self._pending = self._pending, []
            if lines:
                with report_disk_errors(self._folder):
                    await self._images.write(lines)
                    await anyio.to_thread.run_sync(self._append, lines)

    def _append(self, lines: list[bytes]) -> None:
        with open_private(self._file, "ab") as file:
            file.writelines(lines)


async def write_files(
    results: AsyncIterator[TaskResult],
    folder: Path,
    config: RolloutConfig,
    tally: SummaryBuilder,
    read_blob: BlobReader,
) -> RolloutSummary:
    """Write the files from the results, in order, and return the summary. One result is in memory at a time.

    :param read_blob: reads the images, which are written beside the files.
    :raises RunStopped: if a file can't be written; the earlier files stay unchanged.
    """
    wanted = {
        RESULTS: config.save_results,
        TRAJECTORIES: config.save_trajectories,
        SUMMARY: config.save_summary,
    }
    names = [name for name, saved in wanted.items() if saved]
    async with AtomicFiles.replace(folder, names, read_blob) as files:
        async for result in results:
            tally.add(result)
            lines: dict[str, list[bytes]] = {}
            if config.save_results:
                lines[RESULTS] = [_line(result, config)]
            if config.save_trajectories:
                lines[TRAJECTORIES] = [_ENCODER.encode(trajectory_record(result))]
            await files.write(lines)
        summary = await anyio.to_thread.run_sync(tally.summary)
        if config.save_summary:
            await files.write({SUMMARY: [msgspec.json.format(_ENCODER.encode(summary), indent=2)]})
    return summary


def _line(result: TaskResult, config: RolloutConfig) -> bytes:
    return _ENCODER.encode(trajectory_result(result) if config.trajectory_only else result_record(result))
