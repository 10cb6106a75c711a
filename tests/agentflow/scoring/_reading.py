"""Episodes that read documents with real tools: a team or a single agent that makes given calls."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from agentflow.engine import EpisodeEngine, EpisodeSettings
from agentflow.journal import Page
from agentflow.models import Call, Completion, ToolCall
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.team import TeamAgent, ToolAgent
from agentflow.trace import (
    Action,
    Command,
    CommandRequest,
    Episode,
    MemoryBlobStore,
    NextStep,
    NextStepRequest,
    Task,
    Usage,
)
from tests.agentflow.team._model import team
from tests.agentflow.team._solving import Book, Script

T = TypeVar("T")


def get(id: str, **more: object) -> Action:
    """Read a document."""
    return Action("rag_get", {"id": id, **more})


def search(query: str, top_k: int = 5) -> Action:
    """Search the documents."""
    return Action("rag_search", {"query": query, "top_k": top_k})


def task_with(documents: object) -> Task:
    """Return a task with this field `documents`."""
    metadata = {} if documents is None else {"documents": documents}
    return Task(
        index=0, id="t1", question="When was Needle Light built?", references=("1834",), metadata=metadata
    )


class CallingModel:
    """A single agent's model that makes given calls, one a turn, and then answers."""

    name, vision = "calling", False

    def __init__(self, actions: Sequence[Action]) -> None:
        self._actions = list(actions)

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Return the next call, or the answer."""
        del call
        actions, self._actions = self._actions[:1], self._actions[1:]
        calls = tuple(ToolCall("c1", action.tool, action.arguments) for action in actions)
        text = "" if calls else "1834, as morning-toll and kelder-bridge say"
        return Completion(
            value=cast("T", text), text=text, usage=Usage(1, 1, 1), model=self.name, calls=calls
        )


async def episode_of(
    actions: Sequence[Action],
    documents: object,
    *,
    agent: str = "team",
    corpus: Mapping[str, str] | None = None,
    folder: Path | None = None,
    page: Page | None = None,
    backends: dict[str, Any] | None = None,
    **settings: object,
) -> Episode:
    """Run an episode that makes these calls, on the bundled documents, on others by their ids, or with other backends."""
    rag: dict[str, Any] = {}
    if corpus is not None and folder is not None:
        path = folder / "documents.jsonl"
        rows = ({"id": id, "title": id.title(), "text": text} for id, text in corpus.items())
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        rag = {"index_path": str(path), "index_dir": str(folder / "index")}

    def next_step(request: NextStepRequest) -> NextStep:
        number = len(request.memory.turns)
        return NextStep("", str(number), "", actions[number].tool)

    def command(request: CommandRequest) -> Command:
        return Command("", actions[int(request.step.context)].arguments)

    script = Script(turns=len(actions), next=next_step, command=command)
    chosen = SandboxSettings(backends=backends or {"rag": rag})
    async with Sandbox(chosen) as sandbox, team(script) as (members, _):
        engine = EpisodeEngine(
            agent=TeamAgent(members)
            if agent == "team"
            else ToolAgent(CallingModel(actions), MemoryBlobStore()),
            tools=await sandbox.tools(sorted({action.tool for action in actions})),
            settings=EpisodeSettings.model_validate({"max_turns": len(actions) + 1, **settings}),
        )
        return await engine.solve(task_with(documents), sandbox, page or Book().open())
