"""Rollouts under their short name: `agentflow.rollout(...)` runs one, `from agentflow.rollout import score` scores an answer.

Everything here is in `agentflow.rollouts`. The module is callable, because `from agentflow import rollout` gives the
function and `agentflow.rollout.score` must work, too.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import agentflow.rollouts
from agentflow.rollouts import __all__ as __all__

if TYPE_CHECKING:
    from agentflow.rollouts import *  # noqa: F403 - the same names


class _CallableModule(ModuleType):
    """This module as a function."""

    def __call__(self, *arguments: Any, **named: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever `rollout` takes
        """See `agentflow.rollouts.rollout`."""
        return agentflow.rollouts.rollout(*arguments, **named)

    def __getattr__(self, name: str) -> object:
        return getattr(agentflow.rollouts, name)


sys.modules[__name__].__class__ = _CallableModule
