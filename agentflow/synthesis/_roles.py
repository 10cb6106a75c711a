"""All roles of a synthesis behind the pause gate."""

from dataclasses import dataclass
from typing import Protocol

from agentflow.growth import ExecutorPort, PlannerPort, VerifierPort
from agentflow.questions import (
    HiddenAnswer,
    HiddenRequest,
    ImageFacts,
    ImageFactsRequest,
    OtherAnswers,
    OthersRequest,
    ProposalRequest,
    QuestionProposal,
    QuestionReader,
    QuestionWriter,
    ReadingRequest,
    Readings,
    Recalled,
    RecallRequest,
    RepairedDrafts,
    RepairRequest,
)
from agentflow.runs import PauseGate
from agentflow.sandbox import Sandbox
from agentflow.tasks import TaskAuthor
from agentflow.trace import (
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


class QuestionGenerator(QuestionWriter, Protocol):
    """Role that writes questions and lists the facts of images."""

    async def list_image_facts(self, request: ImageFactsRequest) -> Reply[ImageFacts]:
        """List the facts that an image shows."""
        ...


@dataclass(frozen=True, kw_only=True)
class GatedRoles:
    """All roles, each effect behind the pause gate."""

    gate: PauseGate
    planner: PlannerPort
    executor: ExecutorPort
    verifier: VerifierPort
    writer: "QuestionGenerator"
    reader: QuestionReader
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

    async def propose_questions(self, request: ProposalRequest) -> Reply[QuestionProposal]:
        """See `QuestionWriter`."""
        return await self.gate.run(self.writer.propose_questions, request)

    async def repair_questions(self, request: RepairRequest) -> Reply[RepairedDrafts]:
        """See `QuestionWriter`."""
        return await self.gate.run(self.writer.repair_questions, request)

    async def look(self, request: LookRequest) -> Reply[Look]:
        """See `QuestionWriter`."""
        return await self.gate.run(self.writer.look, request)

    async def list_image_facts(self, request: ImageFactsRequest) -> Reply[ImageFacts]:
        """See `PictureRoles`."""
        return await self.gate.run(self.writer.list_image_facts, request)

    async def read_hidden(self, request: HiddenRequest) -> Reply[HiddenAnswer]:
        """See `QuestionReader`."""
        return await self.gate.run(self.reader.read_hidden, request)

    async def read_all(self, request: ReadingRequest) -> Reply[Readings]:
        """See `QuestionReader`."""
        return await self.gate.run(self.reader.read_all, request)

    async def find_others(self, request: OthersRequest) -> Reply[OtherAnswers]:
        """See `QuestionReader`."""
        return await self.gate.run(self.reader.find_others, request)

    async def recall(self, request: RecallRequest) -> Reply[Recalled]:
        """See `QuestionReader`."""
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
