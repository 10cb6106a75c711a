"""Read runs, finished or not, without changing them: the data behind the live view, reports and exports.

`open_runs(location)` opens a run's folder, a folder of runs, a journal file or a Postgres database. See docs/journal.md.
"""

from agentflow.inspection._collection import RunCollection, open_records, open_runs
from agentflow.inspection._reader import DAMAGE, MAX_TEXT, RunReader, RunRecords
from agentflow.inspection._trees import nodes_by_path
from agentflow.inspection._types import (
    AnswerRecord,
    CallDetail,
    CallSummary,
    NodeCitation,
    NodeDetail,
    NodePart,
    NodeSummary,
    RunChanges,
    RunHit,
    RunKind,
    RunSummary,
    SeedAnswer,
    SeedCounts,
    SeedRecord,
    SeedResults,
    SeedSummary,
    SeedTokens,
    ShownMessage,
    StepFigures,
    TreeSkeleton,
    WorkState,
    without_paths,
)

__all__ = [
    "DAMAGE",
    "MAX_TEXT",
    "AnswerRecord",
    "CallDetail",
    "CallSummary",
    "NodeCitation",
    "NodeDetail",
    "NodePart",
    "NodeSummary",
    "RunChanges",
    "RunCollection",
    "RunHit",
    "RunKind",
    "RunReader",
    "RunRecords",
    "RunSummary",
    "SeedAnswer",
    "SeedCounts",
    "SeedRecord",
    "SeedResults",
    "SeedSummary",
    "SeedTokens",
    "ShownMessage",
    "StepFigures",
    "TreeSkeleton",
    "WorkState",
    "nodes_by_path",
    "open_records",
    "open_runs",
    "without_paths",
]
