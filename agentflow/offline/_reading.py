"""The extractive reader: answers questions from the facts that passages state, and from nothing else."""

from functools import lru_cache

from agentflow.facts import (
    ChunkExtraction,
    EvidenceAnswer,
    EvidenceRequest,
    FactStore,
    Program,
    Translation,
    TranslationStep,
    build_store,
    chunks_of,
    evaluate,
    program_of,
    show_value,
)
from agentflow.offline._extraction import extracted
from agentflow.offline._translation import translated
from agentflow.trajectory import Action, Node, Observation, Text, Verdict

_ACTION = Action("read", {})


def read_evidence(request: EvidenceRequest) -> EvidenceAnswer:
    """Answer a question from passages; give several answers if several fit, and none if they do not determine one."""
    return answer_passages(request.question, tuple(passage.text for passage in request.passages))


@lru_cache(maxsize=1024)
def answer_passages(question: str, texts: tuple[str, ...]) -> EvidenceAnswer:
    """Answer a question from texts."""
    store = _store(texts)
    relations = tuple(sorted(store.relations))
    sets = tuple(sorted(one.description for one in store.sets.values()))
    steps = translated(question, relations, sets)
    if not steps:
        return EvidenceAnswer((), "The passages say nothing about it.", ())
    result = evaluate(_program(steps, store), store)
    if not result.answers:
        return EvidenceAnswer((), result.reason or "The passages do not determine the answer.", ())
    used = dict.fromkeys(id for answer in result.answers for id in answer.facts)
    quotes = dict.fromkeys(_quote(store, id, texts) for id in used)
    answers = tuple(dict.fromkeys(show_value(answer.value) for answer in result.answers))
    return EvidenceAnswer(tuple(quotes), " ".join(quotes), answers)


def _store(texts: tuple[str, ...]) -> FactStore:
    """Return the facts that texts state; each text is a node with its number as id."""
    nodes = [_node(str(number), text) for number, text in enumerate(texts)]
    found = [
        ChunkExtraction(node.id, chunk, extracted(chunk.shown))
        for node in nodes
        for chunk in chunks_of(node.observation.text)
    ]
    return build_store(nodes, found).store


def _node(id: str, text: str) -> Node:
    return Node(
        id=id,
        parent=None,
        depth=1,
        position=0,
        intent="",
        action=_ACTION,
        observation=Observation((Text(text),)),
        verdict=Verdict.NEW,
    )


def _program(steps: tuple[TranslationStep, ...], store: FactStore) -> Program:
    return program_of(Translation(steps), store)


def _quote(store: FactStore, id: str, texts: tuple[str, ...]) -> str:
    span = store.by_id[id].spans[0]
    return texts[int(span.node)][span.start : span.end]
