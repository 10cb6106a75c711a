"""Checks of a draft against the facts of its tree: first those without a model, then readers who never see its answer."""

from collections.abc import Awaitable, Callable, Iterator
from functools import lru_cache, partial
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from agentflow.actors import together
from agentflow.facts import (
    BoolValue,
    ClosedBookRequest,
    EvidenceAnswer,
    EvidencePassage,
    EvidenceRequest,
    Fact,
    FactSpan,
    FactStore,
    QuestionKind,
    Translation,
    TranslationRequest,
    TreePassages,
    answer_agrees,
    closed_sets,
    describe_program,
    evaluate,
    instructs,
    kind_of,
    minimal_support,
    program_of,
    same_meaning,
    seed_distances,
    show_value,
    support_distance,
    values_agree,
)
from agentflow.synthesis._form_checks import QuestionMentions, check_form
from agentflow.synthesis._journalled_calls import JournalledCalls
from agentflow.synthesis._question_draft import Check, CheckedQuestion, Finding, QuestionDraft, Vote
from agentflow.synthesis._roles import ReaderPort
from agentflow.trajectory import Look, LookRequest, Node, Reply, digest

MAX_SEED_DISTANCE = 3
"""Maximum number of facts between an entity of the seed and the facts of a question."""
MAX_LEFT_OUT = 6
"""Maximum number of facts of a question that are left out in turn; further ones count as needed by its program."""
MAX_READ_ALONE = 2
"""Maximum number of observations that a reader is shown alone, because they seem to state all facts of a question."""
NEAR = 1_000
"""Characters around a fact in which instructions to a model make it doubtful."""
MAX_RELATIONS = 40
"""Maximum number of relations that a reader chooses from when it translates a question."""


class SearchPort(Protocol):
    """Search for alternative answers."""

    async def search(self, key: str, question: str) -> str:
        """Return the text of the results; empty if there is no tool that searches."""
        ...


class CheckSettings(Struct, frozen=True, kw_only=True):
    """Settings of the checks."""

    max_words: int = 85
    """Maximum number of words of a question."""
    min_hops: int = 2
    """Minimum number of facts that a question needs."""
    min_observations: int = 2
    """Minimum number of observations that state them."""
    closed_book_samples: int = 3
    """Times that a model is asked without evidence; 0 skips the check."""
    evidence_samples: int = 2
    """Times that a reader answers from the evidence; one more if they disagree; 0 skips this and the check of hops."""
    distractors: int = 4
    """Observations shown to a reader that do not state the facts."""
    evidence_chars: int = 24_000
    """Characters of the passages that a reader is shown; the facts are never cut."""
    require_seed: bool = True
    """Reject questions that are not connected to the seed."""


class FactsOfTree(Struct, frozen=True, kw_only=True):
    """Facts of a tree, and the observations that state them."""

    store: FactStore
    """The facts."""
    nodes: tuple[Node, ...]
    """Nodes with evidence, in path order."""
    seed_names: tuple[str, ...]
    """Names in the seed."""
    contradicted: frozenset[str] = frozenset()
    """Ids of facts that another observation contradicts."""


class QuestionChecker:
    """Checks drafts of a tree. It stops at the first check that finds a fault."""

    def __init__(
        self,
        known: FactsOfTree,
        settings: CheckSettings,
        reader: ReaderPort,
        calls: JournalledCalls,
        *,
        look: Callable[[LookRequest], Awaitable[Reply[Look]]] | None = None,
        search: SearchPort | None = None,
    ) -> None:
        """Check drafts against these facts.

        :param look: checks images; without it, facts from images are not confirmed.
        :param search: finds texts with alternative answers; without it, none are looked for.
        """
        self._known = known
        self._settings = settings
        self._reader = reader
        self._calls = calls
        self._look = look
        self._search = search
        self._observations = TreePassages(known.store, known.nodes)
        self._supports: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[str, ...]] = {}
        self._texts = {node.id: node.observation.text for node in known.nodes}
        self._mentions = QuestionMentions(known.store)
        self._seed_distances = seed_distances(known.store, known.seed_names)
        self._relations = tuple(sorted({fact.relation for fact in known.store.facts}))
        self._set_names = {one.id: one.description for one in known.store.sets.values()}
        self._sets = tuple(sorted(self._set_names.values()))

    async def check(self, draft: QuestionDraft, key: str) -> CheckedQuestion:
        """Check a draft; the keys of its calls begin with a word and continue with `key`."""
        words = (*check_form(draft, self._settings.max_words), *self._mentions.faults(draft))
        if words:
            return CheckedQuestion(findings=words, reworded=bool(draft.question))
        if faults := self.check_facts(draft):
            return CheckedQuestion(findings=faults)
        # Citations that the program does not use are dropped.
        draft = replace(draft, facts=evaluate(draft.program, self._known.store).answers[0].facts)
        votes: list[Vote] = []
        needed = draft.facts
        stages = (self._see, self._translate, self._read, self._read_alone, self._doubt)
        for stage in stages:
            fault = await stage(draft, key, votes)
            if fault is not None:
                reworded = fault.check in _WORDS
                return CheckedQuestion(findings=(fault,), votes=tuple(votes), reworded=reworded)
        if self._settings.evidence_samples:
            needed, vote = await self._leave_out(draft, key)
            votes.append(vote)
        fault = self._count(needed, draft)
        return CheckedQuestion(
            findings=() if fault is None else (fault,),
            votes=tuple(votes),
            needed=needed,
            support=self._support(needed, draft),
        )

    def check_facts(self, draft: QuestionDraft) -> tuple[Finding, ...]:
        """Return the faults that the facts alone show, without a model and whatever the words."""
        return tuple(self._fact_faults(draft))

    def _fact_faults(self, draft: QuestionDraft) -> Iterator[Finding]:
        store = self._known.store
        unknown = [fact for fact in draft.facts if fact not in store.by_id]
        if unknown or not draft.facts:
            yield Finding(Check.SUPPORT, "no observation states a fact that the question rests on")
            return
        answers = evaluate(draft.program, store).answers
        if len(answers) != 1:
            said = ", ".join(show_value(each.value) for each in answers[:4])
            yield Finding(
                Check.ANSWER, f"several answers fit: {said}" if said else "the facts give no answer"
            )
        elif not values_agree(answers[0].value, draft.answer):
            yield Finding(Check.ANSWER, f"the facts give another answer: {show_value(answers[0].value)}")
        facts = answers[0].facts if len(answers) == 1 else draft.facts
        if len(facts) < self._settings.min_hops:
            yield Finding(Check.HOPS, f"it rests on {len(facts)} facts only")
        nodes = self._support(facts, draft)
        if len(nodes) < self._settings.min_observations:
            yield Finding(Check.SUPPORT, f"{len(nodes)} observation states all of its facts")
        injected = [fact for fact in facts if self._is_injected(store.by_id[fact])]
        if injected:
            yield Finding(
                Check.SUPPORT,
                f"it is stated beside instructions to a model only: {_stated(store.by_id[injected[0]])}",
            )
        wrong = [store.by_id[fact] for fact in facts if fact in self._known.contradicted]
        if wrong:
            yield Finding(
                Check.CONTRADICTION,
                f"observations contradict each other about the {wrong[0].relation} of {wrong[0].subject}",
            )
        if self._settings.require_seed and self._known.seed_names:
            distance = support_distance(facts, self._seed_distances, store)
            if distance is None or distance > MAX_SEED_DISTANCE:
                yield Finding(Check.SEED, "its facts are not connected to the seed")

    def _support(self, facts: tuple[str, ...], draft: QuestionDraft) -> tuple[str, ...]:
        key = (facts, closed_sets(draft.program))
        if key not in self._supports:
            self._supports[key] = minimal_support(facts, self._known.store, key[1])
        return self._supports[key]

    def _is_injected(self, fact: Fact) -> bool:
        """Return true if a text states a fact beside instructions to a model, and nothing else states it."""
        return all(
            span.node in self._texts
            and span.region is None
            and instructs(self._texts[span.node][max(span.start - NEAR, 0) : span.end + NEAR])
            for span in fact.spans
        )

    async def _see(self, draft: QuestionDraft, key: str, votes: list[Vote]) -> Finding | None:
        """Have a model confirm the facts from images, unless a text states them, too."""
        spans = [
            (fact, fact.spans[0])
            for fact in map(self._known.store.by_id.__getitem__, draft.facts)
            if all(span.region is not None for span in fact.spans)
        ]
        if not spans or self._look is None:
            return None
        looks = await together(
            partial(self._look_at, fact, span, f"look/{key}/{number}")
            for number, (fact, span) in enumerate(spans)
        )
        votes.append(Vote(Check.PICTURES, len(looks), sum(looks)))
        unseen = [fact for (fact, _), shows in zip(spans, looks, strict=True) if not shows]
        return Finding(Check.PICTURES, f"an image does not show {_stated(unseen[0])}") if unseen else None

    async def _look_at(self, fact: Fact, span: FactSpan, key: str) -> bool:
        assert self._look is not None
        assert span.region is not None
        images = [
            blob for node in self._known.nodes for blob in node.observation.blobs if blob.hash == span.image
        ]
        if not images:
            return False
        request = LookRequest(picture=images[0], region=span.region, quote=_stated(fact))
        look = await self._calls.ask(key, Reply[Look], "generator", partial(self._look, request))
        return look is not None and look.shows

    async def _translate(self, draft: QuestionDraft, key: str, votes: list[Vote]) -> Finding | None:
        """Require that one of two translations has the meaning of the program."""
        said: list[str] = []
        for sample in range(2):
            request = TranslationRequest(
                question=draft.question, relations=self._offered(draft), sets=self._sets, sample=sample
            )
            translation = await self._calls.ask(
                f"translate/{key}/{sample}",
                Reply[Translation],
                _READER,
                partial(self._reader.translate, request),
            )
            program = () if translation is None else program_of(translation, self._known.store)
            if program and same_meaning(program, draft.program, self._known.store):
                votes.append(Vote(Check.MEANING, sample + 1, 1, tuple(said)))
                return None
            said.append("; ".join(describe_program(program, self._set_names)) or "not determined")
        votes.append(Vote(Check.MEANING, 2, 0, tuple(said)))
        return Finding(Check.MEANING, f"the question can be read as: {said[0]}")

    def _offered(self, draft: QuestionDraft) -> tuple[str, ...]:
        """Return the relations to choose from: those of the program, and others in alphabetical order."""
        own = {step.relation for step in draft.program if step.relation}
        others = [relation for relation in self._relations if relation not in own]
        return tuple(sorted([*own, *others[: max(0, MAX_RELATIONS - len(own))]]))

    async def _read(self, draft: QuestionDraft, key: str, votes: list[Vote]) -> Finding | None:
        """Require that most readers give the answer, and no other one."""
        samples = self._settings.evidence_samples
        if not samples:
            return None
        ask = partial(self._answer_from, draft, frozenset())
        answers = list(await together(partial(ask, number, f"{key}/{number}") for number in range(samples)))
        if len({_favours(answer, draft) for answer in answers}) > 1:
            answers.append(await ask(samples, f"{key}/{samples}"))
        agreed = sum(_favours(answer, draft) for answer in answers)
        votes.append(Vote(Check.EVIDENCE, len(answers), agreed, tuple(map(_said, answers))))
        if 2 * agreed > len(answers):
            return None
        others = [answer for answer in answers if not _favours(answer, draft)]
        return Finding(Check.EVIDENCE, f"a reader answers from the evidence: {_said(others[0])}")

    async def _read_alone(self, draft: QuestionDraft, key: str, votes: list[Vote]) -> Finding | None:
        """Reject a question that one observation answers, though its facts were extracted from several."""
        if not self._settings.evidence_samples or self._settings.min_observations < 2:
            return None
        store = self._known.store
        stating = [self._observations.stating(store.by_id[fact]) for fact in draft.facts]
        common = [node.id for node in self._known.nodes if all(node.id in each for each in stating)]
        for node in common[:MAX_READ_ALONE]:
            passage = self._observations.alone(node, draft.question, self._settings.evidence_chars)
            answer = await self._read_passages(draft, (passage.shown,), 0, f"read/{key}/{node}")
            votes.append(Vote(Check.SUPPORT, 1, int(not _favours(answer, draft)), (_said(answer),)))
            if _favours(answer, draft):
                return Finding(Check.SUPPORT, f"one observation answers it: {node}")
        return None

    async def _doubt(self, draft: QuestionDraft, key: str, votes: list[Vote]) -> Finding | None:
        """Ask without evidence and search for other answers at the same time."""
        recalled: list[Vote] = []
        found: list[Vote] = []
        faults = await together(
            [
                partial(self._recall, draft, key, recalled),
                partial(self._find_alternatives, draft, key, found),
            ]
        )
        votes += [*recalled, *found]
        return next((fault for fault in faults if fault is not None), None)

    async def _recall(self, draft: QuestionDraft, key: str, votes: list[Vote]) -> Finding | None:
        """Reject a question that a model answers from its own knowledge; chance is discounted for yes and no."""
        samples = self._settings.closed_book_samples
        if not samples:
            return None

        async def ask(number: int) -> EvidenceAnswer | None:
            request = ClosedBookRequest(question=draft.question, sample=number)
            return await self._calls.ask(
                f"recall/{key}/{number}",
                Reply[EvidenceAnswer],
                _READER,
                partial(self._reader.recall, request),
            )

        choice = _is_choice(draft)
        if choice:
            # A choice is known only if every sample is right; half of the guesses are.
            answers: list[EvidenceAnswer | None] = []
            while len(answers) < samples and all(_favours(answer, draft) for answer in answers):
                answers.append(await ask(len(answers)))
        else:
            answers = await together(partial(ask, number) for number in range(samples))
        known = sum(_favours(answer, draft) for answer in answers)
        votes.append(Vote(Check.TOO_EASY, len(answers), len(answers) - known, tuple(map(_said, answers))))
        if known == samples or (known and not choice):
            return Finding(Check.TOO_EASY, f"a model answers it without evidence: {show_value(draft.answer)}")
        return None

    async def _find_alternatives(self, draft: QuestionDraft, key: str, votes: list[Vote]) -> Finding | None:
        """Look for other answers in the results of a search with the question."""
        if self._search is None or not self._settings.evidence_samples or draft.kind not in _OPEN:
            return None
        found = await self._search.search(f"search/{key}", draft.question)
        if not found.strip():
            return None
        passages = self._passages(draft, frozenset(), 0)
        last = EvidencePassage(number=len(passages) + 1, text=found)
        others: list[str] = []
        answers: list[EvidenceAnswer | None] = []
        # One reader that errs does not decide: most of three have to find another answer.
        while len(answers) < 3 and (not answers or len(others) == 1):
            number = len(answers)
            suffix = f"/{number}" if number else ""
            shown = (*passages, last)
            answer = await self._read_passages(draft, shown, number, f"read/{key}/search{suffix}")
            answers.append(answer)
            said = () if answer is None else answer.answers
            wrong = [one for one in said if not _agrees(draft.answer, one, question=draft.question)]
            others += wrong[:1]
        samples = len(answers)
        votes.append(Vote(Check.ALTERNATIVES, samples, samples - len(others), tuple(map(_said, answers))))
        if 2 * len(others) <= samples:
            return None
        return Finding(Check.ALTERNATIVES, f"a search finds another answer: {others[0]}")

    async def _leave_out(self, draft: QuestionDraft, key: str) -> tuple[tuple[str, ...], Vote]:
        """Return the facts without which a reader fails."""

        async def needs(number: int, fact: str) -> bool:
            for sample in range(2):
                answer = await self._answer_from(
                    draft, frozenset({fact}), sample, f"{key}/without-{number}-{sample}"
                )
                # A failed call shows nothing.
                if answer is not None and not _favours(answer, draft):
                    return True
            return False

        tried = draft.facts[:MAX_LEFT_OUT]
        results = await together(partial(needs, number, fact) for number, fact in enumerate(tried))
        unneeded = {fact for fact, own in zip(tried, results, strict=True) if not own}
        needed = tuple(fact for fact in draft.facts if fact not in unneeded)
        return needed, Vote(Check.HOPS, len(results), len(tried) - len(unneeded))

    def _count(self, needed: tuple[str, ...], draft: QuestionDraft) -> Finding | None:
        if len(needed) < self._settings.min_hops:
            return Finding(Check.HOPS, f"a reader needs {len(needed)} of its {len(draft.facts)} facts")
        if len(self._support(needed, draft)) < self._settings.min_observations:
            return Finding(Check.SUPPORT, "one observation states all facts that a reader needs")
        return None

    async def _answer_from(
        self, draft: QuestionDraft, hidden: frozenset[str], sample: int, key: str
    ) -> EvidenceAnswer | None:
        return await self._read_passages(draft, self._passages(draft, hidden, sample), sample, f"read/{key}")

    def _passages(
        self, draft: QuestionDraft, hidden: frozenset[str], sample: int
    ) -> tuple[EvidencePassage, ...]:
        """Return the passages for a sample; each sample sees them in another order."""
        store = self._known.store
        found = self._observations.passages(
            [store.by_id[fact] for fact in draft.facts],
            sets=[store.sets[one] for one in closed_sets(draft.program) if one in store.sets],
            support=self._support(draft.facts, draft),
            hidden=[store.by_id[fact] for fact in hidden],
            question=draft.question,
            distractors=self._settings.distractors,
            budget=self._settings.evidence_chars,
        )
        if sample:
            found = sorted(found, key=lambda passage: digest([draft.question, sample, passage.node]))
        return tuple(replace(passage.shown, number=number) for number, passage in enumerate(found, start=1))

    async def _read_passages(
        self, draft: QuestionDraft, passages: tuple[EvidencePassage, ...], sample: int, key: str
    ) -> EvidenceAnswer | None:
        request = EvidenceRequest(
            question=draft.question,
            passages=passages,
            answer_kind=kind_of(draft.answer),
            sample=sample,
        )
        return await self._calls.ask(key, Reply[EvidenceAnswer], _READER, partial(self._reader.read, request))


_READER = "reader"
_OPEN = frozenset(
    {
        QuestionKind.BRIDGE,
        QuestionKind.INTERSECTION,
        QuestionKind.AGGREGATE,
        QuestionKind.COUNT,
        QuestionKind.LIST,
    }
)
"""Kinds whose answers are looked up; those of the others are computed from values of named things."""
_WORDS = frozenset({Check.MEANING, Check.EVIDENCE, Check.ALTERNATIVES})
"""Checks whose faults other words may avoid."""


_agrees = lru_cache(maxsize=256)(answer_agrees)
"""Cached: samples give the same answer, and a check asks more than once."""


def _favours(answer: EvidenceAnswer | None, draft: QuestionDraft) -> bool:
    """Return true if a reader gives this answer and no other one."""
    if answer is None or len(answer.answers) != 1:
        return False
    return _agrees(draft.answer, answer.answers[0], question=draft.question)


def _said(answer: EvidenceAnswer | None) -> str:
    if answer is None:
        return "no reply"
    return " | ".join(answer.answers) or "not determined"


def _is_choice(draft: QuestionDraft) -> bool:
    """Return true if guessing gives the right answer often: yes or no, or one of the names in the question."""
    return isinstance(draft.answer, BoolValue) or show_value(draft.answer) in draft.given


def _stated(fact: Fact) -> str:
    return f"the {fact.relation} of {fact.subject}: {show_value(fact.value)}"
