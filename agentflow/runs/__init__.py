"""What every run is made of, whatever it does: its settings, its place on disk, its house, its field of work, its files.

A run has seeds in a journal; its field claims them and has each one worked on, as many at once as there is room for.
Whatever a run stands on is held open by a child of its supervisor.
"""

from agentflow.runs._config import Prose, RoleModel, RunConfig, render_config
from agentflow.runs._field import Ending, Field
from agentflow.runs._files import NewFiles
from agentflow.runs._gate import Gate
from agentflow.runs._house import Held, hold, innermost, start
from agentflow.runs._memory import seldom_collected
from agentflow.runs._place import CONTROL_FILE, Place, Resume
from agentflow.runs._progress import FieldProgress, Phase
from agentflow.runs._secrets import masked
from agentflow.runs._tools import ChosenTools, choose_tools, explores_bundled_corpus, sandbox_settings

__all__ = [
    "CONTROL_FILE",
    "ChosenTools",
    "Ending",
    "Field",
    "FieldProgress",
    "Gate",
    "Held",
    "NewFiles",
    "Phase",
    "Place",
    "Prose",
    "Resume",
    "RoleModel",
    "RunConfig",
    "choose_tools",
    "explores_bundled_corpus",
    "hold",
    "innermost",
    "masked",
    "render_config",
    "sandbox_settings",
    "seldom_collected",
    "start",
]
