"""The verl backbone: rollouts by AgentFlow, training by verl in its own environment and processes. See docs/verl.md."""

from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.learner.verl._backbone import VerlBackbone, VerlFailure
    from agentflow.learner.verl._settings import VerlSettings

__all__ = ["VerlBackbone", "VerlFailure", "VerlSettings"]


# Half of these modules can't be imported inside verl's environment.
__getattr__ = lazy_exports(
    __name__,
    {
        "._backbone": ["VerlBackbone", "VerlFailure"],
        "._settings": ["VerlSettings"],
    },
)
