"""A language model that is a function, and requests to ask it."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar, cast

import msgspec

from agentflow.actors import Supervisor
from agentflow.models import Call, Completion
from agentflow.team import Team, Verify
from agentflow.trace import Action, Blob, Failure, MemoryBlobStore, Node, PlanRequest, ToolCard, Usage
from tests.agentflow.trace._steps import seen_step

T = TypeVar("T")

SEARCH = ToolCard(
    "rag_search",
    "Search the documents.",
    {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "default": 5}},
        "required": ["query"],
    },
)


class FunctionModel:
    """Answers with what a function makes of the call; keeps the calls."""

    def __init__(self, answer: Callable[[Call[object]], object], *, vision: bool = False) -> None:
        self.name = "function"
        self.vision = vision
        self.calls: list[Call[object]] = []
        self._answer = answer

    async def complete(self, call: Call[T]) -> Completion[T]:
        self.calls.append(cast("Call[object]", call))
        value = self._answer(cast("Call[object]", call))
        text = msgspec.json.encode(value).decode()
        return Completion(value=cast("T", value), text=text, usage=Usage(1, 100, 10), model=self.name)


def unasked(call: Call[object]) -> object:
    """Fail: the model must not be asked."""
    raise AssertionError(f"{call.role} asked a model")


@asynccontextmanager
async def team(
    answer: Callable[[Call[object]], object] = unasked,
    *,
    vision: bool = False,
    verify: Verify = "rule",
    blobs: MemoryBlobStore | None = None,
    workers: int = 4,
) -> AsyncGenerator[tuple[Team, FunctionModel]]:
    """A running team whose roles share one model."""
    model = FunctionModel(answer, vision=vision)
    models = {"planner": model, "generator": model, "verifier": model}
    members = Team(models, blobs=blobs, verify=verify, workers=workers)
    async with Supervisor(members.specs(), name="team"):
        yield members, model


def step(
    observation: str,
    *,
    intent: str = "look it up",
    query: str = "it",
    images: tuple[Blob, ...] = (),
    failure: Failure | None = None,
    trouble: str = "",
) -> Node:
    """Step made by a search."""
    action = Action("rag_search", {"query": query})
    return seen_step(intent, action, observation, images=images, failure=failure, trouble=trouble)


def plan_request(*path: Node, count: int = 2, tools: tuple[ToolCard, ...] = (SEARCH,)) -> PlanRequest:
    """Request for the next actions after a path."""
    return PlanRequest(seed="Explore the Kestrel Observatory.", tools=tools, path=path, count=count)
