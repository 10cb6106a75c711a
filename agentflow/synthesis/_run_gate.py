"""The gate that all effects go through: a run is paused and stopped between them."""

from agentflow.growth import Executor, Planner, Verifier
from agentflow.runs import Gate
from agentflow.sandbox import Sandbox
from agentflow.synthesis._ports import Generator
from agentflow.trajectory import (
    Action,
    Answer,
    AnswerRequest,
    Draft,
    Judgement,
    JudgementRequest,
    Look,
    LookRequest,
    Outcome,
    Plan,
    PlanRequest,
    Reply,
    WriteRequest,
)

__all__ = ["Gated"]


class Gated:
    """All roles, behind the gate."""

    def __init__(
        self, gate: Gate, *, planner: Planner, executor: Executor, verifier: Verifier, generator: Generator
    ) -> None:
        self._gate = gate
        self._planner = planner
        self._executor = executor
        self._verifier = verifier
        self._generator = generator

    async def plan(self, request: PlanRequest) -> Reply[Plan]:
        """See `Planner`."""
        return await self._gate.through(self._planner.plan, request)

    async def act(self, sandbox: Sandbox, action: Action) -> Outcome:
        """See `Executor`."""

        async def act(action: Action) -> Outcome:
            return await self._executor.act(sandbox, action)

        return await self._gate.through(act, action)

    def by_rule(self, request: JudgementRequest) -> Judgement | None:
        """See `Verifier`. It is no effect."""
        return self._verifier.by_rule(request)

    async def judge(self, request: JudgementRequest) -> Reply[Judgement]:
        """See `Verifier`."""
        return await self._gate.through(self._verifier.judge, request)

    async def write(self, request: WriteRequest) -> Reply[Draft]:
        """See `Generator`."""
        return await self._gate.through(self._generator.write, request)

    async def look(self, request: LookRequest) -> Reply[Look]:
        """See `Generator`."""
        return await self._gate.through(self._generator.look, request)

    async def answer(self, request: AnswerRequest) -> Reply[Answer]:
        """See `Generator`."""
        return await self._gate.through(self._generator.answer, request)
