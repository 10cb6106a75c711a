"""What every run is made of, whatever it does: its settings, its place on disk, its house, its field of work, its files.

A run has seeds in a journal; its field claims them and has each one worked on, as many at once as there is room for.
Whatever a run stands on is held open by a child of its supervisor.
"""

from typing import TYPE_CHECKING

from agentflow.runs._config import Prose, RoleModel, RunConfig, render_config
from agentflow.runs._files import NewFiles
from agentflow.runs._memory import seldom_collected
from agentflow.runs._pause_gate import Gate
from agentflow.runs._progress import FieldProgress, Phase, RunProgress
from agentflow.runs._run_sync import wait_for
from agentflow.runs._secrets import masked
from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.runs._models import open_accounts, open_models, prices_of
    from agentflow.runs._place import CONTROL_FILE, Place, Resume
    from agentflow.runs._seed_scheduler import GRACE_SECONDS, LEASE_SECONDS, Ending, Field
    from agentflow.runs._supervised_resources import Held, hold, innermost, start
    from agentflow.runs._tools import ChosenTools, choose_tools, explores_bundled_corpus, sandbox_settings

__all__ = [
    "CONTROL_FILE",
    "GRACE_SECONDS",
    "LEASE_SECONDS",
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
    "RunProgress",
    "choose_tools",
    "explores_bundled_corpus",
    "hold",
    "innermost",
    "masked",
    "open_accounts",
    "open_models",
    "prices_of",
    "render_config",
    "sandbox_settings",
    "seldom_collected",
    "start",
    "wait_for",
]


# Settings load neither servers nor a journal.
__getattr__ = lazy_exports(
    __name__,
    {
        "._models": ["open_accounts", "open_models", "prices_of"],
        "._place": ["CONTROL_FILE", "Place", "Resume"],
        "._seed_scheduler": ["GRACE_SECONDS", "LEASE_SECONDS", "Ending", "Field"],
        "._supervised_resources": ["Held", "hold", "innermost", "start"],
        "._tools": ["ChosenTools", "choose_tools", "explores_bundled_corpus", "sandbox_settings"],
    },
)
