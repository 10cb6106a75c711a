"""The gate that all effects go through: a run is paused and stopped between them."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from agentflow.growth import Executor, Planner, Verifier
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

__all__ = ["Gate", "Gated"]

A = TypeVar("A")
B = TypeVar("B")


class Gate:
    """Lets effects through, or makes them wait. What is through is never disturbed."""

    def __init__(self) -> None:
        self.in_flight = 0
        """Effects that are through and have not ended."""
        self._opened: anyio.Event | None = None
        self._still: anyio.Event | None = None

    @property
    def is_shut(self) -> bool:
        """New effects wait."""
        return self._opened is not None

    def shut(self) -> None:
        """Make new effects wait."""
        self._opened = self._opened or anyio.Event()

    def open(self) -> None:
        """Let them through again."""
        if self._opened is not None:
            self._opened.set()
            self._opened = None

    async def still(self) -> None:
        """Wait until nothing is in flight."""
        while self.in_flight:
            self._still = self._still or anyio.Event()
            await self._still.wait()

    async def through(self, effect: Callable[[A], Awaitable[B]], about: A) -> B:
        """Wait until it is open, then have the effect."""
        while self._opened is not None:
            await self._opened.wait()
        self.in_flight += 1
        try:
            return await effect(about)
        finally:
            self.in_flight -= 1
            if not self.in_flight and self._still is not None:
                self._still.set()
                self._still = None


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
