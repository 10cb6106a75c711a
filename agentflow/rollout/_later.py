"""A model that is opened after whoever uses it: tools are there before the journal, and the journal before models."""

from typing import TypeVar

from agentflow.models import Call, Completion, Model

__all__ = ["LaterModel"]

T = TypeVar("T")


class LaterModel:
    """Stands for a model until it is open."""

    def __init__(self, role: str) -> None:
        """Describe it.

        :param role: for whom it is.
        """
        self.engine: Model | None = None
        """The model, once it is open."""
        self._role = role

    @property
    def name(self) -> str:
        """What the model is called."""
        return self._role if self.engine is None else self.engine.name

    @property
    def sees(self) -> bool:
        """It takes pictures."""
        return self.engine is not None and self.engine.sees

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer one call."""
        assert self.engine is not None, f"the model of the {self._role} is used before it is open"
        return await self.engine.complete(call)
