"""The roles that synthesis needs besides those of growing, and all roles behind the pause gate."""

from dataclasses import dataclass
from typing import Protocol

from agentflow.facts import (
    AliasJudgement,
    AliasRequest,
    ClosedBookRequest,
    EvidenceAnswer,
    EvidenceRequest,
    Extraction,
    ExtractionRequest,
    Translation,
    TranslationRequest,
    Wording,
    WordingRequest,
)
from agentflow.growth import ExecutorPort, PlannerPort, VerifierPort
from agentflow.runs import PauseGate
from agentflow.sandbox import Sandbox
from agentflow.tasks import TaskAuthor
from agentflow.trajectory import (
    Action,
    ActionOutcome,
    IndependentSolution,
    IndependentSolutionRequest,
    InstructionRequest,
    Judgement,
    JudgementRequest,
    Look,
    LookRequest,
    Plan,
    PlanRequest,
    ProposedSolutions,
    Reply,
    SolutionsRequest,
    TaskInstruction,
)


class GeneratorPort(Protocol):
    """Role that extracts facts and writes questions. A failed call is a failed reply."""

    async def extract(self, request: ExtractionRequest) -> Reply[Extraction]:
        """Extract the facts of a chunk of an observation."""
        ...

    async def compare_names(self, request: AliasRequest) -> Reply[AliasJudgement]:
        """Judge which names mean the same thing."""
        ...

    async def word(self, request: WordingRequest) -> Reply[Wording]:
        """Write the words of a question."""
        ...

    async def look(self, request: LookRequest) -> Reply[Look]:
        """Check that an image shows what is claimed."""
        ...


class ReaderPort(Protocol):
    """Role that checks questions and never sees a proposed answer. A failed call is a failed reply."""

    async def translate(self, request: TranslationRequest) -> Reply[Translation]:
        """Translate a question into a program."""
        ...

    async def read(self, request: EvidenceRequest) -> Reply[EvidenceAnswer]:
        """Answer a question from passages."""
        ...

    async def recall(self, request: ClosedBookRequest) -> Reply[EvidenceAnswer]:
        """Answer a question from the model's own knowledge."""
        ...


class QuestionRoles(GeneratorPort, ReaderPort, Protocol):
    """Both roles as one object."""


@dataclass(frozen=True, kw_only=True)
class GatedRoles:
    """All roles, each effect behind the pause gate."""

    gate: PauseGate
    planner: PlannerPort
    executor: ExecutorPort
    verifier: VerifierPort
    generator: GeneratorPort
    reader: ReaderPort
    author: TaskAuthor

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

    async def extract(self, request: ExtractionRequest) -> Reply[Extraction]:
        """See `GeneratorPort`."""
        return await self.gate.run(self.generator.extract, request)

    async def compare_names(self, request: AliasRequest) -> Reply[AliasJudgement]:
        """See `GeneratorPort`."""
        return await self.gate.run(self.generator.compare_names, request)

    async def word(self, request: WordingRequest) -> Reply[Wording]:
        """See `GeneratorPort`."""
        return await self.gate.run(self.generator.word, request)

    async def look(self, request: LookRequest) -> Reply[Look]:
        """See `GeneratorPort`."""
        return await self.gate.run(self.generator.look, request)

    async def translate(self, request: TranslationRequest) -> Reply[Translation]:
        """See `ReaderPort`."""
        return await self.gate.run(self.reader.translate, request)

    async def read(self, request: EvidenceRequest) -> Reply[EvidenceAnswer]:
        """See `ReaderPort`."""
        return await self.gate.run(self.reader.read, request)

    async def recall(self, request: ClosedBookRequest) -> Reply[EvidenceAnswer]:
        """See `ReaderPort`."""
        return await self.gate.run(self.reader.recall, request)

    async def instruct(self, request: InstructionRequest) -> Reply[TaskInstruction]:
        """See `TaskAuthor`."""
        return await self.gate.run(self.author.instruct, request)

    async def propose(self, request: SolutionsRequest) -> Reply[ProposedSolutions]:
        """See `TaskAuthor`."""
        return await self.gate.run(self.author.propose, request)

    async def solve_again(self, request: IndependentSolutionRequest) -> Reply[IndependentSolution]:
        """See `TaskAuthor`."""
        return await self.gate.run(self.author.solve_again, request)
