"""Generators of tasks for tests: scripted ones, and one that others answer for."""

from agentflow.questions import Recalled, RecallRequest
from agentflow.trace import (
    Failure,
    IndependentSolution,
    IndependentSolutionRequest,
    InstructionRequest,
    ProposedSolutions,
    Reply,
    SolutionsRequest,
    TaskInstruction,
    Usage,
)
from tests.agentflow.tasks._shop import OfflineTasks


class Scripted(OfflineTasks):
    """Generator with one solution, its question, and the solutions of those who solve it again."""

    def __init__(
        self,
        solution: str,
        question: str | Failure,
        again: tuple[str, ...] | None = None,
        *,
        ordered: bool = False,
        knows: str = "",
    ) -> None:
        super().__init__(knows=knows)
        self._solution = solution
        self._question = question
        self._again = (solution,) if again is None else again
        self._ordered = ordered

    async def propose(self, request: SolutionsRequest) -> Reply[ProposedSolutions]:
        """Propose the solution."""
        self.requests.append(request)
        return Reply(ProposedSolutions((f"```\n{self._solution}\n```",)), usage=Usage(1, 10, 1))

    async def instruct(self, request: InstructionRequest) -> Reply[TaskInstruction]:
        """Return the question."""
        self.requests.append(request)
        if isinstance(self._question, Failure):
            return Reply(failure=self._question)
        return Reply(TaskInstruction(self._question, self._ordered), usage=Usage(1, 10, 1))

    async def solve_again(self, request: IndependentSolutionRequest) -> Reply[IndependentSolution]:
        """Return the next solution; the last one is repeated."""
        self.requests.append(request)
        solution = self._again[min(request.sample, len(self._again)) - 1]
        return Reply(IndependentSolution(solution), usage=Usage(1, 10, 1))


class Current(OfflineTasks):
    """Generator that another one answers for, so that many of them share an environment."""

    def __init__(self) -> None:
        super().__init__()
        self.answering: OfflineTasks = self

    async def propose(self, request: SolutionsRequest) -> Reply[ProposedSolutions]:
        """Propose solutions."""
        return await self.answering.propose(request)

    async def instruct(self, request: InstructionRequest) -> Reply[TaskInstruction]:
        """Write an instruction."""
        return await self.answering.instruct(request)

    async def solve_again(self, request: IndependentSolutionRequest) -> Reply[IndependentSolution]:
        """Solve an instruction."""
        return await self.answering.solve_again(request)

    async def recall(self, request: RecallRequest) -> Reply[Recalled]:
        """Answer without data."""
        return await self.answering.recall(request)
