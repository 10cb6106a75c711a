"""The generator that synthesis needs, and all roles behind the pause gate."""

from dataclasses import dataclass
from typing import Protocol

from agentflow.growth import ExecutorPort, PlannerPort, VerifierPort
from agentflow.runs import PauseGate
from agentflow.sandbox import Sandbox
from agentflow.tasks import InstructionAuthor
from agentflow.trajectory import (
    Action,
    ActionOutcome,
    Answer,
    AnswerRequest,
    Draft,
    InstructionRequest,
    Judgement,
    JudgementRequest,
    Look,
    LookRequest,
    Plan,
    PlanRequest,
    Reply,
    TaskInstruction,
    WriteRequest,
)


class QuestionGenerator(Protocol):
    """Write questions with their answers, and answer questions. A failed call is a reply, not an exception."""

    async def write(self, request: WriteRequest) -> Reply[Draft]:
        """Write a question that needs the evidence, with its answer."""
        ...

    async def look(self, request: LookRequest) -> Reply[Look]:
        """Check that a picture shows what is claimed."""
        ...

    async def answer(self, request: AnswerRequest) -> Reply[Answer]:
        """Answer from the model's own knowledge; empty if it does not know."""
        ...


@dataclass(frozen=True, kw_only=True)
class GatedRoles:
    """All roles, each effect behind the pause gate."""

    gate: PauseGate
    planner: PlannerPort
    executor: ExecutorPort
    verifier: VerifierPort
    generator: QuestionGenerator
    author: InstructionAuthor

    async def plan(self, request: PlanRequest) -> Reply[Plan]:
        """See `PlannerPort`."""
        return await self.gate.run(self.planner.plan, request)

    async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        """See `ExecutorPort`."""
        return await self.gate.run(self.executor.act, sandbox, action)

    def by_rule(self, request: JudgementRequest) -> Judgement | None:
        """See `VerifierPort`. It has no effect and passes the gate."""
        return self.verifier.by_rule(request)

    async def judge(self, request: JudgementRequest) -> Reply[Judgement]:
        """See `VerifierPort`."""
        return await self.gate.run(self.verifier.judge, request)

    async def write(self, request: WriteRequest) -> Reply[Draft]:
        """See `QuestionGenerator`."""
        return await self.gate.run(self.generator.write, request)

    async def look(self, request: LookRequest) -> Reply[Look]:
        """See `QuestionGenerator`."""
        return await self.gate.run(self.generator.look, request)

    async def answer(self, request: AnswerRequest) -> Reply[Answer]:
        """See `QuestionGenerator`."""
        return await self.gate.run(self.generator.answer, request)

    async def instruct(self, request: InstructionRequest) -> Reply[TaskInstruction]:
        """See `InstructionAuthor`."""
        return await self.gate.run(self.author.instruct, request)
