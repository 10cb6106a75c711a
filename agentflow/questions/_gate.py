"""The gate that questions pass: proposed, checked by rules, by readers with and without the documents, and over the corpus.

All drafts of a group of documents go through together, so that a tree takes few rounds of calls: propose; hidden documents
and memory; evidence; the corpus and the second hidden document; and the same once more for drafts that were repaired.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from agentflow.actors import together
from agentflow.errors import ModelFailureKind
from agentflow.questions._agreement import KnownNames, agrees
from agentflow.questions._documents import ShownDocument
from agentflow.questions._drafts import Draft, DraftFault, GateCheck, GateVote
from agentflow.questions._requests import (
    AskedQuestion,
    Basis,
    FallenDraft,
    HiddenAnswer,
    HiddenRequest,
    OtherAnswers,
    OthersRequest,
    ProposalRequest,
    QuestionProposal,
    ReadingAnswer,
    ReadingRequest,
    Readings,
    Recalled,
    RecallRequest,
    RepairedDrafts,
    RepairRequest,
)
from agentflow.questions._rules import RuleSettings, check_rules
from agentflow.text import contains_phrase, normalise
from agentflow.trace import Look, LookRequest, Reply

T = TypeVar("T")

MIN_NATURALNESS = 3
"""Naturalness below which a question falls."""
MAX_CANDIDATES = 6
"""Maximum number of answers that are tried as other answers."""
_DESCRIBE = (
    "Its names and figures lead a search straight to the documents: describe them by what they are or did, so that an expert "
    "still finds exactly one answer, which stays the same."
)


class QuestionWriter(Protocol):
    """Role that writes questions. A failed call is a failed reply."""

    async def propose_questions(self, request: ProposalRequest) -> Reply[QuestionProposal]:
        """Write questions about documents."""
        ...

    async def repair_questions(self, request: RepairRequest) -> Reply[RepairedDrafts]:
        """Write drafts anew without their faults."""
        ...

    async def look(self, request: LookRequest) -> Reply[Look]:
        """Check that an image shows what is claimed."""
        ...


class QuestionReader(Protocol):
    """Role that checks questions. A failed call is a failed reply."""

    async def read_hidden(self, request: HiddenRequest) -> Reply[HiddenAnswer]:
        """Answer a question without some of its documents."""
        ...

    async def read_all(self, request: ReadingRequest) -> Reply[Readings]:
        """Answer questions from documents."""
        ...

    async def find_others(self, request: OthersRequest) -> Reply[OtherAnswers]:
        """Look for other answers."""
        ...

    async def recall(self, request: RecallRequest) -> Reply[Recalled]:
        """Answer a question from memory."""
        ...


class GateRoles(Protocol):
    """The roles that write and check questions, such as a team."""

    @property
    def generator(self) -> QuestionWriter:
        """Writes questions."""
        ...

    @property
    def reader(self) -> QuestionReader:
        """Checks them."""
        ...


class RecordedCalls(Protocol):
    """Makes each call once, under a key; after a crash, none is repeated."""

    async def reply(
        self, key: str, kind: type[Reply[T]], call: Callable[[], Awaitable[Reply[T]]]
    ) -> Reply[T]:
        """Return the reply to a call."""
        ...


class CorpusSearch(Protocol):
    """Search over the whole corpus."""

    async def search(self, key: str, queries: Sequence[str]) -> tuple[ShownDocument, ...]:
        """Return the documents that match any of the queries; empty without a search."""
        ...


class RepeatedCalls(Protocol):
    """Makes calls of a tree again."""

    async def fault(self, node: str) -> str:
        """Return why the call of a node does not give its result again; empty if it does."""
        ...


class GateSettings(Struct, frozen=True, kw_only=True):
    """Settings of the gate."""

    rules: RuleSettings = RuleSettings()
    """Limits of the rules."""
    drafts: int = 12
    """Number of drafts that are asked for per group of documents."""
    keep: int = 10
    """Number of drafts that a model returns of them."""
    recall_samples: int = 3
    """Times that a model is asked without documents; 0: it is not asked."""
    drop_known: bool = False
    """Drop a question that a model always knows, instead of labelling it."""
    evidence_samples: int = 2
    """Times that readers answer from all documents; 0 skips all checks by readers."""
    repairs: bool = True
    """Have a fallen draft written anew once."""
    fuzz: bool = False
    """Have the names and figures of accepted questions described instead of quoted, where all checks still pass."""
    batch: int = 12
    """Maximum number of questions in one call."""


class JudgedDraft(Struct, frozen=True, kw_only=True):
    """Draft with everything that checks say about it."""

    draft: Draft
    """The draft, as the rules left it."""
    number: int
    """Number of the proposal, from 1."""
    attempt: int = 1
    """1: as it was proposed; 2: repaired; 3: described instead of quoted."""
    findings: tuple[DraftFault, ...] = ()
    """Faults; none: it passed."""
    votes: tuple[GateVote, ...] = ()
    """Samples of models."""
    necessary: int = 0
    """Number of documents that proved necessary."""
    naturalness: float = 0.0
    """Likelihood that an expert would ask it, from 1 to 5: the mean of the readers."""
    known: float | None = None
    """Share of answers from memory that are right; `None`: nobody was asked."""
    disputed: bool = False
    """A model is certain of another answer."""
    recalled: tuple[str, ...] = ()
    """Wrong answers from memory."""
    remembered: bool = False
    """A reader of the documents knew the answer by heart: hiding documents from it proves nothing."""

    @property
    def passed(self) -> bool:
        """True if no check found a fault."""
        return not self.findings


class QuestionGate:
    """Writes and checks the questions about one group of documents."""

    def __init__(
        self,
        documents: Sequence[ShownDocument],
        roles: GateRoles,
        calls: RecordedCalls,
        settings: GateSettings,
        *,
        search: CorpusSearch | None = None,
        repeated: RepeatedCalls | None = None,
        group: str = "1",
    ) -> None:
        """:param search: finds documents with other answers; without it, only the group is read.
        :param repeated: makes calls again whose results a question needs; without it, they are trusted.
        :param group: name of the group in its tree, for the keys of the calls.
        """
        self._documents = tuple(documents)
        self._roles = roles
        self._calls = calls
        self._settings = settings
        self._search = search
        self._repeated = repeated
        self._group = group
        self.too_long = False
        """The documents do not fit into the context of the model that writes."""
        self._names = KnownNames(document.text for document in documents)

    async def write(self, request: ProposalRequest) -> list[JudgedDraft]:
        """Have questions proposed, and check them; return all drafts, the fallen ones with their faults."""
        drafts = await self._propose(request)
        judged = await self.judge(
            [JudgedDraft(draft=draft, number=number) for number, draft in enumerate(drafts, 1)]
        )
        if self._settings.repairs:
            judged = [*judged, *await self._repair(judged)]
        return await self._described(judged) if self._settings.fuzz else judged

    async def judge(self, drafts: Sequence[JudgedDraft]) -> list[JudgedDraft]:
        """Check drafts; the cheapest checks come first, and a fallen draft is checked no further."""
        judged = self._without_duplicates([self._ruled(draft) for draft in drafts])
        if not self._settings.evidence_samples:
            return judged
        judged = await self._check_passed(judged, self._see)
        judged = await self._check_passed(judged, self._without_others)
        judged = await self._read(judged)
        judged = await self._again(judged)
        return await self._check_passed(judged, self._over_the_corpus)

    async def _check_passed(
        self, judged: Sequence[JudgedDraft], check: Callable[[JudgedDraft], Awaitable[JudgedDraft]]
    ) -> list[JudgedDraft]:
        """Apply a check to all drafts that have passed so far, at once."""
        done = iter(await together(partial(check, draft) for draft in judged if draft.passed))
        return [next(done) if draft.passed else draft for draft in judged]

    async def _propose(self, request: ProposalRequest) -> list[Draft]:
        """Return proposed drafts. An answer that was cut at its limit is asked for again in two halves.

        A prompt that is too long is answered by nothing at all.
        """
        reply = await self._ask(
            "propose",
            Reply[QuestionProposal],
            partial(self._roles.generator.propose_questions, request),
        )
        if reply.value is not None:
            return list(reply.value.drafts)
        if reply.failure is None or reply.failure.kind != ModelFailureKind.TOO_LONG:
            return []
        self.too_long = not (reply.usage and reply.usage.completion_tokens)
        if self.too_long or request.count < 2:
            return []
        drafts: list[Draft] = []
        for half in (1, 2):
            questions = (*request.asked, *(draft.question for draft in drafts))
            smaller = replace(
                request, count=request.count // 2, keep=max(1, request.keep // 2), asked=questions
            )
            reply = await self._ask(
                f"propose/{half}",
                Reply[QuestionProposal],
                partial(self._roles.generator.propose_questions, smaller),
            )
            drafts += () if reply.value is None else reply.value.drafts
        return drafts

    def _ruled(self, judged: JudgedDraft) -> JudgedDraft:
        checked = check_rules(judged.draft, self._documents, self._settings.rules)
        return replace(judged, draft=checked.draft, findings=checked.findings)

    def _without_duplicates(self, judged: Sequence[JudgedDraft]) -> list[JudgedDraft]:
        """Return the drafts; a second one with the same answer and documents has a fault."""
        seen = set[tuple[str, tuple[int, ...]]]()
        result: list[JudgedDraft] = []
        for draft in judged:
            mark = normalise(draft.draft.answer), tuple(sorted(draft.draft.documents))
            if draft.passed and mark in seen:
                fault = DraftFault(
                    GateCheck.DUPLICATE,
                    "an earlier draft has the same answer and documents",
                    repairable=False,
                )
                result.append(replace(draft, findings=(fault,)))
                continue
            if draft.passed:
                seen.add(mark)
            result.append(draft)
        return result

    async def _see(self, judged: JudgedDraft) -> JudgedDraft:
        """Have a model confirm what is quoted from images."""
        passages = {passage.number: passage for document in self._documents for passage in document.passages}
        requests: list[LookRequest] = []
        for step in judged.draft.steps:
            image = passages[step.passage].image if step.passage in passages else None
            if image is not None and step.region is not None:
                requests.append(LookRequest(picture=image, region=step.region, quote=step.quote))
        if not requests:
            return judged
        replies = await together(
            partial(
                self._ask,
                f"look/{judged.number}/{judged.attempt}/{number}",
                Reply[Look],
                partial(self._roles.generator.look, request),
            )
            for number, request in enumerate(requests)
        )
        shown = [reply.value is not None and reply.value.shows for reply in replies]
        votes = (*judged.votes, GateVote(GateCheck.IMAGES, len(shown), sum(shown)))
        if all(shown):
            return replace(judged, votes=votes)
        fault = DraftFault(GateCheck.IMAGES, f"an image does not show {requests[shown.index(False)].quote}")
        return replace(judged, votes=votes, findings=(fault,))

    async def _without_others(self, judged: JudgedDraft) -> JudgedDraft:
        """Require that the document which states the answer does not suffice; ask from memory at the same time."""
        answers = await together(
            [
                partial(self._read_without, judged, _others_of(judged.draft), "hidden"),
                partial(self._recall, judged),
            ]
        )
        first, recalled = answers
        return replace(
            recalled,
            findings=first.findings,
            votes=(*judged.votes, *first.votes, *recalled.votes),
            remembered=first.remembered,
        )

    async def _read_without(self, judged: JudgedDraft, hidden: Sequence[int], name: str) -> JudgedDraft:
        """Require that the answer is not found in one document or guessed without some documents."""
        draft = judged.draft
        if not hidden:
            return replace(judged, votes=())
        # Those that are hidden from others stand last, so that prompts have a common beginning.
        request = HiddenRequest(
            documents=tuple(document for document in self._documents if document.number not in hidden),
            question=draft.question,
        )
        reply = await self._ask(
            f"{name}/{judged.number}/{judged.attempt}",
            Reply[HiddenAnswer],
            partial(self._roles.reader.read_hidden, request),
        )
        if reply.value is None:
            return replace(judged, findings=(_unanswered(GateCheck.ONE_DOCUMENT),), votes=())
        answer = reply.value
        is_right = agrees(draft, answer.answer, self._names)
        # What a reader knows by heart says nothing about the documents; others may tell the same together.
        several = answer.basis in (Basis.STATED, Basis.INFERRED) and len({*answer.documents}) >= max(
            2, self._settings.rules.min_documents
        )
        votes = (GateVote(GateCheck.ONE_DOCUMENT, 1, int(not is_right or several), (answer.answer,)),)
        remembered = is_right and answer.basis is Basis.REMEMBERED
        if not is_right or several or remembered:
            return replace(judged, votes=votes, remembered=remembered)
        used = ", ".join(map(str, answer.documents)) or "no document"
        how = "guesses" if answer.basis is Basis.GUESSED else f"{answer.basis} from {used}"
        hidden_text = ", ".join(map(str, hidden))
        reason = f"without document {hidden_text} a reader still answers {answer.answer}: {how}"
        return replace(judged, findings=(DraftFault(GateCheck.ONE_DOCUMENT, reason),), votes=votes)

    async def _recall(self, judged: JudgedDraft) -> JudgedDraft:
        """Ask a model without documents: a label for the difficulty."""
        samples = self._settings.recall_samples
        if not samples:
            return replace(judged, votes=())
        draft = judged.draft
        replies = await together(
            partial(
                self._ask,
                f"recall/{judged.number}/{judged.attempt}/{sample}",
                Reply[Recalled],
                partial(self._roles.reader.recall, RecallRequest(question=draft.question, sample=sample)),
            )
            for sample in range(samples)
        )
        answers = [reply.value for reply in replies if reply.value is not None]
        right = [agrees(draft, answer.answer, self._names) for answer in answers]
        wrong = [
            answer for answer, is_right in zip(answers, right, strict=True) if answer.answer and not is_right
        ]
        return replace(
            judged,
            votes=(
                GateVote(
                    GateCheck.KNOWN,
                    len(answers),
                    len(answers) - sum(right),
                    tuple(answer.answer for answer in answers),
                ),
            ),
            known=sum(right) / len(answers) if answers else None,
            disputed=any(wrong_answer.is_certain for wrong_answer in wrong),
            recalled=tuple(dict.fromkeys(wrong_answer.answer for wrong_answer in wrong)),
        )

    async def _read(self, judged: Sequence[JudgedDraft]) -> list[JudgedDraft]:
        """Have readers answer all drafts from all documents, each in another order."""
        open_drafts = [
            self._unless_known(draft) if self._settings.drop_known else draft
            for draft in judged
            if draft.passed
        ]
        checked_drafts = [open_draft for open_draft in open_drafts if open_draft.passed]
        samples = await together(
            partial(self._sample, checked_drafts, sample)
            for sample in range(self._settings.evidence_samples if checked_drafts else 0)
        )
        done = {open_draft.number: open_draft for open_draft in open_drafts}
        for index, draft in enumerate(checked_drafts):
            done[draft.number] = self._weighed(draft, [sample.get(index) for sample in samples])
        return [done.get(draft.number, draft) if draft.passed else draft for draft in judged]

    @staticmethod
    def _unless_known(judged: JudgedDraft) -> JudgedDraft:
        if judged.known != 1.0:
            return judged
        return replace(
            judged,
            findings=(DraftFault(GateCheck.KNOWN, "a model always knows the answer", repairable=False),),
        )

    async def _sample(self, drafts: Sequence[JudgedDraft], sample: int) -> dict[int, ReadingAnswer]:
        """Return the readings of a sample, by the places of the drafts."""
        order = list(range(len(drafts)))
        Random(f"{self._group} {sample}").shuffle(order)
        size = self._settings.batch
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        kind = drafts[0].attempt
        batch_readings = await together(
            partial(self._read_batch, drafts, batch, sample, f"evidence/{kind}/{sample}/{number}")
            for number, batch in enumerate(batches)
        )
        return {index: reading for readings in batch_readings for index, reading in readings.items()}

    async def _read_batch(
        self, drafts: Sequence[JudgedDraft], batch: Sequence[int], sample: int, key: str
    ) -> dict[int, ReadingAnswer]:
        """Ask for readings of several questions; of an answer that was cut at its limit, in two halves."""
        questions = tuple(
            AskedQuestion(number, drafts[index].draft.question) for number, index in enumerate(batch, 1)
        )
        request = ReadingRequest(documents=self._documents, questions=questions, sample=sample)
        reply = await self._ask(key, Reply[Readings], partial(self._roles.reader.read_all, request))
        if reply.value is not None:
            return {
                batch[reading.number - 1]: reading
                for reading in reply.value.readings
                if 0 < reading.number <= len(batch)
            }
        if reply.failure is None or reply.failure.kind != ModelFailureKind.TOO_LONG or len(batch) < 2:
            return {}
        half = len(batch) // 2
        parts = await together(
            partial(self._read_batch, drafts, part, sample, f"{key}/{number}")
            for number, part in enumerate((batch[:half], batch[half:]), 1)
        )
        return {index: reading for part in parts for index, reading in part.items()}

    def _weighed(self, judged: JudgedDraft, readings: Sequence[ReadingAnswer | None]) -> JudgedDraft:
        """Return a draft with what readers said: all must give its answer, and no other one."""
        answered = [reading for reading in readings if reading is not None]
        if len(answered) < len(readings):
            return replace(judged, findings=(_unanswered(GateCheck.EVIDENCE),))
        draft = judged.draft
        favours = [
            len(reading.answers) == 1 and agrees(draft, reading.answers[0], self._names)
            for reading in answered
        ]
        naturalness = sum(reading.naturalness for reading in answered) / len(answered)
        vote = GateVote(
            GateCheck.EVIDENCE,
            len(answered),
            sum(favours),
            tuple("; ".join(reading.answers) for reading in answered),
        )
        findings: list[DraftFault] = []
        if not all(favours):
            other = answered[favours.index(False)]
            stated = "; ".join(other.answers) or "not determined"
            findings.append(DraftFault(GateCheck.EVIDENCE, f"a reader answers {stated}: {other.derivation}"))
        elif naturalness < MIN_NATURALNESS:
            findings.append(
                DraftFault(
                    GateCheck.NATURALNESS, f"readers find that nobody would ask it ({naturalness:.1f} of 5)"
                )
            )
        elif not draft.documents:
            draft, faults = self._located(draft, answered)
            findings += faults
        votes = (*judged.votes, vote)
        return replace(judged, draft=draft, votes=votes, findings=tuple(findings), naturalness=naturalness)

    def _located(
        self, draft: Draft, readings: Sequence[ReadingAnswer]
    ) -> tuple[Draft, tuple[DraftFault, ...]]:
        """Return a draft that names no documents with those that all readers used; those with its answer stand last."""
        used = {
            number
            for number in readings[0].documents
            if all(number in reading.documents for reading in readings)
        }
        texts = {document.number: document.text for document in self._documents if document.number in used}
        numbers = sorted(texts, key=lambda number: (contains_phrase(texts[number], draft.answer), number))
        least = self._settings.rules.min_documents
        faults: tuple[DraftFault, ...] = ()
        if len(numbers) < least:
            reason = f"readers need {len(numbers) or 'no'} document, not {least}"
            faults = (DraftFault(GateCheck.ONE_DOCUMENT, reason),)
        return replace(draft, documents=tuple(numbers)), faults

    async def _again(self, judged: Sequence[JudgedDraft]) -> list[JudgedDraft]:
        """Make the calls again whose results drafts need."""
        repeated = self._repeated
        if repeated is None:
            return list(judged)
        results = {document.number: document.nodes for document in self._documents if document.computed}
        wanted = dict.fromkeys(
            node
            for draft in judged
            if draft.passed
            for number in draft.draft.documents
            for node in results.get(number, ())
        )
        repeat_faults = await together(partial(repeated.fault, node) for node in wanted)
        faults = {node: fault for node, fault in zip(wanted, repeat_faults, strict=True) if fault}

        def checked(judged: JudgedDraft) -> JudgedDraft:
            nodes = (node for number in judged.draft.documents for node in results.get(number, ()))
            fault = next((faults[node] for node in nodes if node in faults), "")
            findings = (DraftFault(GateCheck.REPEATED, fault, repairable=False),) if fault else ()
            return replace(judged, findings=findings)

        return [checked(draft) if draft.passed else draft for draft in judged]

    async def _over_the_corpus(self, judged: JudgedDraft) -> JudgedDraft:
        """Look for other answers in the whole corpus; at the same time, hide the document that states the answer."""
        checks = [partial(self._look_for_others, judged)]
        if not judged.remembered:
            checks.insert(0, partial(self._read_without, judged, _answering(judged.draft), "hidden2"))
        if not any(vote.check is GateCheck.ONE_DOCUMENT for vote in judged.votes):
            # Readers found its documents only now.
            checks.append(partial(self._read_without, judged, _others_of(judged.draft), "hidden"))
        done = await together(checks)
        findings = tuple(finding for check_result in done for finding in check_result.findings)
        votes = (*judged.votes, *(vote for check_result in done for vote in check_result.votes))
        failed = [vote.agreed for vote in votes if vote.check is GateCheck.ONE_DOCUMENT]
        necessary = 0 if findings else min(len(judged.draft.documents), 1 + (bool(failed) and all(failed)))
        return replace(judged, findings=findings, votes=votes, necessary=necessary)

    async def _look_for_others(self, judged: JudgedDraft) -> JudgedDraft:
        draft = judged.draft
        if self._search is None:
            return replace(judged, votes=())
        candidates = _distinct([*judged.recalled, *(rival.answer for rival in draft.rivals)])[:MAX_CANDIDATES]
        queries = [draft.question, *candidates]
        documents = await self._search.search(
            f"search/{self._group}/{judged.number}/{judged.attempt}", queries
        )
        if not documents:
            return replace(judged, votes=())
        request = OthersRequest(
            question=draft.question, answer=draft.answer, candidates=tuple(candidates), documents=documents
        )
        reply = await self._ask(
            f"others/{judged.number}/{judged.attempt}",
            Reply[OtherAnswers],
            partial(self._roles.reader.find_others, request),
        )
        if reply.value is None:
            return replace(judged, findings=(_unanswered(GateCheck.UNIQUE),), votes=())
        rivals = reply.value
        others = [other for other in rivals.others if not agrees(draft, other.answer, self._names)]
        vote = GateVote(
            GateCheck.UNIQUE, 1, int(not others and not rivals.ended), tuple(other.answer for other in others)
        )
        findings: list[DraftFault] = []
        if others:
            findings.append(
                DraftFault(GateCheck.UNIQUE, f"{others[0].answer} fits as well: {others[0].reason}")
            )
        elif rivals.ended:
            findings.append(DraftFault(GateCheck.UNIQUE, f"it no longer holds: {rivals.ended}"))
        elif rivals.one_document and len(draft.documents) > 1:
            title = next(
                (
                    document.title or document.id
                    for document in documents
                    if document.number == rivals.one_document
                ),
                "",
            )
            findings.append(
                DraftFault(GateCheck.ONE_DOCUMENT, f"one document of the corpus answers it: {title}")
            )
        return replace(judged, findings=tuple(findings), votes=(vote,))

    async def _repair(self, judged: Sequence[JudgedDraft]) -> list[JudgedDraft]:
        """Have fallen drafts written anew, and check them; those that pass are new drafts."""
        fallen = [
            draft
            for draft in judged
            if not draft.passed and all(fault.repairable for fault in draft.findings)
        ]
        passed = [draft for draft in judged if draft.passed]
        again = await self._rewritten(
            "repair", fallen, [tuple(fault.reason for fault in draft.findings) for draft in fallen], attempt=2
        )
        return self._without_duplicates([*passed, *again])[len(passed) :]

    async def _described(self, judged: Sequence[JudgedDraft]) -> list[JudgedDraft]:
        """Have accepted questions describe what they name; one whose description fails a check stays as it was."""
        passed = [draft for draft in judged if draft.passed]
        again = await self._rewritten("fuzz", passed, [(_DESCRIBE,)] * len(passed), attempt=3)
        described = {draft.number: draft for draft in again if draft.passed}
        return [described.get(draft.number, draft) if draft.passed else draft for draft in judged]

    async def _rewritten(
        self, key: str, drafts: Sequence[JudgedDraft], reasons: Sequence[tuple[str, ...]], *, attempt: int
    ) -> list[JudgedDraft]:
        """Have drafts written anew, each for some reasons, and check them."""
        if not drafts:
            return []
        rules = self._settings.rules
        request = RepairRequest(
            documents=self._documents,
            fallen=tuple(
                FallenDraft(number, draft.draft, reason)
                for number, (draft, reason) in enumerate(zip(drafts, reasons, strict=True), 1)
            ),
            max_words=rules.max_words,
            min_steps=rules.min_steps,
        )
        reply = await self._ask(
            key, Reply[RepairedDrafts], partial(self._roles.generator.repair_questions, request)
        )
        rewritten = {
            drafts[repaired.number - 1].number: repaired.draft
            for repaired in (reply.value.drafts if reply.value is not None else ())
            if 0 < repaired.number <= len(drafts)
        }
        return await self.judge(
            [JudgedDraft(draft=draft, number=number, attempt=attempt) for number, draft in rewritten.items()]
        )

    async def _ask(self, key: str, kind: type[Reply[T]], call: Callable[[], Awaitable[Reply[T]]]) -> Reply[T]:
        name, _, rest = key.partition("/")
        path = f"{self._group}/{rest}" if rest else self._group
        return await self._calls.reply(f"{name}/{path}", kind, call)


def _others_of(draft: Draft) -> tuple[int, ...]:
    """Return the documents of a draft other than the one that states its answer."""
    answering = _answering(draft)
    return tuple(number for number in draft.documents if number not in answering)


def _answering(draft: Draft) -> tuple[int, ...]:
    """Return the document of the last quote, which states the answer or the last figure that it is computed from."""
    return draft.documents[-1:]


def _unanswered(check: GateCheck) -> DraftFault:
    return DraftFault(check, "no reader answered", repairable=False)


def _distinct(answers: Iterable[str]) -> list[str]:
    return list({normalise(answer): answer for answer in answers if answer.strip()}.values())
