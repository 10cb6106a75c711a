"""The extractive reader: answers questions from the facts that passages state, and from nothing else."""

from functools import lru_cache

from msgspec.structs import replace

from agentflow.facts import (
    ClosedSet,
    EntityValue,
    EvidenceAnswer,
    EvidenceRequest,
    Fact,
    FactFault,
    FactStore,
    Translation,
    Value,
    chunks_of,
    evaluate,
    locate,
    locate_set,
    normalise_name,
    program_of,
    read_tables,
    show_value,
)
from agentflow.offline._extraction import extracted
from agentflow.offline._translation import translated
from agentflow.trajectory import Action, Node, Observation, Text, Verdict, digest

_ACTION = Action("read", {})
_key = lru_cache(maxsize=8192)(normalise_name)


def read_evidence(request: EvidenceRequest) -> EvidenceAnswer:
    """Answer a question from passages; give several answers if several fit, and none if they do not determine one."""
    return answer_texts(request.question, tuple(passage.text for passage in request.passages))


def answer_texts(question: str, texts: tuple[str, ...]) -> EvidenceAnswer:
    """Answer a question from texts."""
    store = _store(texts)
    sets = tuple(sorted(one.description for one in store.sets.values()))
    steps = translated(question, tuple(sorted(store.relations)), sets)
    if not steps:
        return EvidenceAnswer((), "The passages say nothing about it.", ())
    result = evaluate(program_of(Translation(steps), store), store)
    if not result.answers:
        return EvidenceAnswer((), f"The passages do not determine it: {result.reason}.", ())
    used = dict.fromkeys(id for answer in result.answers for id in answer.facts)
    quotes = tuple(dict.fromkeys(_quote(store.by_id[id], texts) for id in used))
    answers = dict.fromkeys(show_value(answer.value) for answer in result.answers)
    return EvidenceAnswer(quotes, "; ".join(quotes), tuple(answers))


def _store(texts: tuple[str, ...]) -> FactStore:
    """Return the facts that texts state. Names are the same if they differ in case, accents or article only."""
    names: dict[str, str] = {}
    facts: dict[tuple[str, str, Value, object], Fact] = {}
    sets: dict[str, ClosedSet] = {}

    def name(text: str) -> str:
        return names.setdefault(_key(text), text)

    for text in dict.fromkeys(texts):
        own, listed = _stated(text)
        for fact in own:
            subject, value = name(fact.subject), fact.value
            if isinstance(value, EntityValue) and name(value.name) != value.name:
                value = EntityValue(name(value.name))
            named = fact
            if subject != fact.subject or value is not fact.value:
                named = replace(fact, subject=subject, value=value)
            facts.setdefault((subject, fact.relation, value, fact.time), named)
        for one in listed:
            sets.setdefault(one.description, replace(one, members=tuple(map(name, one.members))))
    return FactStore(facts.values(), sets.values())


@lru_cache(maxsize=1024)
def _stated(text: str) -> tuple[tuple[Fact, ...], tuple[ClosedSet, ...]]:
    """Return facts and complete sets of a text; the passages of a question share most texts."""
    node = Node(
        id=digest(text),
        parent=None,
        depth=1,
        position=0,
        intent="",
        action=_ACTION,
        observation=Observation((Text(text),)),
        verdict=Verdict.NEW,
    )
    tables = read_tables(node)
    facts, sets = list(tables.facts), list(tables.sets)
    for chunk in chunks_of(text):
        found = extracted(chunk.shown)
        located = (locate(fact, chunk, node) for fact in found.facts)
        facts += (fact for fact in located if not isinstance(fact, FactFault))
        closed = (locate_set(one, chunk, node) for one in found.sets)
        sets += (one for one in closed if not isinstance(one, FactFault))
    return tuple(facts), tuple(sets)


def _quote(fact: Fact, texts: tuple[str, ...]) -> str:
    span = fact.spans[0]
    text = next(text for text in texts if digest(text) == span.node)
    return text[span.start : span.end]
