"""Tasks about pictures in documents: the answer is in one region of one picture, and nowhere else."""

import io
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import zip_longest
from math import ceil
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import msgspec
from msgspec import Struct

from agentflow.actors import together
from agentflow.errors import ConfigurationError
from agentflow.extras import missing_extra
from agentflow.journal import Page
from agentflow.questions import (
    AskedQuestion,
    ImageFact,
    ImageFacts,
    ImageFactsRequest,
    Passage,
    ReadingRequest,
    Readings,
    ShownDocument,
    documents_from,
    is_region,
)
from agentflow.runs import image_file
from agentflow.tasks._contract import (
    GOLD,
    NO_OP,
    DerivedTasks,
    RejectedTask,
    TaskAttempt,
    TaskFinding,
    TaskPredicate,
    TaskProblem,
    TaskRelation,
    TaskSetup,
    VerifiableTask,
    task_id,
)
from agentflow.tasks._derivation import (
    ClosedBook,
    DerivationSettings,
    Earlier,
    IndependentVote,
    TaskCalls,
    TaskWriter,
    closed_book_guesses,
    count_votes,
    failure_reason,
    instruction_problem,
    rejected,
)
from agentflow.tasks._verifiers import AnswerVerifier
from agentflow.text import contains_phrase
from agentflow.trace import (
    Action,
    Blob,
    BlobStore,
    InstructionRequest,
    Node,
    Region,
    Reply,
    TaskInstruction,
    Tree,
    Verdict,
    digest,
)
from agentflow.values import Value, answer_agrees, kind_of, parse_value, show_value, values_agree

if TYPE_CHECKING:
    from PIL import Image


KIND: Final = "document"
"""Name of the kind."""

_MAX_SIBLINGS: Final = 2
_MAX_OTHERS: Final = 3
_MAX_TEXTS: Final = 8
_MAX_TEXT_CHARS: Final = 3_000
_UNDETERMINED: Final = "It cannot be determined."
_PICTURE: Final = "A picture from a document"


class PictureWriter(Protocol):
    """Role with vision that reads facts in pictures and writes questions about them. A failed call is a reply."""

    async def list_image_facts(self, request: ImageFactsRequest) -> Reply[ImageFacts]:
        """List the facts of a picture, each with its region."""
        ...

    async def instruct(self, request: InstructionRequest) -> Reply[TaskInstruction]:
        """Write the question that a fact answers."""
        ...


class PictureReader(ClosedBook, Protocol):
    """Role with vision that answers questions about pictures. A failed call is a reply."""

    async def read_all(self, request: ReadingRequest) -> Reply[Readings]:
        """Answer a question from pictures and texts alone."""
        ...


class PictureRoles(Protocol):
    """The roles that write questions about pictures and answer them, such as a team."""

    @property
    def generator(self) -> PictureWriter:
        """Writes questions."""
        ...

    @property
    def reader(self) -> PictureReader:
        """Answers them."""
        ...


class DocumentPictures(AnswerVerifier):
    """Tasks whose answer only a region of a picture shows. See docs/tasks.md."""

    def __init__(self, roles: PictureRoles, settings: DerivationSettings, blobs: BlobStore) -> None:
        """:param roles: roles with vision.
        :param blobs: has the pictures, and gets the region and the covered picture of each task.
        """
        self._roles = roles
        self._settings = settings
        self._blobs = blobs

    async def derive(self, tree: Tree, page: Page) -> DerivedTasks:
        """Derive tasks from the pictures in the observations of a tree.

        :raises RunStopped: if the run can't continue.
        """
        calls = TaskCalls(page, KIND)
        writer = _PictureTaskWriter(tree, calls, self._roles, self._settings, self._blobs)
        await writer.work()
        return DerivedTasks(tasks=tuple(writer.tasks), rejected=tuple(writer.rejected), usage=calls.usage)


class _ShownPicture(Struct, frozen=True):
    node: Node
    action: Action
    blob: Blob


class _ShownFact(Struct, frozen=True):
    """A fact that only a region of a picture states."""

    picture: _ShownPicture
    fact: ImageFact
    value: Value

    @property
    def words(self) -> str:
        return f"{self.fact.relation} of {self.fact.subject}"

    @property
    def id(self) -> str:
        return digest([self.fact.subject, self.fact.relation, show_value(self.value)])


class _StoredViews(Struct, frozen=True):
    """Views of a region in the blob store; empty if there are none."""

    crop: Blob | None = None
    masked: Blob | None = None


class _Readings(Struct, frozen=True):
    """Answers of readers that must not find the answer."""

    wrong: tuple[tuple[str, str], ...]
    """Names of attempts with their answers; empty: none was given."""
    problem: TaskFinding | None = None


class _PictureTaskWriter(TaskWriter):
    """Makes the tasks of one tree."""

    def __init__(
        self,
        tree: Tree,
        calls: TaskCalls,
        roles: PictureRoles,
        settings: DerivationSettings,
        blobs: BlobStore,
    ) -> None:
        super().__init__(KIND, tree, calls, settings)
        self._roles = roles
        self._blobs = blobs
        self._pictures = list(_pictures(tree))
        self._texts = [
            node.observation.text
            for node in tree.nodes
            if node.action is not None and node.verdict is Verdict.NEW and node.observation.text
        ]

    async def work(self) -> None:
        """Try the facts of all pictures, first one of each, until there are enough tasks."""
        facts = await self._facts()
        for shown in facts:
            if self.missing <= 0:
                return
            await self._try(shown, [other for other in facts if other is not shown])

    async def _facts(self) -> list[_ShownFact]:
        """Extract the facts of each picture; return those that are shown once, the first of each picture first."""
        picture_facts = await together(partial(self._extract, picture) for picture in self._pictures)
        self.rejected += [extracted for extracted in picture_facts if isinstance(extracted, RejectedTask)]
        usable = [extracted for extracted in picture_facts if not isinstance(extracted, RejectedTask)]
        facts = [fact for extracted in usable for fact in extracted]
        clear: list[list[_ShownFact]] = []
        for extracted in usable:
            problems = [(fact, _repetition(fact, facts)) for fact in extracted]
            clear.append([fact for fact, problem in problems if problem is None])
            self.rejected += [
                rejected(KIND, problem, solution=fact.words)
                for fact, problem in problems
                if problem is not None
            ]
        return [fact for round_ in zip_longest(*clear) for fact in round_ if fact is not None]

    async def _extract(self, picture: _ShownPicture) -> list[_ShownFact] | RejectedTask:
        request = ImageFactsRequest(
            seed=self.tree.seed.content,
            kwargs=self.tree.seed.kwargs,
            seed_description=self.settings.seed_description,
            action=picture.action,
            image=picture.blob,
        )
        reply = await self.calls.ask(
            f"facts/{picture.blob.hash}",
            Reply[ImageFacts],
            partial(self._roles.generator.list_image_facts, request),
        )
        if reply.value is None:
            return rejected(KIND, TaskProblem.MODEL_FAILED, failure_reason(reply), solution="")
        return list(_shown_facts(picture, reply.value.facts))

    async def _try(self, shown: _ShownFact, others: Sequence[_ShownFact]) -> None:
        key = f"{shown.picture.blob.hash}/{shown.id}"
        views = await self.calls.once(f"{key}/views", _StoredViews, partial(self._views, shown))
        if views.crop is None or views.masked is None:
            reason = "the picture can't be read, or the region covers most of it"
            self.reject(TaskProblem.NO_GOLD, reason, solution=shown.words)
            return
        await self.instruct(key, partial(self._write, shown, others, views.crop, views.masked))

    async def _views(self, shown: _ShownFact) -> _StoredViews:
        views = await views_of(await self._blobs.read(shown.picture.blob.hash), shown.fact.region)
        if views is None:
            return _StoredViews()
        return _StoredViews(
            await self._blobs.put(views.crop, "image/png"), await self._blobs.put(views.masked, "image/png")
        )

    async def _write(
        self,
        shown: _ShownFact,
        others: Sequence[_ShownFact],
        crop: Blob,
        masked: Blob,
        earlier: Earlier,
        key: str,
    ) -> VerifiableTask | RejectedTask:
        """Have the question written, and answered from the region, from everything else, and from nothing."""
        answer = show_value(shown.value)
        request = self._instruction(shown, answer, earlier)
        reply = await self.calls.ask(
            f"{key}/instruct", Reply[TaskInstruction], partial(self._roles.generator.instruct, request)
        )
        if reply.value is None:
            return rejected(KIND, TaskProblem.MODEL_FAILED, failure_reason(reply), solution=shown.words)
        question = " ".join(reply.value.instruction.split())
        if problem := instruction_problem(question, "", [answer]):
            return rejected(KIND, problem, solution=shown.words, instruction=question or "(empty)")
        agreement = await self._agreement(question, shown.value, crop, key)
        if not agreement.accepted:
            return rejected(
                KIND, TaskProblem.NOT_SHOWN, agreement.reason, solution=shown.words, instruction=question
            )
        readings = await self._elsewhere(question, shown, masked, key)
        if readings.problem is not None:
            return rejected(KIND, readings.problem, solution=shown.words, instruction=question)
        wrong = _wrong(shown, others, readings.wrong)
        return self._task(shown, question, wrong, agreement, crop, masked)

    def _instruction(self, shown: _ShownFact, answer: str, earlier: Earlier) -> InstructionRequest:
        picture = shown.picture
        return InstructionRequest(
            kind=KIND,
            language="fact",
            seed=self.tree.seed.content,
            tips=self.settings.tips,
            examples=self.settings.examples,
            environment=f"{picture.action.tool} {msgspec.json.encode(picture.action.arguments).decode()}",
            solution=shown.words,
            result=answer,
            rejected=earlier,
        )

    async def _read(
        self, question: str, documents: Sequence[ShownDocument], key: str, sample: int = 0
    ) -> tuple[str, ...] | None:
        """Return the answers of a reader; `None` if the call failed."""
        request = ReadingRequest(
            documents=tuple(documents), questions=(AskedQuestion(1, question),), sample=sample
        )
        reply = await self.calls.ask(key, Reply[Readings], partial(self._roles.reader.read_all, request))
        if reply.value is None or not reply.value.readings:
            return None
        return reply.value.readings[0].answers

    async def _agreement(self, question: str, value: Value, crop: Blob, key: str) -> IndependentVote:
        """Have the question answered from the region alone."""

        async def difference(number: int) -> str:
            answers = await self._read(question, [_picture(crop)], f"{key}/crop/{number}", number - 1)
            if answers is None:
                return "a reader of the region failed"
            if len(answers) == 1 and answer_agrees(value, answers[0], question=question):
                return ""
            return f"a reader of the region alone answers: {'; '.join(answers)[:80] or 'nothing'}"

        return await count_votes(difference, self.settings.samples)

    async def _elsewhere(self, question: str, shown: _ShownFact, masked: Blob, key: str) -> _Readings:
        """Have it answered without the region: from the covered picture, others, the text, and from memory."""
        value, own_picture = shown.value, shown.picture
        siblings = [picture for picture in self._pictures if picture.blob != own_picture.blob][:_MAX_SIBLINGS]
        sources = [("masked_page", [_picture(masked)])]
        sources += [
            (f"sibling/{sibling.node.id}/{sibling.blob.hash[:8]}", [_picture(sibling.blob)])
            for sibling in siblings
        ]
        if texts := self._passages(shown):
            sources.append(("text", texts))
        wrong: list[tuple[str, str]] = []
        for name, documents in sources:
            answers = await self._read(question, documents, f"{key}/{name}")
            if answers is None:
                return _Readings((), TaskFinding(TaskProblem.MODEL_FAILED, f"a reader of {name} failed"))
            if any(answer_agrees(value, answer, question=question) for answer in answers):
                return _Readings((), TaskFinding(TaskProblem.ELSEWHERE, f"it is answered from {name}"))
            wrong.append((name, answers[0] if answers else ""))
        guesses = await closed_book_guesses(self.calls, self._roles.reader, question, key)
        if any(answer_agrees(value, guess, question=question) for guess in guesses):
            reason = TaskFinding(TaskProblem.CLOSED_BOOK, "a model answers it without the picture")
            return _Readings((), reason)
        wrong += [(f"closed_book/{number}", guess) for number, guess in enumerate(guesses, 1)]
        return _Readings(tuple(wrong))

    def _passages(self, shown: _ShownFact) -> list[ShownDocument]:
        """Return the parts of the tree's texts that name the subject."""
        subject = shown.fact.subject
        matching_texts = [text for text in self._texts if contains_phrase(text, subject)]
        return list(
            documents_from(
                (f"text {number}", "", _window(text, subject))
                for number, text in enumerate(matching_texts[:_MAX_TEXTS], 1)
            )
        )

    def _task(
        self,
        shown: _ShownFact,
        question: str,
        wrong: tuple[TaskAttempt, ...],
        agreement: IndependentVote,
        crop: Blob,
        masked: Blob,
    ) -> VerifiableTask:
        value, picture = shown.value, shown.picture
        answer = show_value(value)
        setup = TaskSetup(tools=(picture.action.tool,), kwargs=self.tree.seed.kwargs)
        gold = TaskAttempt(name=GOLD, actions=(picture.action,), answer=answer)
        return VerifiableTask(
            id=task_id(self.tree.id, f"{KIND}/{shown.id}", gold, setup),
            kind=KIND,
            instruction=f"{question}\n\nA picture in the document shows it. Answer with the value alone.",
            setup=setup,
            gold=gold,
            verifier=(
                TaskPredicate(
                    says="the answer is the value that the region shows",
                    relation=TaskRelation.AGREES,
                    expected=msgspec.to_builtins(value),
                ),
            ),
            wrong=wrong,
            tree_id=self.tree.id,
            source_id=self.tree.seed.id,
            sources=(picture.node.id,),
            metadata={
                "question": question,
                "answer": answer,
                "image": picture.blob.hash,
                "region": msgspec.to_builtins(shown.fact.region),
                "crop": crop.hash,
                "masked": masked.hash,
                "files": {
                    "image": image_file(picture.blob),
                    "crop": image_file(crop),
                    "masked": image_file(masked),
                },
                "agreed": agreement.agreed,
                "samples": agreement.samples,
            },
        )


def _pictures(tree: Tree) -> Iterator[_ShownPicture]:
    """Yield each picture of a tree once."""
    seen: set[str] = set()
    for node in tree.nodes:
        if node.action is None or node.verdict is not Verdict.NEW:
            continue
        for blob in node.observation.blobs:
            if blob.mime.startswith("image/") and blob.hash not in seen:
                seen.add(blob.hash)
                yield _ShownPicture(node, node.action, blob)


def _shown_facts(picture: _ShownPicture, facts: Sequence[ImageFact]) -> Iterator[_ShownFact]:
    """Yield the facts with a value and a region inside the picture, each once."""
    seen = set[tuple[str, str, str]]()
    for fact in facts:
        value = parse_value(fact.value, fact.kind, fact.unit)
        if value is None or not (fact.subject.strip() and fact.relation.strip() and is_region(fact.region)):
            continue
        statement = (fact.subject, fact.relation, show_value(value))
        if statement not in seen:
            seen.add(statement)
            yield _ShownFact(picture, fact, value)


def _picture(blob: Blob) -> ShownDocument:
    """Return a document that consists of a picture."""
    passage = Passage(number=1, document=1, heading="", text="", image=blob)
    return ShownDocument(number=1, id=blob.hash, title=_PICTURE, complete=True, passages=(passage,), nodes=())


def _repetition(shown: _ShownFact, shown_facts: Sequence[_ShownFact]) -> TaskFinding | None:
    """Return the problem of a fact that is shown a second time, with the same value or another one."""
    shown_fact = shown.fact
    for other in shown_facts:
        fact = other.fact
        if other is shown or (fact.subject, fact.relation) != (shown_fact.subject, shown_fact.relation):
            continue
        if not values_agree(other.value, shown.value):
            return TaskFinding(TaskProblem.AMBIGUOUS, "pictures show different values")
        return TaskFinding(TaskProblem.ELSEWHERE, "another picture shows it, too")
    return None


def _window(text: str, subject: str) -> str:
    at = max(0, text.casefold().find(subject.casefold()) - _MAX_TEXT_CHARS // 2)
    return text[at : at + _MAX_TEXT_CHARS]


def _wrong(
    shown: _ShownFact, others: Sequence[_ShownFact], readings: Sequence[tuple[str, str]]
) -> tuple[TaskAttempt, ...]:
    """Return attempts that must fail: the picture without an answer, other readings, and other values of pictures."""
    look = (shown.picture.action,)
    wrong = [TaskAttempt(name=NO_OP, actions=look, answer=_UNDETERMINED)]
    wrong += [TaskAttempt(name=name, answer=answer) for name, answer in readings]
    values: defaultdict[bool, list[str]] = defaultdict(list)
    for other in others:
        value = other.value
        if kind_of(value) is kind_of(shown.value) and not values_agree(value, shown.value):
            values[other.fact.relation == shown.fact.relation].append(show_value(value))
    near = list(dict.fromkeys([*values[True], *values[False]]))[:_MAX_OTHERS]
    wrong += [
        TaskAttempt(name=f"other_figure/{number}", answer=answer) for number, answer in enumerate(near, 1)
    ]
    return tuple(wrong)


_MARGIN: Final = 0.01
"""Share of the image's width and height by which a region is enlarged: models place edges roughly."""
_MAX_SHARE: Final = 0.6
"""Largest share of an image that a region may cover."""
_FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP")
_MAX_PIXELS: Final = 50_000_000
_COVER: Final = (127, 127, 127)


class RegionViews(Struct, frozen=True):
    """A region alone, and its image without it, as PNG."""

    crop: bytes
    """The region."""
    masked: bytes
    """The image with the region covered in grey."""


def check_images() -> None:
    """Check that images can be read.

    See docs/tasks.md.

    :raises ConfigurationError: one line with the command that adds the library.
    """
    try:
        import_module("PIL.Image")
    except ImportError:
        raise ConfigurationError(f"tasks: {missing_extra('document', 'document')}") from None


async def views_of(data: bytes, region: Region) -> RegionViews | None:
    """Return the views of a region; `None` if the image can't be read, or the region covers most of it.

    Example::

        views = await views_of(png, Region(1, 0.1, 0.2, 0.5, 0.4))
    """
    if (region.right - region.left) * (region.bottom - region.top) > _MAX_SHARE:
        return None
    return await anyio.to_thread.run_sync(_views, data, region)


def _views(data: bytes, region: Region) -> RegionViews | None:
    from PIL import Image  # of an extra

    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
        if image.width * image.height > _MAX_PIXELS:
            return None
        page = image.convert("RGB")
    except Exception:  # boundary: the bytes come from a tool, and Pillow raises many kinds of errors
        return None
    box = (
        max(0, int((region.left - _MARGIN) * page.width)),
        max(0, int((region.top - _MARGIN) * page.height)),
        min(page.width, ceil((region.right + _MARGIN) * page.width)),
        min(page.height, ceil((region.bottom + _MARGIN) * page.height)),
    )
    crop = page.crop(box)
    page.paste(_COVER, box)
    return RegionViews(_png(crop), _png(page))


def _png(image: "Image.Image") -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=1)
    return out.getvalue()
