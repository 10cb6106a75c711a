"""Roles of synthesis without a model: they know a list of statements, and read only what a request shows them."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from agentflow.facts import (
    AliasJudgement,
    AliasRequest,
    ClosedBookRequest,
    EvidenceAnswer,
    EvidenceRequest,
    ExtractedFact,
    ExtractedSet,
    Extraction,
    ExtractionRequest,
    Fact,
    FactSpan,
    FactStore,
    Translation,
    TranslationRequest,
    TranslationStep,
    Wording,
    WordingRequest,
    evaluate,
    new_fact,
    new_set,
    parse_value,
    program_of,
    show_value,
)
from agentflow.text import find_quote
from agentflow.trajectory import Failure, Look, LookRequest, Reply, Usage

T = TypeVar("T")


class ScriptedRoles:
    """Generator and reader that are right, unless `fails` or a replaced method says otherwise.

    Facts are found where their quote is shown. A question means what its program says: `word` remembers the steps of each
    question, and `meanings` adds further ones.
    """

    def __init__(
        self,
        facts: Iterable[ExtractedFact],
        sets: Iterable[ExtractedSet] = (),
        *,
        meanings: Mapping[str, tuple[TranslationStep, ...]] | None = None,
        known: Mapping[str, str] | None = None,
        fails: Callable[[object], Failure | None] = lambda _: None,
    ) -> None:
        """Know these statements.

        :param meanings: steps of questions by their text.
        :param known: answers from memory, by question.
        :param fails: returns the failure of a request, or `None`.
        """
        self.facts = tuple(facts)
        """Statements."""
        self.sets = tuple(sets)
        """Complete enumerations."""
        self.meanings = dict(meanings or {})
        """Steps of each known question."""
        self.asked: list[object] = []
        """Requests, in order."""
        self._known = dict(known or {})
        self._fails = fails

    @property
    def counts(self) -> Counter[str]:
        """Number of requests by type."""
        return Counter(type(request).__name__ for request in self.asked)

    async def extract(self, request: ExtractionRequest) -> Reply[Extraction]:
        """Return the statements whose quotes are in the chunk."""
        facts = tuple(fact for fact in self.facts if _shows(request.text, fact.quote))
        sets = tuple(one for one in self.sets if _shows(request.text, one.quote))
        return self._reply(request, Extraction(facts, sets))

    async def compare_names(self, request: AliasRequest) -> Reply[AliasJudgement]:
        """Tell all names apart."""
        return self._reply(request, AliasJudgement((False,) * len(request.pairs)))

    async def word(self, request: WordingRequest) -> Reply[Wording]:
        """Put the program into words, and remember its meaning."""
        lines = "; ".join(re.sub(r"^\(\d+\) ", "", line) for line in request.program)
        number = f" (attempt {len(request.rejected) + 1})" if request.rejected else ""
        names = ", ".join(request.given)
        question = f"About {names}, which result has {lines}{number}?"
        self.meanings[question] = request.steps
        return self._reply(request, Wording(question))

    async def look(self, request: LookRequest) -> Reply[Look]:
        """Confirm what an image is said to show."""
        return self._reply(request, Look(True))

    async def translate(self, request: TranslationRequest) -> Reply[Translation]:
        """Return the meaning of a question."""
        return self._reply(request, Translation(self.meanings.get(request.question, ())))

    async def read(self, request: EvidenceRequest) -> Reply[EvidenceAnswer]:
        """Answer from the statements whose quotes are in the passages."""
        shown = "\n\n".join(passage.text for passage in request.passages)
        store = self.store_of(shown)
        program = program_of(Translation(self.meanings.get(request.question, ())), store)
        answers = evaluate(program, store).answers
        quotes = tuple(fact.quote for fact in self.facts if _shows(shown, fact.quote))[:4]
        said = tuple(show_value(answer.value) for answer in answers)
        return self._reply(request, EvidenceAnswer(quotes, "It follows from the quotes.", said))

    async def recall(self, request: ClosedBookRequest) -> Reply[EvidenceAnswer]:
        """Answer from memory."""
        known = self._known.get(request.question)
        return self._reply(request, EvidenceAnswer((), "", () if known is None else (known,)))

    def store_of(self, text: str) -> FactStore:
        """Return a store of the statements whose quotes are in a text."""
        facts: dict[str, Fact] = {}
        for said in self.facts:
            value = parse_value(said.value, said.kind, said.unit)
            span = find_quote(text, said.quote)
            if span is not None and value is not None:
                fact = new_fact(said.subject, said.relation, value, (FactSpan("shown", *span),))
                facts.setdefault(fact.id, fact)
        sets = [
            new_set(one.description, one.members, (FactSpan("shown", 0, 0),))
            for one in self.sets
            if _shows(text, one.quote)
        ]
        return FactStore(facts.values(), sets)

    def _reply(self, request: object, value: T) -> Reply[T]:
        self.asked.append(request)
        failure = self._fails(request)
        return Reply(failure=failure) if failure is not None else Reply(value, usage=Usage(1, 100, 10))


def _shows(text: str, quote: str) -> bool:
    return find_quote(text, quote) is not None
