"""What every run is made of, whatever it does: its settings, its place on disk, its house, its field of work, its files.

A run has seeds in a journal; its field claims them and has each one worked on, as many at once as there is room for.
Whatever a run stands on is held open by a child of its supervisor.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from agentflow.runs._config import Prose, RoleModel, RunConfig, render_config
from agentflow.runs._files import NewFiles
from agentflow.runs._memory import seldom_collected
from agentflow.runs._pause_gate import Gate
from agentflow.runs._progress import FieldProgress, Phase, RunProgress
from agentflow.runs._run_sync import wait_for
from agentflow.runs._secrets import masked

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

_HOMES = {
    **dict.fromkeys(("GRACE_SECONDS", "LEASE_SECONDS", "Ending", "Field"), "agentflow.runs._seed_scheduler"),
    **dict.fromkeys(("Held", "hold", "innermost", "start"), "agentflow.runs._supervised_resources"),
    **dict.fromkeys(("open_accounts", "open_models", "prices_of"), "agentflow.runs._models"),
    **dict.fromkeys(("CONTROL_FILE", "Place", "Resume"), "agentflow.runs._place"),
    **dict.fromkeys(
        ("ChosenTools", "choose_tools", "explores_bundled_corpus", "sandbox_settings"),
        "agentflow.runs._tools",
    ),
}


def __getattr__(name: str) -> object:
    """Load what needs servers and a journal when it is first used: settings need neither."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
