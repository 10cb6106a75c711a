"""The files of a rollout: results as they come, and in the end everything in order, each file whole or not at all."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from agentflow.rollout._config import RolloutConfig
from agentflow.rollout._result import TaskResult, result_record, trajectory_record, trajectory_result
from agentflow.rollout._summary import RolloutSummary, SummaryBuilder
from agentflow.runs import AtomicFiles, report_disk_errors

__all__ = ["RESULTS", "SUMMARY", "TRAJECTORIES", "ResultLines", "write_files"]

RESULTS: Final = "results.jsonl"
"""What became of each task."""
TRAJECTORIES: Final = "trajectories.jsonl"
"""Their episodes."""
SUMMARY: Final = "summary.json"
"""All of it in short."""
_ENCODER: Final = msgspec.json.Encoder()


class ResultLines:
    """`results.jsonl` while the run is on: a line for each task as it is finished, in the order in which they are."""

    def __init__(self, folder: Path, config: RolloutConfig) -> None:
        """Describe it."""
        self._file = folder / RESULTS
        self._folder = folder
        self._config = config
        self._turn = anyio.Lock()
        self._pending: list[bytes] = []

    async def begin(self, results: AsyncIterator[TaskResult]) -> None:
        """Write what is finished already.

        :raises RunStopped: if it can't be written.
        """
        if not self._config.save_results:
            return
        with report_disk_errors(self._folder), AtomicFiles(self._folder, (RESULTS,)) as files:
            await anyio.to_thread.run_sync(files.open)
            async for result in results:
                await anyio.to_thread.run_sync(files.write, {RESULTS: [self._line(result)]})
            await anyio.to_thread.run_sync(files.finish)

    async def add(self, result: TaskResult) -> None:
        """Add a line.

        :raises RunStopped: if it can't be written.
        """
        if not self._config.save_results:
            return
        self._pending.append(self._line(result) + b"\n")
        async with self._turn:
            # Whoever waited for its turn finds its line written together with others.
            lines, self._pending = self._pending, []
            if lines:
                with report_disk_errors(self._folder):
                    await anyio.to_thread.run_sync(self._append, lines)

    def _append(self, lines: list[bytes]) -> None:
        with self._file.open("ab") as file:
            file.writelines(lines)

    def _line(self, result: TaskResult) -> bytes:
        return _line(result, self._config)


async def write_files(
    results: AsyncIterator[TaskResult], folder: Path, config: RolloutConfig, tally: SummaryBuilder
) -> RolloutSummary:
    """Write the files from the results in their order. One result is held at a time.

    :raises RunStopped: if a file can't be written; those of before stay as they are.
    """
    wanted = {
        RESULTS: config.save_results,
        TRAJECTORIES: config.save_trajectories,
        SUMMARY: config.save_summary,
    }
    with (
        report_disk_errors(folder),
        AtomicFiles(folder, [name for name, saved in wanted.items() if saved]) as files,
    ):
        await anyio.to_thread.run_sync(files.open)
        async for result in results:
            tally.add(result)
            lines: dict[str, list[bytes]] = {}
            if config.save_results:
                lines[RESULTS] = [_line(result, config)]
            if config.save_trajectories:
                lines[TRAJECTORIES] = [_ENCODER.encode(trajectory_record(result))]
            await anyio.to_thread.run_sync(files.write, lines)
        summary = await anyio.to_thread.run_sync(tally.summary)
        if config.save_summary:
            text = msgspec.json.format(_ENCODER.encode(summary), indent=2)
            await anyio.to_thread.run_sync(files.write, {SUMMARY: [text]})
        await anyio.to_thread.run_sync(files.finish)
    return summary


def _line(result: TaskResult, config: RolloutConfig) -> bytes:
    return _ENCODER.encode(trajectory_result(result) if config.trajectory_only else result_record(result))
