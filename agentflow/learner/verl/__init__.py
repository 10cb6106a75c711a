"""verl as a backbone: our team produces, verl trains, in an environment and processes of its own."""

from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.learner.verl._backbone import VerlBackbone
    from agentflow.learner.verl._process import VerlFailure
    from agentflow.learner.verl._settings import VerlSettings

__all__ = ["VerlBackbone", "VerlFailure", "VerlSettings"]


# Inside verl's environment half of these modules cannot be imported.
__getattr__ = lazy_exports(
    __name__,
    {
        "._backbone": ["VerlBackbone"],
        "._process": ["VerlFailure"],
        "._settings": ["VerlSettings"],
    },
)
