"""What synthesis asks of the generator. The team fills it; tests fill it with plain functions."""

from typing import Protocol

from agentflow.trajectory import Answer, AnswerRequest, Draft, Look, LookRequest, Reply, WriteRequest

__all__ = ["Generator"]


class Generator(Protocol):
    """Writes questions with their answers, and answers questions."""

    async def write(self, request: WriteRequest) -> Reply[Draft]:
        """A question that needs the evidence, with its answer. A failed call is a reply."""
        ...

    async def look(self, request: LookRequest) -> Reply[Look]:
        """Whether a picture shows what is said of it. A failed call is a reply."""
        ...

    async def answer(self, request: AnswerRequest) -> Reply[Answer]:
        """The answer from what the model knows, empty if it does not. A failed call is a reply."""
        ...
