"""Roles of synthesis without a model: they write given drafts, and read only what a request shows them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self, TypeVar

from agentflow.questions import (
    Basis,
    Draft,
    HiddenAnswer,
    HiddenRequest,
    ImageFacts,
    ImageFactsRequest,
    OtherAnswers,
    OthersRequest,
    ProposalRequest,
    QuestionProposal,
    ReadingAnswer,
    ReadingRequest,
    Readings,
    Recalled,
    RecallRequest,
    RepairedDraft,
    RepairedDrafts,
    RepairRequest,
    ShownDocument,
    quoted,
)
from agentflow.trace import Failure, Look, LookRequest, Reply, Usage

T = TypeVar("T")


class ScriptedRoles:
    """Writer and reader that are right, unless `fails` or a replaced method says otherwise.

    The reader knows what each question that was written rests on, and answers it if all of that is shown.
    """

    def __init__(
        self,
        write: Callable[[Sequence[ShownDocument]], Iterable[Draft]],
        *,
        known: Mapping[str, str] | None = None,
        fails: Callable[[object], Failure | None] = lambda _: None,
    ) -> None:
        """:param write: returns the drafts about documents.
        :param known: answers from memory, by question.
        :param fails: returns the failure of a request, or `None`.
        """
        self.asked: list[object] = []
        """Requests, in order."""
        self.drafts: dict[str, Draft] = {}
        """Drafts by question."""
        self._write = write
        self._memory = dict(known or {})
        self._fails = fails

    @property
    def generator(self) -> Self:
        """This object, which also writes."""
        return self

    @property
    def reader(self) -> Self:
        """This object, which also reads."""
        return self

    @property
    def counts(self) -> Counter[str]:
        """Number of requests by type."""
        return Counter(type(request).__name__ for request in self.asked)

    async def propose_questions(self, request: ProposalRequest) -> Reply[QuestionProposal]:
        """Return the drafts about the documents."""
        drafts = tuple(self._write(request.documents))[: request.keep]
        self.drafts.update((draft.question, draft) for draft in drafts)
        return self._reply(request, QuestionProposal((), (), drafts))

    async def repair_questions(self, request: RepairRequest) -> Reply[RepairedDrafts]:
        """Return the drafts as they were."""
        return self._reply(
            request,
            RepairedDrafts(tuple(RepairedDraft(draft.number, draft.draft) for draft in request.fallen)),
        )

    async def look(self, request: LookRequest) -> Reply[Look]:
        """Confirm what an image is said to show."""
        return self._reply(request, Look(True))

    async def list_image_facts(self, request: ImageFactsRequest) -> Reply[ImageFacts]:
        """Return no facts."""
        return self._reply(request, ImageFacts(()))

    async def read_hidden(self, request: HiddenRequest) -> Reply[HiddenAnswer]:
        """Answer if the documents show what the question rests on."""
        answer = self.answer(request.question, request.documents)
        basis = Basis.STATED if answer else Basis.GUESSED
        return self._reply(request, HiddenAnswer(answer, basis, ()))

    async def read_all(self, request: ReadingRequest) -> Reply[Readings]:
        """Answer each question if the documents show what it rests on."""
        answers = [
            (question.number, self.answer(question.question, request.documents))
            for question in request.questions
        ]
        readings = tuple(
            ReadingAnswer(
                number=number,
                documents=(),
                derivation="It follows from the quotes.",
                answers=(answer,) if answer else (),
                naturalness=4,
            )
            for number, answer in answers
        )
        return self._reply(request, Readings(readings))

    async def find_others(self, request: OthersRequest) -> Reply[OtherAnswers]:
        """Find no other answer."""
        return self._reply(request, OtherAnswers((), "", 0))

    async def recall(self, request: RecallRequest) -> Reply[Recalled]:
        """Answer from memory."""
        memory = self._memory.get(request.question)
        return self._reply(request, Recalled(memory or "", is_certain=memory is not None))

    def answer(self, question: str, documents: Iterable[ShownDocument]) -> str:
        """Return the answer to a question that was written, if the documents show all that it rests on."""
        draft = self.drafts.get(question)
        if draft is None:
            return ""
        passages = [passage for document in documents for passage in document.passages]
        images = {passage.number for passage in passages if passage.image is not None}
        shown = all(
            step.passage in images or any(quoted(passage.text, step.quote) for passage in passages)
            for step in draft.steps
            if step.quote
        )
        return f"{draft.answer} {draft.unit}".strip() if shown else ""

    def _reply(self, request: object, answer: T) -> Reply[T]:
        self.asked.append(request)
        failure = self._fails(request)
        usage = Usage(1, 100, 10)
        return Reply(answer if failure is None else None, failure, usage)
