"""Exports: the trees and episodes of a run as data sets for other trainers. See docs/exports.md."""

from agentflow.exports._environment import SandboxEnvironments
from agentflow.exports._records import DropReason, PathExtent, Take
from agentflow.exports._run import ExportFormat, export_run
from agentflow.exports._writing import ExportFile, ExportManifest, push_export

__all__ = [
    "DropReason",
    "ExportFile",
    "ExportFormat",
    "ExportManifest",
    "PathExtent",
    "SandboxEnvironments",
    "Take",
    "export_run",
    "push_export",
]
