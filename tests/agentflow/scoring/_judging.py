"""A judge that is a function, and tasks to judge."""

from collections.abc import Callable
from typing import TypeVar, cast

import anyio

from agentflow.models import Call, Completion, TextPart
from agentflow.trace import Task, Usage

T = TypeVar("T")


class FunctionModel:
    """Answers with what a function makes of the prompt's last part; keeps the calls."""

    vision = False

    def __init__(self, answer: Callable[[str], object], name: str = "function") -> None:
        self.name = name
        self.calls: list[Call[object]] = []
        self._answer = answer

    async def complete(self, call: Call[T]) -> Completion[T]:
        self.calls.append(cast("Call[object]", call))
        # As with a real one, others have their turn meanwhile.
        await anyio.lowlevel.checkpoint()
        value = cast("T", self._answer(said(cast("Call[object]", call))))
        return Completion(value=value, text="", usage=Usage(1, 100, 10), model=self.name)


def said(call: Call[object]) -> str:
    """The last message of a call."""
    return "".join(part.text for part in call.messages[-1].parts if isinstance(part, TextPart))


def task(*references: str, question: str = "Which city?", **metadata: object) -> Task:
    """A task with these right answers."""
    return Task(index=0, id="t0", question=question, references=references, metadata=metadata)
