"""Verifiers of tasks with an answer: a query, a program, or a value. None of them uses the agent's session."""

from agentflow.errors import ToolFailure
from agentflow.sandbox import Sandbox
from agentflow.tasks._contract import TaskAttempt, TaskRelation, VerifiableTask
from agentflow.tasks._data_programs import DataPrograms
from agentflow.tasks._derivation import without_fence
from agentflow.tasks._printed_values import answer_verdict
from agentflow.tasks._sql_copies import SqlCopies
from agentflow.tasks._sql_mistakes import same_rows
from agentflow.trace import TaskVerdict


class QueryVerifier:
    """Verifies queries on a database and on its perturbed copies."""

    name = "text2sql"
    """Name of the kind."""

    def __init__(self, copies: SqlCopies) -> None:
        self._copies = copies

    async def verify(
        self, task: VerifiableTask, attempt: TaskAttempt, session: Sandbox | None = None
    ) -> TaskVerdict:
        """Run the answer of an attempt on the database and on each copy; the session is not needed."""
        query = without_fence(attempt.answer).rstrip("; \n")
        if not query:
            return TaskVerdict(passed=False, reasons=("there is no query",))
        database = task.setup.kwargs["database"]
        for predicate in task.verifier:
            changes = [str(action.arguments["query"]) for action in predicate.probe]
            result = await self._copies.run(database, query, changes)
            if result.unavailable:
                return TaskVerdict(passed=False, error=result.error)
            if result.error:
                return TaskVerdict(passed=False, reasons=(f"{predicate.says}: {result.error}",))
            ordered = predicate.relation is TaskRelation.SAME_ORDERED_ROWS
            if not same_rows(predicate.expected, result.rows, ordered=ordered):
                return TaskVerdict(passed=False, reasons=(predicate.says,))
        return TaskVerdict(passed=True)


class ProgramVerifier:
    """Verifies values that programs compute from data files."""

    name = "data_analysis"
    """Name of the kind."""

    def __init__(self, programs: DataPrograms) -> None:
        self._programs = programs

    async def verify(
        self, task: VerifiableTask, attempt: TaskAttempt, session: Sandbox | None = None
    ) -> TaskVerdict:
        """Compare the answer of an attempt, or what its program prints; the session is not needed."""
        answer = attempt.answer
        if not answer and attempt.actions:
            source = str(attempt.actions[-1].arguments.get("code", ""))
            try:
                (ran,) = await self._programs.run(source, task.metadata["folder"], 0)
            except ToolFailure as failure:
                return TaskVerdict(passed=False, error=failure.message)
            if ran.error:
                return TaskVerdict(passed=False, reasons=(f"the program fails: {ran.error}",))
            answer = ran.output
        return answer_verdict(task, answer)


class AnswerVerifier:
    """Verifies values that pictures of documents show."""

    name = "document"
    """Name of the kind."""

    async def verify(
        self, task: VerifiableTask, attempt: TaskAttempt, session: Sandbox | None = None
    ) -> TaskVerdict:
        """Compare the answer of an attempt; the session is not needed."""
        return answer_verdict(task, attempt.answer)
