"""The learner: episodes with their exact tokens become gradients of the planner that sampled them.

`train(config_path=…)` does it all: episodes, a step, new weights for the engine, again. The losses, the packing and the
backbones are packages of their own below this one; torch is loaded by those that compute.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from agentflow.learner._rows import Row
from agentflow.learner._samples import Sample

if TYPE_CHECKING:
    from agentflow.learner._api import Reward, atrain, train
    from agentflow.learner._backbone import Backbone
    from agentflow.learner._checkpoints import Checkpoints
    from agentflow.learner._config import TrainConfig, load_config
    from agentflow.learner._groups import Batch, Group, Played
    from agentflow.learner._progress import TrainStanding
    from agentflow.learner._run import Outcome, TrainRun

__all__ = [
    "Backbone",
    "Batch",
    "Checkpoints",
    "Group",
    "Outcome",
    "Played",
    "Reward",
    "Row",
    "Sample",
    "TrainConfig",
    "TrainRun",
    "TrainStanding",
    "atrain",
    "load_config",
    "train",
]

_HOMES = {
    **dict.fromkeys(("Reward", "atrain", "train"), "agentflow.learner._api"),
    "Backbone": "agentflow.learner._backbone",
    "Checkpoints": "agentflow.learner._checkpoints",
    **dict.fromkeys(("TrainConfig", "load_config"), "agentflow.learner._config"),
    **dict.fromkeys(("Batch", "Group", "Played"), "agentflow.learner._groups"),
    **dict.fromkeys(("Outcome", "TrainRun"), "agentflow.learner._run"),
    "TrainStanding": "agentflow.learner._progress",
}


def __getattr__(name: str) -> object:
    """Load what plays and trains when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
