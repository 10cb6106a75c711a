"""Requests for the words of a question: they contain neither its answer nor a hidden name."""

import re
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_uppercase

from agentflow.facts import (
    KIND,
    EntityValue,
    FactStore,
    NumberValue,
    Operator,
    Program,
    RejectedWording,
    Skeleton,
    TranslationStep,
    WordingRequest,
    describe_program,
    evaluate,
    kind_of,
    show_value,
)
from agentflow.synthesis._config import SynthesisConfig
from agentflow.synthesis._question_checks import FactsOfTree
from agentflow.trajectory import Tree


def wording_request(
    skeleton: Skeleton,
    known: FactsOfTree,
    tree: Tree,
    config: SynthesisConfig,
    rejected: Sequence[RejectedWording],
) -> WordingRequest:
    """Return the request for the words of a skeleton; it contains neither the answer nor a hidden name."""
    texts = {node.id: node.observation.text for node in known.nodes}
    return WordingRequest(
        kind=skeleton.kind,
        program=describe_program(skeleton.program, set_names(known.store)),
        steps=_steps(skeleton.program, known.store),
        answer_kind=kind_of(skeleton.answer),
        unit=skeleton.answer.unit if isinstance(skeleton.answer, NumberValue) else "",
        facts=quotes_without(skeleton, known.store, texts),
        given=skeleton.given,
        nouns=tuple(
            _noun(skeleton.program[:number], known.store) for number in range(1, len(skeleton.program) + 1)
        ),
        definite=tuple(name for name in skeleton.given if _is_definite(name, texts.values())),
        max_words=config.max_question_words,
        seed=tree.seed.content,
        kwargs=tree.seed.kwargs,
        seed_description=config.seed_description,
        tips=config.synthesis_tips,
        examples=config.examples,
        rejected=tuple(rejected),
    )


def quotes_without(skeleton: Skeleton, store: FactStore, texts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the quotes of the facts, with the answer and the hidden names replaced by `[A]`, `[B]`, …"""
    answer = [] if show_value(skeleton.answer) in skeleton.given else [show_value(skeleton.answer)]
    secrets = sorted({*skeleton.hidden, *answer}, key=lambda name: (-len(name), name))
    marks = {name: f"[{ascii_uppercase[number % 26]}]" for number, name in enumerate(secrets)}
    names = "|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in secrets)
    found: list[str] = []
    for fact in map(store.by_id.__getitem__, skeleton.facts):
        span = next((span for span in fact.spans if span.region is None), None)
        quote = (
            f"the {fact.relation} of {fact.subject}: {show_value(fact.value)}"
            if span is None
            else texts[span.node][span.start : span.end]
        )
        found.append(re.sub(names, lambda match: marks[match[0]], quote) if names else quote)
    return tuple(dict.fromkeys(found))


def _noun(program: Program, store: FactStore) -> str:
    """Return the class that all results of a program share; empty if there is none."""
    names = [
        answer.value.name
        for answer in evaluate(program, store).answers
        if isinstance(answer.value, EntityValue)
    ]
    kinds = [{show_value(fact.value) for fact in store.of(name, KIND)} for name in names]
    return min(set[str].intersection(*kinds), default="") if kinds else ""


def _is_definite(name: str, texts: Iterable[str]) -> bool:
    """Return true if sentences mostly write the name with an article; headings and longer names do not count."""
    alone = rf"{re.escape(name)}(?!\w| [A-Z])"
    definite = re.compile(rf"(?<!\w)[Tt]he {alone}")
    bare = re.compile(rf"\b(?:of|in|at|to|from|by|with|and|or|for|near) {alone}")
    own = [text for text in texts if name in text]
    return sum(len(definite.findall(text)) - len(bare.findall(text)) for text in own) > 0


def _steps(program: Program, store: FactStore) -> tuple[TranslationStep, ...]:
    """Return a program with its constants as texts."""
    return tuple(
        TranslationStep(
            operator=step.operator,
            inputs=(store.sets[step.name].description,)
            if step.operator is Operator.MEMBERS
            else tuple(f"#{given}" if isinstance(given, int) else show_value(given) for given in step.inputs),
            relation=step.relation,
            comparison=step.comparison,
            time=str(step.time) if step.time else "",
        )
        for step in program
    )


def set_names(store: FactStore) -> dict[str, str]:
    """Return the descriptions of the closed sets by their ids."""
    return {one.id: one.description for one in store.sets.values()}
