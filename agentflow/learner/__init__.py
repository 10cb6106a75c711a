"""The learner: episodes with their exact tokens become gradients of the planner that sampled them.

`train(config_path=…)` does it all: episodes, a step, new weights for the engine, again. The losses, the packing and the
backbones are packages of their own below this one; torch is loaded by those that compute.
"""

from typing import TYPE_CHECKING

from agentflow.learner._rows import Row
from agentflow.learner._samples import Sample
from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.learner._api import Reward, atrain, train
    from agentflow.learner._backbone import Backbone
    from agentflow.learner._checkpoints import Checkpoints
    from agentflow.learner._config import TrainConfig, load_train_config
    from agentflow.learner._groups import Batch, Group, Played
    from agentflow.learner._progress import TrainStatus
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
    "TrainStatus",
    "atrain",
    "load_train_config",
    "train",
]


# Settings and rows load neither rollouts nor servers.
__getattr__ = lazy_exports(
    __name__,
    {
        "._api": ["Reward", "atrain", "train"],
        "._backbone": ["Backbone"],
        "._checkpoints": ["Checkpoints"],
        "._config": ["TrainConfig", "load_train_config"],
        "._groups": ["Batch", "Group", "Played"],
        "._progress": ["TrainStatus"],
        "._run": ["Outcome", "TrainRun"],
    },
)
