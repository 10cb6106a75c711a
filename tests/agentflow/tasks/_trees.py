"""Trees grown by the offline engine in real sandboxes, and the tasks that are derived from them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentflow.engine import BranchSandboxes, Grower, GrowthSettings
from agentflow.journal import Page
from agentflow.offline import answer
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.tasks import StateReader, StateTasks, StateTaskSettings, VerifiableTask
from agentflow.team._executor import call_tool
from agentflow.trace import (
    Action,
    ActionOutcome,
    InstructionRequest,
    Judgement,
    JudgementRequest,
    MemoryBlobStore,
    PlanRequest,
    Reply,
    Seed,
    TaskInstruction,
    Tree,
    Verdict,
)


class OfflineRoles:
    """All roles, played by the offline engine; everything without an error is new."""

    def __init__(self) -> None:
        self.actions = 0
        """Number of tool calls."""
        self.instructions = 0
        """Number of instructions written."""
        self._blobs = MemoryBlobStore()

    async def plan(self, request: PlanRequest) -> Reply[Any]:
        """Propose actions."""
        return Reply(value=answer(request))

    async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        """Call a tool."""
        self.actions += 1
        return await call_tool(sandbox, action, self._blobs)

    def by_rule(self, request: JudgementRequest) -> Judgement:
        """Return `new` unless the call or its program failed."""
        return Judgement(Verdict.ERROR if request.step.error else Verdict.NEW)

    async def judge(self, request: JudgementRequest) -> Reply[Judgement]:
        """Judge by rule."""
        return Reply(value=self.by_rule(request))

    async def instruct(self, request: InstructionRequest) -> Reply[TaskInstruction]:
        """Write an instruction."""
        self.instructions += 1
        written = answer(request)
        assert isinstance(written, TaskInstruction)
        return Reply(value=written)


@dataclass(frozen=True)
class Workshop:
    """Grower and kind of tasks over one pool of sandboxes."""

    grower: Grower
    kind: StateTasks
    roles: OfflineRoles
    base: Sandbox

    async def grow(self, number: int, **kwargs: object) -> Tree:
        """Grow the tree of a numbered seed."""
        content = f"Keep the files of workshop {number} in order"
        return await self.grower.grow(
            Seed(index=number, id=f"seed_{number:03}", content=content, kwargs=kwargs), Page()
        )

    async def tasks(
        self, number: int, page: Page | None = None, **kwargs: object
    ) -> tuple[VerifiableTask, ...]:
        """Derive tasks from the tree of a numbered seed."""
        derived = await self.kind.derive(await self.grow(number, **kwargs), page or Page())
        assert not derived.rejected, derived.rejected
        return derived.tasks


@asynccontextmanager
async def workshop(
    reader: StateReader, settings: SandboxSettings, tools: list[str], growth: GrowthSettings, *, most: int = 3
) -> AsyncGenerator[Workshop]:
    """Yield a workshop with real sandboxes."""
    roles = OfflineRoles()
    async with Sandbox(settings) as base:
        pool = BranchSandboxes(base, await base.tools(tools))
        grower = Grower(growth, run="tests", planner=roles, executor=roles, verifier=roles, sandboxes=pool)
        chosen = StateTaskSettings(max_tasks=most, min_steps=2)
        yield Workshop(
            grower,
            StateTasks(reader, executor=roles, sandboxes=pool, author=roles, settings=chosen),
            roles,
            base,
        )
