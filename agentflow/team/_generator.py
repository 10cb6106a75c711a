"""The generator: questions with their answers, and answers to questions."""

from typing import TypeAlias, cast

from agentflow.errors import ModelFailureKind
from agentflow.models import Call, Model
from agentflow.team._asking import ReadBlob, ask_model, broken, pictures_of, seen_by
from agentflow.team._messages import answer_messages, look_messages, write_messages
from agentflow.team._pool import Pool, Worker
from agentflow.team._schemas import answer_schema, draft_schema
from agentflow.team._task_messages import solution_messages, summary_messages
from agentflow.trajectory import (
    Answer,
    AnswerRequest,
    Draft,
    Failure,
    Look,
    LookRequest,
    Reply,
    Solution,
    SolutionRequest,
    Summary,
    SummaryRequest,
    WriteRequest,
)

__all__ = ["Generator", "Generators"]

Wish: TypeAlias = WriteRequest | AnswerRequest | LookRequest | SolutionRequest | SummaryRequest
Given: TypeAlias = Reply[Draft] | Reply[Answer] | Reply[Look] | Reply[Solution] | Reply[Summary]


class Generator(Worker[Wish, Given]):
    """Asks a model for a question, for the answer to one, for a summary, or to look at a picture."""

    def __init__(self, model: Model, blob: ReadBlob) -> None:
        super().__init__()
        self._model = model
        self._blob = blob

    async def work(self, about: Wish) -> Given:
        """Write, answer, look or put in short."""
        match about:
            case WriteRequest():
                return await self._write(about)
            case AnswerRequest():
                return await self._answer(about)
            case LookRequest():
                return await self._look(about)
            case SolutionRequest():
                return await self._solve(about)
            case SummaryRequest():
                return await self._summarise(about)

    async def _write(self, about: WriteRequest) -> Reply[Draft]:
        pictures = await pictures_of(about.evidence, self._model, self._blob)
        call = Call(
            role="generator",
            messages=write_messages(about, pictures),
            reply=Draft,
            schema=draft_schema(bool(pictures)),
            request=about,
        )
        return await ask_model(self._model, call)

    async def _answer(self, about: AnswerRequest) -> Reply[Answer]:
        call = Call(
            role="generator",
            messages=answer_messages(about),
            reply=Answer,
            schema=answer_schema(Answer),
            request=about,
        )
        return await ask_model(self._model, call)

    async def _solve(self, about: SolutionRequest) -> Reply[Solution]:
        images = [*about.images, *(blob for turn in about.memory.turns for blob in turn.images)]
        call = Call(
            role="generator",
            messages=solution_messages(about, await seen_by(self._model, images, self._blob)),
            reply=Solution,
            schema=answer_schema(Solution),
            request=about,
        )
        return await ask_model(self._model, call)

    async def _summarise(self, about: SummaryRequest) -> Reply[Summary]:
        call = Call(
            role="generator",
            messages=summary_messages(about),
            reply=Summary,
            schema=answer_schema(Summary),
            request=about,
        )
        return await ask_model(self._model, call)

    async def _look(self, about: LookRequest) -> Reply[Look]:
        if not self._model.vision:
            return Reply(
                failure=Failure(ModelFailureKind.BAD_REQUEST, "the generator's model sees no pictures")
            )
        picture = await self._blob(about.picture.hash)
        call = Call(
            role="generator",
            messages=look_messages(about, picture),
            reply=Look,
            schema=answer_schema(Look),
            request=about,
        )
        return await ask_model(self._model, call)


class Generators(Pool[Wish, Given]):
    """All generators."""

    async def write(self, request: WriteRequest) -> Reply[Draft]:
        """A question with its answer and its steps. A failed call is a reply.

        :raises RunStopped: if the run can't go on.
        """
        return cast("Reply[Draft]", await self.ask(request))

    async def answer(self, request: AnswerRequest) -> Reply[Answer]:
        """An answer from what the model knows. A failed call is a reply.

        :raises RunStopped: if the run can't go on.
        """
        return cast("Reply[Answer]", await self.ask(request))

    async def look(self, request: LookRequest) -> Reply[Look]:
        """Whether a picture shows what a draft says of it. A failed call is a reply.

        :raises RunStopped: if the run can't go on.
        """
        return cast("Reply[Look]", await self.ask(request))

    async def solve(self, request: SolutionRequest) -> Reply[Solution]:
        """The answer to a task, with its working. A failed call is a reply.

        :raises RunStopped: if the run can't go on.
        """
        return cast("Reply[Solution]", await self.ask(request))

    async def summarise(self, request: SummaryRequest) -> Reply[Summary]:
        """The oldest part of memory in short. A failed call is a reply.

        :raises RunStopped: if the run can't go on.
        """
        return cast("Reply[Summary]", await self.ask(request))

    def fallen(self, why: str) -> Given:
        """Nothing."""
        failed: Reply[Draft] = Reply(failure=broken(why))
        return failed
