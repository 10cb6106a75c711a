"""Files of a synthesis: projections of the results in the journal."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import anyio.to_thread
import msgspec

from agentflow.runs import AtomicFiles, report_disk_errors
from agentflow.synthesis._config import SynthesisConfig
from agentflow.synthesis._near_duplicates import QuestionIndex
from agentflow.synthesis._records import pair_record, trajectory_record, tree_record
from agentflow.synthesis._report import Report, ReportBuilder
from agentflow.synthesis._seed_result import SeedResult
from agentflow.trajectory import Seed

PAIRS: Final = "synthesized_qa.jsonl"
"""File of the question-answer pairs."""
TRAJECTORIES: Final = "trajectories.jsonl"
"""File of the selected paths."""
TREES: Final = "trees.jsonl"
"""File of the whole trees."""
REPORT: Final = "report.json"
"""File of the quality report."""
_ENCODER: Final = msgspec.json.Encoder()


async def write_files(
    results: AsyncIterator[tuple[Seed, SeedResult]],
    output_dir: Path,
    config: SynthesisConfig,
    *,
    dropped_tools: Mapping[str, str] = MappingProxyType({}),
) -> Report:
    """Write the files from the results of seeds, in order, and return the report on them.

    All files are replaced together at the end. A pair whose question repeats an earlier one is dropped. One result is in
    memory at a time. See docs/synthesis.md.

    :param dropped_tools: reasons of tools that could not be used, by name.
    :raises RunStopped: if a file can't be written; the earlier files stay unchanged.
    """
    tally = ReportBuilder(config, dropped_tools)
    asked = QuestionIndex(config.question_similarity)
    with (
        report_disk_errors(output_dir),
        AtomicFiles(output_dir, (PAIRS, TRAJECTORIES, TREES, REPORT)) as files,
    ):
        await anyio.to_thread.run_sync(files.open)
        async for seed, result in results:
            tally.add(seed, result)
            lines = _lines(seed, result, tally, asked)
            await anyio.to_thread.run_sync(files.write, lines)
        report = tally.report()
        text = msgspec.json.format(_ENCODER.encode(report), indent=2)
        await anyio.to_thread.run_sync(files.write, {REPORT: [text]})
        await anyio.to_thread.run_sync(files.finish)
    return report


def _lines(
    seed: Seed, result: SeedResult, tally: ReportBuilder, asked: QuestionIndex
) -> dict[str, list[bytes]]:
    """Return the lines of a result, by file."""
    if result.tree is None:
        return {}
    trajectories = {trajectory.id: trajectory for trajectory in result.trajectories}
    pairs: list[bytes] = []
    for pair in result.pairs:
        if asked.before(pair.question, pair.answer) is not None:
            tally.drop()
            continue
        asked.add(pair.question, pair.answer, pair.id)
        tally.keep(pair)
        pairs.append(_ENCODER.encode(pair_record(seed, pair, trajectories[pair.trajectory_id])))
    paths = [_ENCODER.encode(trajectory_record(result.tree, one)) for one in result.trajectories]
    return {PAIRS: pairs, TRAJECTORIES: paths, TREES: [_ENCODER.encode(tree_record(result.tree))]}
