"""The Trinity backbone: rollouts by AgentFlow, training by Trinity-RFT in its own environment. See docs/trinity.md."""

from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.learner.trinity._backbone import TrinityBackbone, TrinityFailure
    from agentflow.learner.trinity._settings import TrinitySettings, unsupported_loss

__all__ = ["TrinityBackbone", "TrinityFailure", "TrinitySettings", "unsupported_loss"]


# Half of these modules can't be imported inside Trinity's environment.
__getattr__ = lazy_exports(
    __name__,
    {
        "._backbone": ["TrinityBackbone", "TrinityFailure"],
        "._settings": ["TrinitySettings", "unsupported_loss"],
    },
)
