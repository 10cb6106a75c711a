"""Questions that the offline engine makes from trees over the bundled corpus: facts, skeletons, words, checks."""

import re
from functools import cache

import pytest

from agentflow.facts import (
    KIND,
    ChunkExtraction,
    EntityValue,
    EvidenceAnswer,
    EvidenceRequest,
    Extraction,
    ExtractionRequest,
    FactStore,
    NumberValue,
    Program,
    ProgramStep,
    Skeleton,
    Translation,
    TranslationRequest,
    TranslationStep,
    Wording,
    WordingRequest,
    answer_agrees,
    build_store,
    chunks_of,
    closed_sets,
    enumerate_skeletons,
    evaluate,
    kind_of,
    minimal_support,
    passages_for,
    program_of,
    same_meaning,
    select_questions,
    show_value,
)
from agentflow.offline import answer
from agentflow.trajectory import Node, Observation, Text, Verdict, canonical
from tests.agentflow.offline._walks import SEARCH, seeds, walks

STUTTER = re.compile(r"\b(\w+) \1\b|\bthing\b|\[|\]|  |_")


@cache
def nodes(seed: str) -> tuple[Node, ...]:
    """Return the nodes of a tree that the offline planner grows."""
    steps = {canonical(step.action): step for path in walks(seed, (SEARCH,)) for step in path}
    return tuple(
        Node(
            id=f"n{number}",
            parent=None,
            depth=1,
            position=number,
            intent="",
            action=step.action,
            observation=Observation((Text(step.observation),)),
            verdict=Verdict.NEW,
        )
        for number, step in enumerate(steps.values())
    )


@cache
def store(seed: str) -> FactStore:
    """Return the facts of a tree."""
    found: list[ChunkExtraction] = []
    for node in nodes(seed):
        assert node.action is not None
        for chunk in chunks_of(node.observation.text):
            request = ExtractionRequest(seed=seed, action=node.action, text=chunk.shown)
            extraction = answer(request)
            assert isinstance(extraction, Extraction)
            found.append(ChunkExtraction(node.id, chunk, extraction))
    build = build_store(nodes(seed), found)
    assert build.faults == ()
    return build.store


def written(step: ProgramStep, known: FactStore) -> TranslationStep:
    """Return a step as a reader writes it."""
    inputs = tuple(f"#{one}" if isinstance(one, int) else show_value(one) for one in step.inputs)
    if step.name:
        inputs = (known.sets[step.name].description,)
    return TranslationStep(step.operator, inputs, step.relation, step.comparison)


def noun(program: Program, known: FactStore) -> str:
    """Return the class that all results of a program share."""
    names = [one.value.name for one in evaluate(program, known).answers if isinstance(one.value, EntityValue)]
    kinds = [{show_value(fact.value) for fact in known.of(name, KIND)} for name in names]
    return min(set[str].intersection(*kinds), default="") if kinds else ""


def worded(skeleton: Skeleton, known: FactStore, seed: str) -> str:
    """Return the words of a skeleton."""
    texts = [node.observation.text for node in nodes(seed)]
    definite = tuple(
        name
        for name in skeleton.given
        if any(re.search(rf"[a-z,] the {re.escape(name)}(?! [A-Z])", text) for text in texts)
    )
    request = WordingRequest(
        kind=skeleton.kind,
        program=(),
        answer_kind=kind_of(skeleton.answer),
        unit=skeleton.answer.unit if isinstance(skeleton.answer, NumberValue) else "",
        facts=(),
        given=skeleton.given,
        max_words=30,
        seed=seed,
        steps=tuple(written(step, known) for step in skeleton.program),
        nouns=tuple(noun(skeleton.program[: number + 1], known) for number in range(len(skeleton.program))),
        definite=definite,
    )
    wording = answer(request)
    assert isinstance(wording, Wording)
    return wording.question


def translated(question: str, known: FactStore) -> Program:
    """Return the program that the engine reads in a question."""
    sets = tuple(sorted(one.description for one in known.sets.values()))
    found = answer(TranslationRequest(question=question, relations=tuple(sorted(known.relations)), sets=sets))
    assert isinstance(found, Translation)
    return program_of(found, known)


def read(
    question: str, skeleton: Skeleton, known: FactStore, seed: str, hidden: tuple[str, ...] = ()
) -> bool:
    """Return true if a reader of the evidence gives the answer of a skeleton, and no other one."""
    passages = passages_for(
        known,
        nodes(seed),
        [known.by_id[id] for id in skeleton.facts],
        support=minimal_support(skeleton.facts, known, closed_sets(skeleton.program)),
        hidden=[known.by_id[id] for id in hidden],
        question=question,
    )
    request = EvidenceRequest(
        question=question,
        passages=tuple(passage.shown for passage in passages),
        answer_kind=kind_of(skeleton.answer),
    )
    found = answer(request)
    assert isinstance(found, EvidenceAnswer)
    assert all(any(quote in passage.text for passage in request.passages) for quote in found.quotes)
    return len(found.answers) == 1 and answer_agrees(skeleton.answer, found.answers[0])


@pytest.mark.promise("offline:questions")
@pytest.mark.parametrize("seed", [seeds()[2], seeds()[3], seeds()[9]])
def test_questions_about_a_tree_are_natural_and_pass_every_check(seed: str) -> None:
    known = store(seed)
    skeletons = enumerate_skeletons(known, [seed])
    chosen = select_questions(skeletons, 8)
    questions = {question: each for each in chosen if (question := worded(each, known, seed))}
    assert len(questions) >= 6
    assert len({skeleton.kind for skeleton in questions.values()}) >= 4
    for question, skeleton in questions.items():
        assert question[0].isupper()
        assert question.endswith("?")
        assert STUTTER.search(question) is None, question
        assert same_meaning(translated(question, known), skeleton.program, known), question
        assert read(question, skeleton, known, seed), question
        assert not any(read(question, skeleton, known, seed, (fact,)) for fact in skeleton.facts), question
