"""The generator: writes questions and tasks, reads facts in images, and answers tasks."""

from collections.abc import Iterable

from agentflow.errors import ModelFailureKind
from agentflow.models import Message, Model, TextPart
from agentflow.questions import (
    ImageFacts,
    ImageFactsRequest,
    ProposalRequest,
    QuestionProposal,
    RepairedDrafts,
    RepairRequest,
    ShownDocument,
)
from agentflow.team._messages import (
    image_fact_messages,
    look_messages,
    proposal_messages,
    repair_messages,
    solution_messages,
    summary_messages,
)
from agentflow.team._pool import Role, answer_request, in_worker
from agentflow.team._rendering import (
    Images,
    bullets,
    cut,
    episode_images,
    escape_marks,
    json_text,
    prompt,
    system,
    user,
    visible_images,
)
from agentflow.trace import (
    BlobStore,
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
    TaskColumn,
    TaskInstruction,
    TaskTable,
)

_MAX_TEXT_CHARS = 6_000
"""Maximum characters of a result or of a description of an environment."""
_MAX_SAMPLE_CHARS = 160
"""Maximum characters of one sample row."""


def solutions_messages(request: SolutionsRequest) -> tuple[Message, ...]:
    """Ask for queries or programs."""
    name = "generator_task_solutions"
    head = prompt(
        name,
        "system",
        language=request.language,
        guidance=prompt(name, request.kind),
        seed_description=request.seed_description,
        tips=request.tips,
    )
    now = prompt(
        name,
        "now",
        seed=escape_marks(request.seed),
        tables=table_list(request.tables),
        known=bullets(escape_marks(one) for one in request.known),
        count=request.count,
    )
    return (system(head), user(now))


def instruction_messages(request: InstructionRequest) -> tuple[Message, ...]:
    """Ask for the instruction that a solution answers; after a rejection, for another one."""
    name = "generator_task_instruction"
    examples = "\n\n".join(f"Question: {each.question}\nAnswer: {each.answer}" for each in request.examples)
    guidance = prompt(name, request.kind)
    head = prompt(name, "system", guidance=guidance, tips=request.tips, examples=examples)
    now = prompt(
        name,
        "now",
        seed=escape_marks(request.seed),
        tables=table_list(request.tables),
        environment=escape_marks(cut(request.environment, _MAX_TEXT_CHARS)),
        language=request.language or "actions",
        solution=escape_marks(request.solution),
        result=escape_marks(cut(request.result, _MAX_TEXT_CHARS)),
    )
    messages = [system(head), user(now)]
    for instruction, reason in request.rejected:
        messages.append(Message("assistant", (TextPart(json_text({"instruction": instruction})),)))
        messages.append(user(prompt(name, "rejected", reason=reason)))
    return tuple(messages)


def independent_messages(request: IndependentSolutionRequest) -> tuple[Message, ...]:
    """Ask for a solution of an instruction, without the one that it was written from."""
    name = "generator_task_attempt"
    head = prompt(name, "system", language=request.language, guidance=prompt(name, request.kind))
    now = prompt(
        name,
        "now",
        tables=table_list(request.tables),
        instruction=escape_marks(request.instruction),
        sample=request.sample if request.sample > 1 else "",
    )
    return (system(head), user(now))


def table_list(tables: Iterable[TaskTable]) -> str:
    """Describe tables, each with its columns, keys, and sample rows."""
    return escape_marks("\n\n".join(map(_table, tables)))


def _table(table: TaskTable) -> str:
    rows = "" if table.rows is None else f" ({table.rows} rows)"
    columns = "\n".join(f"  {_column(column, table.key)}" for column in table.columns)
    sample = "\n".join(f"  {_row(row)}" for row in table.sample)
    return f"{table.name}{rows}\n{columns}" + (f"\n  sample rows:\n{sample}" if sample else "")


def _column(column: TaskColumn, key: tuple[str, ...]) -> str:
    notes = [column.type, *(["primary key"] if column.name in key else [])]
    return f"{column.name} {', '.join(filter(None, notes))}" + (
        f" -> {column.refers}" if column.refers else ""
    )


def _row(row: tuple[object, ...]) -> str:
    text = json_text(row)
    return text if len(text) <= _MAX_SAMPLE_CHARS else f"{text[:_MAX_SAMPLE_CHARS]} …"


class Generator(Role):
    """Role that writes text. A failed model call is a failed reply; only `RunStopped` is raised.

    See docs/team.md.
    """

    def __init__(self, model: Model, blobs: BlobStore, *, workers: int) -> None:
        """Create the role.

        :param model: model that writes.
        :param blobs: store of images, for a model with vision.
        :param workers: maximum number of workers.
        """
        super().__init__("generators", workers=workers)
        self._model = model
        self._blobs = blobs

    @in_worker
    async def propose_questions(self, request: ProposalRequest) -> Reply[QuestionProposal]:
        """Write questions about documents."""
        messages = proposal_messages(request, await self._images(request.documents))
        return await answer_request(self._model, request, QuestionProposal, messages, role="generator")

    @in_worker
    async def repair_questions(self, request: RepairRequest) -> Reply[RepairedDrafts]:
        """Write drafts anew without their faults."""
        messages = repair_messages(request, await self._images(request.documents))
        return await answer_request(self._model, request, RepairedDrafts, messages, role="generator")

    @in_worker
    async def list_image_facts(self, request: ImageFactsRequest) -> Reply[ImageFacts]:
        """List the facts that an image shows."""
        images = await visible_images(self._model, [request.image], self._blobs)
        messages = image_fact_messages(request, images)
        return await answer_request(self._model, request, ImageFacts, messages, role="generator")

    @in_worker
    async def look(self, request: LookRequest) -> Reply[Look]:
        """Check whether an image shows what a draft quotes from it."""
        if not self._model.vision:
            return Reply(failure=Failure(ModelFailureKind.BAD_REQUEST, "the generator's model has no vision"))
        messages = look_messages(request, await self._blobs.read(request.picture.hash))
        return await answer_request(self._model, request, Look, messages, role="generator")

    @in_worker
    async def solve(self, request: SolutionRequest) -> Reply[Solution]:
        """Answer a task from its memory, with the derivation."""
        images = episode_images(request.images, request.memory.turns)
        messages = solution_messages(request, await visible_images(self._model, images, self._blobs))
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

    async def _images(self, documents: tuple[ShownDocument, ...]) -> Images:
        return await visible_images(
            self._model, (blob for each in documents for blob in each.images), self._blobs
        )
