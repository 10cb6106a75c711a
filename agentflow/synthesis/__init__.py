"""Synthesis: from seeds to question-answer pairs that need their path and rest on it.

`synthesize(config_path=…)` runs it all; `load_config`, `load_seeds` and `SynthesisPipeline` are its pieces. Its stages
are here too: `harvest` selects the paths of a tree and asks about them, `write_files` makes the files of what came out.
"""

from typing import TYPE_CHECKING

from agentflow.runs import RoleModel, render_config
from agentflow.synthesis._checks import Check, Finding, Grounding
from agentflow.synthesis._config import SynthesisConfig, load_config
from agentflow.synthesis._files import PAIRS, REPORT, TRAJECTORIES, TREES, write_files
from agentflow.synthesis._harvest import Citing, Harvest, Pair, ReasoningStep, Rejected, Trajectory
from agentflow.synthesis._questions import harvest
from agentflow.synthesis._render import render
from agentflow.synthesis._report import FailedSeed, Report
from agentflow.synthesis._roles import Generator
from agentflow.synthesis._seeds import load_seeds
from agentflow.synthesis._selection import Path, Score, Selection, UserStrategy, select
from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.synthesis.api import synthesize
    from agentflow.synthesis.pipeline import SynthesisPipeline

__all__ = [
    "PAIRS",
    "REPORT",
    "TRAJECTORIES",
    "TREES",
    "Check",
    "Citing",
    "FailedSeed",
    "Finding",
    "Generator",
    "Grounding",
    "Harvest",
    "Pair",
    "Path",
    "ReasoningStep",
    "Rejected",
    "Report",
    "RoleModel",
    "Score",
    "Selection",
    "SynthesisConfig",
    "SynthesisPipeline",
    "Trajectory",
    "UserStrategy",
    "harvest",
    "load_config",
    "load_seeds",
    "render",
    "render_config",
    "select",
    "synthesize",
    "write_files",
]


# The stages alone load no servers.
__getattr__ = lazy_exports(
    __name__,
    {
        ".api": ["synthesize"],
        ".pipeline": ["SynthesisPipeline"],
    },
)
