"""verl as a backbone: our team produces, verl trains, in an environment and processes of its own."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentflow.learner.verl._backbone import VerlBackbone
    from agentflow.learner.verl._process import VerlFailure
    from agentflow.learner.verl._settings import VerlSettings

__all__ = ["VerlBackbone", "VerlFailure", "VerlSettings"]

_HOMES = {"VerlBackbone": "_backbone", "VerlFailure": "_process", "VerlSettings": "_settings"}


def __getattr__(name: str) -> object:
    """Load a name's home when the name is first used: what runs inside verl finds half of it missing there."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
