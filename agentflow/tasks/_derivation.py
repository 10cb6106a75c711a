"""Parts that all kinds of derived tasks share: settings, journalled model calls, and instructions."""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from agentflow.journal import Page
from agentflow.questions import Recalled, RecallRequest
from agentflow.tasks._contract import RejectedTask, TaskFinding, TaskProblem, VerifiableTask
from agentflow.text import contains_phrase, tokens, word_count
from agentflow.trace import (
    Example,
    IndependentSolution,
    IndependentSolutionRequest,
    InstructionRequest,
    ProposedSolutions,
    Reply,
    SolutionsRequest,
    TaskInstruction,
    TaskTable,
    Tree,
    Usage,
)

T = TypeVar("T")

MAX_INSTRUCTIONS: Final = 2
"""Maximum number of instructions written for a solution; the second one gets the reason of the first one's rejection."""
_NOT_OF_WORDS: Final = (TaskProblem.ELSEWHERE, TaskProblem.CLOSED_BOOK)
"""Problems that other words do not solve."""
_MAX_WORDS: Final = 85
_MIN_ANSWER: Final = 3
"""Shortest answer that is searched in an instruction: single digits occur by chance."""
_GUESSES: Final = 2
_FENCE: Final = re.compile(r"```[\w+-]*\n(.*?)```", re.DOTALL)


class TaskAuthor(Protocol):
    """Write solutions and instructions, and solve again. A failed call is a reply, not an exception."""

    async def propose(self, request: SolutionsRequest) -> Reply[ProposedSolutions]:
        """Propose queries or programs from which tasks are made."""
        ...

    async def instruct(self, request: InstructionRequest) -> Reply[TaskInstruction]:
        """Write the instruction that a solution answers."""
        ...

    async def solve_again(self, request: IndependentSolutionRequest) -> Reply[IndependentSolution]:
        """Solve an instruction without its solution."""
        ...


class ClosedBook(Protocol):
    """Role that answers from its own knowledge."""

    async def recall(self, request: RecallRequest) -> Reply[Recalled]:
        """Answer from the model's own knowledge."""
        ...


class TaskRoles(Protocol):
    """The roles that write tasks and answer without data, such as a team."""

    @property
    def generator(self) -> TaskAuthor:
        """Writes solutions and instructions."""
        ...

    @property
    def reader(self) -> ClosedBook:
        """Answers from memory."""
        ...


class DerivationSettings(Struct, frozen=True, kw_only=True):
    """Settings of derived tasks."""

    max_tasks: int = 3
    """Maximum number of tasks per tree and kind."""
    samples: int = 2
    """Number of independent solutions that must agree; after a disagreement one more decides."""
    tips: str = ""
    """The user's guidance for questions."""
    seed_description: str = ""
    """Description of the seeds."""
    examples: tuple[Example, ...] = ()
    """Examples of the wanted style."""


class TaskCalls:
    """Model calls for the tasks of one kind in one tree, each made once and counted."""

    def __init__(self, page: Page, kind: str) -> None:
        self.usage = Usage()
        """Their usage."""
        self._page = page
        self._kind = kind

    async def ask(self, key: str, reply: type[Reply[T]], call: Callable[[], Awaitable[Reply[T]]]) -> Reply[T]:
        """Return the recorded reply, or make the call and record it."""
        answered = await self._page.once(f"task/{self._kind}/{key}", reply, call)
        self.usage += answered.usage
        return answered

    async def once(self, key: str, kind: type[T], make: Callable[[], Awaitable[T]]) -> T:
        """Return the recorded result of another effect, or record it."""
        return await self._page.once(f"task/{self._kind}/{key}", kind, make)


Earlier: TypeAlias = tuple[tuple[str, str], ...]
"""Rejected instructions of a solution, each with the reason."""


class CandidateSolution(Struct, frozen=True):
    """A query or program that may become a task."""

    text: str
    """The query or program."""
    node: str = ""
    """Id of the node that ran it; empty for a proposed one."""


class TaskWriter:
    """Collects the tasks of one tree and kind, and the rejected candidates."""

    def __init__(self, kind: str, tree: Tree, calls: TaskCalls, settings: DerivationSettings) -> None:
        self.tasks: list[VerifiableTask] = []
        """Tasks, not yet checked."""
        self.rejected: list[RejectedTask] = []
        """Rejected candidates."""
        self.calls = calls
        """Journalled calls."""
        self.settings = settings
        """Settings."""
        self.tree = tree
        """The tree."""
        self._kind = kind

    @property
    def missing(self) -> int:
        """Number of tasks that are missing."""
        return self.settings.max_tasks - len(self.tasks)

    def reject(self, problem: TaskProblem | TaskFinding, reason: str = "", *, solution: str = "") -> None:
        """Add a candidate that was rejected before it had an instruction."""
        self.rejected.append(rejected(self._kind, problem, reason, solution=solution))

    async def propose(
        self,
        author: TaskAuthor,
        *,
        language: str,
        tables: tuple[TaskTable, ...],
        known: Iterable[str],
    ) -> list[str]:
        """Return solutions that the author proposes and that are not known."""
        explored = tuple(dict.fromkeys(known))
        request = SolutionsRequest(
            kind=self._kind,
            language=language,
            seed=self.tree.seed.content,
            seed_description=self.settings.seed_description,
            tips=self.settings.tips,
            tables=tables,
            known=explored,
            count=self.missing + 1,
        )
        reply = await self.calls.ask("propose", Reply[ProposedSolutions], partial(author.propose, request))
        if reply.value is None:
            self.reject(TaskProblem.MODEL_FAILED, failure_reason(reply))
            return []
        proposed = dict.fromkeys(without_fence(solution).rstrip("; \n") for solution in reply.value.solutions)
        return [solution for solution in proposed if solution and solution not in explored]

    async def instruct(
        self, key: str, write: Callable[[Earlier, str], Awaitable[VerifiableTask | RejectedTask]]
    ) -> bool:
        """Write instructions for a solution until one is accepted; tell whether one was.

        :param key: key of the solution on the page.
        :param write: makes the task, given the instructions rejected before and a key.
        """
        earlier: Earlier = ()
        for number in range(1, MAX_INSTRUCTIONS + 1):
            written = await write(earlier, f"{key}/{number}")
            if isinstance(written, VerifiableTask):
                self.tasks.append(written)
                return True
            self.rejected.append(written)
            if not written.instruction or written.findings[0].problem in _NOT_OF_WORDS:
                return False
            earlier = (*earlier, (written.instruction, written.findings[0].reason))
        return False


def failure_reason(reply: Reply[Any]) -> str:
    """Return the reason of a reply without a value."""
    return "no answer" if reply.failure is None else reply.failure.message


class IndependentVote(Struct, frozen=True):
    """Agreement of independent solutions with the gold solution."""

    agreed: int
    """Number of solutions with the same result."""
    samples: int
    """Number of solutions."""
    reason: str = ""
    """Difference of the last one that did not agree."""

    @property
    def accepted(self) -> bool:
        """At least two agree, and more than disagree."""
        return self.agreed >= 2 and self.agreed > self.samples - self.agreed


async def vote(
    calls: TaskCalls,
    generator: TaskAuthor,
    request: IndependentSolutionRequest,
    differs: Callable[[str], Awaitable[str]],
    *,
    samples: int,
    key: str,
) -> IndependentVote:
    """Solve an instruction again and compare; after a disagreement one more solution decides.

    :param differs: returns the difference of a solution's result from the gold one, or an empty text.
    :param key: key of the instruction on the page.
    """

    async def difference(number: int) -> str:
        numbered_request = IndependentSolutionRequest(
            kind=request.kind,
            language=request.language,
            instruction=request.instruction,
            tables=request.tables,
            sample=number,
        )
        reply = await calls.ask(
            f"{key}/solve/{number}",
            Reply[IndependentSolution],
            partial(generator.solve_again, numbered_request),
        )
        solution = "" if reply.value is None else without_fence(reply.value.solution)
        if not solution:
            return "an independent solution is empty"
        return await calls.once(f"{key}/differs/{number}", str, partial(differs, solution))

    return await count_votes(difference, samples)


async def count_votes(difference: Callable[[int], Awaitable[str]], samples: int) -> IndependentVote:
    """Count the samples that agree; after a disagreement one more decides.

    :param difference: returns the difference of a sample, by its number from 1, or an empty text.
    """
    agreed, reason, number = 0, "", 0
    while number < samples or (number == samples and 0 < agreed < samples):
        number += 1
        if differs := await difference(number):
            reason = differs
        else:
            agreed += 1
    return IndependentVote(agreed, number, reason)


async def closed_book_guesses(calls: TaskCalls, reader: ClosedBook, question: str, key: str) -> list[str]:
    """Return the answers of a model that sees nothing but the question."""
    guesses: list[str] = []
    for number in range(1, _GUESSES + 1):
        request = RecallRequest(question=question, sample=number - 1)
        reply = await calls.ask(f"{key}/closed/{number}", Reply[Recalled], partial(reader.recall, request))
        if reply.value is not None and reply.value.answer.strip():
            guesses.append(reply.value.answer.strip())
    return list(dict.fromkeys(guesses))


def instruction_problem(instruction: str, solution: str, answers: Sequence[str]) -> TaskFinding | None:
    """Return the reason that an instruction can't be used, judging by its words.

    :param answers: texts that give the answer away.
    """
    words = word_count(instruction)
    if words < 3:
        return TaskFinding(TaskProblem.BAD_INSTRUCTION, "the instruction has fewer than three words")
    if words > _MAX_WORDS:
        return TaskFinding(
            TaskProblem.BAD_INSTRUCTION, f"the instruction has {words:.0f} words: at most {_MAX_WORDS}"
        )
    instruction_words, program = " ".join(tokens(instruction)), " ".join(tokens(solution))
    if program and program in instruction_words:
        return TaskFinding(TaskProblem.LEAK, "the instruction contains its solution")
    for answer in answers:
        if len(answer) >= _MIN_ANSWER and contains_phrase(instruction, answer):
            return TaskFinding(TaskProblem.LEAK, f"the instruction contains its answer, {answer[:80]}")
    return None


def without_fence(text: str) -> str:
    """Return the code in a Markdown block, or the text without a block.

    >>> without_fence("```sql\\nSELECT 1\\n```")
    'SELECT 1'
    """
    match = _FENCE.search(text)
    return (match[1] if match else text).strip()


def rejected(
    kind: str, problem: TaskProblem | TaskFinding, reason: str = "", *, solution: str, instruction: str = ""
) -> RejectedTask:
    """Return a rejected candidate."""
    finding = problem if isinstance(problem, TaskFinding) else TaskFinding(problem, reason)
    return RejectedTask(kind=kind, instruction=instruction, solution=solution, findings=(finding,))
