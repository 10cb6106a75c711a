"""Read runs, finished or not, without changing them: the data behind the live view, reports and exports.

`open_runs(place)` opens a run's folder, a folder of runs, a journal file or a Postgres database. See docs/journal.md.
"""

from agentflow.inspection._collection import RunCollection, open_runs
from agentflow.inspection._reader import DAMAGE, MAX_TEXT, RunReader
from agentflow.inspection._trees import nodes_by_spot
from agentflow.inspection._types import (
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
    SeedResults,
    SeedSummary,
    SeedTokens,
    ShownMessage,
    StepFigures,
    TokenPiece,
    TreeSkeleton,
    WorkState,
)

__all__ = [
    "DAMAGE",
    "MAX_TEXT",
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
    "RunSummary",
    "SeedAnswer",
    "SeedCounts",
    "SeedResults",
    "SeedSummary",
    "SeedTokens",
    "ShownMessage",
    "StepFigures",
    "TokenPiece",
    "TreeSkeleton",
    "WorkState",
    "nodes_by_spot",
    "open_runs",
]
