"""Exports: the trees and episodes of a run as data sets for other trainers. See docs/exports.md."""

from agentflow.exports._conversations import ExportContext
from agentflow.exports._environment import SandboxEnvironments
from agentflow.exports._formats import ExportFormat, RowFormat
from agentflow.exports._rows import Dropped, DropReason, ExportRow, PathExtent, Take
from agentflow.exports._run import export_run
from agentflow.exports._writing import ExportFile, ExportManifest, push_export

__all__ = [
    "DropReason",
    "Dropped",
    "ExportContext",
    "ExportFile",
    "ExportFormat",
    "ExportManifest",
    "ExportRow",
    "PathExtent",
    "RowFormat",
    "SandboxEnvironments",
    "Take",
    "export_run",
    "push_export",
]
