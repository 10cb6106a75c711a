"""The generator: extracts facts, writes the words of questions, and answers tasks."""

from agentflow.errors import ModelFailureKind
from agentflow.facts import (
    AliasJudgement,
    AliasRequest,
    Extraction,
    ExtractionRequest,
    Wording,
    WordingRequest,
)
from agentflow.models import Model
from agentflow.team._messages import look_messages, solution_messages, summary_messages
from agentflow.team._model_calls import ReadBlob, answer_request, visible_images
from agentflow.team._pool import Role, in_worker
from agentflow.team._question_messages import alias_messages, extraction_messages, wording_messages
from agentflow.team._rendering import episode_images
from agentflow.team._schemas import extraction_schema
from agentflow.team._task_messages import (
    independent_messages,
    instruction_messages,
    solutions_messages,
)
from agentflow.trajectory import (
    Failure,
    IndependentSolution,
    IndependentSolutionRequest,
    InstructionRequest,
    Look,
    LookRequest,
    ProposedSolutions,
    Reply,
    Solution,
    SolutionRequest,
    SolutionsRequest,
    Summary,
    SummaryRequest,
    TaskInstruction,
)


class Generator(Role):
    """Role that writes text. A failed model call is a failed reply; only `RunStopped` is raised.

    See docs/team.md.
    """

    def __init__(self, model: Model, read_blob: ReadBlob, *, workers: int) -> None:
        """Create the role.

        :param model: model that writes.
        :param read_blob: reads images for a model with vision.
        :param workers: maximum number of workers.
        """
        super().__init__("generators", workers=workers)
        self._model = model
        self._read_blob = read_blob

    @in_worker
    async def extract(self, request: ExtractionRequest) -> Reply[Extraction]:
        """Extract the facts of a chunk of an observation."""
        images = await visible_images(self._model, request.images, self._read_blob)
        messages = extraction_messages(request, images)
        schema = extraction_schema(bool(images))
        return await answer_request(
            self._model, request, Extraction, messages, role="generator", schema=schema
        )

    @in_worker
    async def compare_names(self, request: AliasRequest) -> Reply[AliasJudgement]:
        """Judge which names mean the same thing."""
        return await answer_request(
            self._model, request, AliasJudgement, alias_messages(request), role="generator"
        )

    @in_worker
    async def word(self, request: WordingRequest) -> Reply[Wording]:
        """Write the words of a question."""
        return await answer_request(
            self._model, request, Wording, wording_messages(request), role="generator"
        )

    @in_worker
    async def look(self, request: LookRequest) -> Reply[Look]:
        """Check whether an image shows what a draft quotes from it."""
        if not self._model.vision:
            return Reply(failure=Failure(ModelFailureKind.BAD_REQUEST, "the generator's model has no vision"))
        messages = look_messages(request, await self._read_blob(request.picture.hash))
        return await answer_request(self._model, request, Look, messages, role="generator")

    @in_worker
    async def solve(self, request: SolutionRequest) -> Reply[Solution]:
        """Answer a task from its memory, with the derivation."""
        images = episode_images(request.images, request.memory.turns)
        messages = solution_messages(request, await visible_images(self._model, images, self._read_blob))
        return await answer_request(self._model, request, Solution, messages, role="generator")

    @in_worker
    async def summarise(self, request: SummaryRequest) -> Reply[Summary]:
        """Summarise the oldest turns of the memory."""
        return await answer_request(
            self._model, request, Summary, summary_messages(request), role="generator"
        )

    @in_worker
    async def propose(self, request: SolutionsRequest) -> Reply[ProposedSolutions]:
        """Propose queries or programs from which tasks are made."""
        messages = solutions_messages(request)
        return await answer_request(self._model, request, ProposedSolutions, messages, role="generator")

    @in_worker
    async def instruct(self, request: InstructionRequest) -> Reply[TaskInstruction]:
        """Write the instruction that a solution answers."""
        messages = instruction_messages(request)
        return await answer_request(self._model, request, TaskInstruction, messages, role="generator")

    @in_worker
    async def solve_again(self, request: IndependentSolutionRequest) -> Reply[IndependentSolution]:
        """Solve an instruction without the solution that it was written from."""
        messages = independent_messages(request)
        return await answer_request(self._model, request, IndependentSolution, messages, role="generator")
