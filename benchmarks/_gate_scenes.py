"""Scenes of drafts: pages that a tree observed, the facts that were extracted from them, and everything that is true."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import msgspec

from agentflow.facts import (
    ChunkExtraction,
    EntityValue,
    ExtractedFact,
    Extraction,
    Fact,
    FactSpan,
    FactStore,
    Value,
    build_store,
    chunks_of,
    contradictions,
    kind_of,
    new_fact,
    show_value,
)
from agentflow.synthesis._question_checks import FactsOfTree
from agentflow.synthesis._question_draft import QuestionDraft
from agentflow.testing import FactWorld, fact_world
from agentflow.trajectory import Action, Node, Observation, Text, Verdict
from benchmarks._gate_language import TEMPLATES, read_page

ISLANDS = 5
"""Size of a world."""
Content: TypeAlias = tuple[str, str, str, int]
"""Subject, relation, value and year of a fact."""
FAR = 10_000
"""Distance between the seed of a world and of the one that has nothing to do with it."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Surroundings of a draft."""

    truth: FactStore
    """Everything that any page states, generated and not extracted."""
    known: FactsOfTree
    """The facts that were extracted, and the observations."""
    far: frozenset[str]
    """Subjects that nothing connects with the seed."""
    outside: tuple[str, ...] = ()
    """Pages that the tree did not observe; a search finds them."""
    memory: tuple[Fact, ...] = ()
    """Facts that the reader knows without evidence."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A labelled draft."""

    kind: str
    """Kind of the question, or the mutator that spoilt it."""
    variant: str = ""
    """Way in which it was spoilt."""
    draft: QuestionDraft
    scene: Scene


def node_of(id: str, text: str) -> Node:
    """Return a node that observed a page."""
    return Node(
        id=id,
        parent="root",
        depth=1,
        position=0,
        intent="Look it up",
        action=Action("rag_get", {"id": id}),
        observation=Observation((Text(text),)),
        verdict=Verdict.NEW,
    )


@lru_cache(maxsize=64)
def scene(seed: int) -> Scene:
    """Return the scene of a generated world, beside pages of another one that shares no name with it."""
    world = fact_world(seed, islands=ISLANDS)
    other = fact_world(seed + FAR, islands=2)
    rename = _Renaming(other)
    pages = {page.node: page.text for page in world.documents}
    kept = {
        page.node: f"other_{page.node}"
        for page in other.documents
        if not page.title.startswith(("All ", "A long"))
    }
    pages |= {kept[page.node]: rename.text(page.text) for page in other.documents if page.node in kept}
    renamed = _alias_page(world)
    pages[renamed.id] = renamed.observation.text
    far = [moved for fact in other.store.facts if (moved := _moved(fact, kept, rename)) is not None]
    nodes = tuple(node_of(id, text) for id, text in pages.items())
    known = extracted(nodes)
    ids = {one.description: one.id for one in known.sets.values()}
    (closed,) = world.store.sets.values()
    closed = msgspec.structs.replace(closed, id=ids["lighthouses"], description="lighthouses")
    own = [
        _also_on(fact, renamed) if fact.subject in world.aliases.values() else fact
        for fact in world.store.facts
    ]
    aliases = {rename.text(alias): rename.text(name) for alias, name in other.aliases.items()}
    truth = FactStore([*own, *far], [closed], {**world.aliases, **aliases})
    _verify(known, truth)
    return Scene(
        truth=truth,
        known=facts_of(known, nodes, (world.seed_name,)),
        far=frozenset(fact.subject for fact in far)
        | {world.store.by_id[one].subject for one in world.strays},
    )


def _alias_page(world: FactWorld) -> Node:
    """Return a page that uses other names."""
    said = [
        TEMPLATES[fact.relation].format(s=alias, v=show_value(fact.value))
        for alias, name in world.aliases.items()
        for fact in world.store.about(name)
        if fact.relation == "island"
    ]
    return node_of("node_sailor", f"# A sailor's diary\n\n{' '.join(said)}")


def _also_on(fact: Fact, page: Node) -> Fact:
    if fact.relation != "island":
        return fact
    return msgspec.structs.replace(fact, spans=(*fact.spans, FactSpan(page.id, 0, 1)))


class _Renaming:
    """Names of a world that begin with Z, so that it shares none with another one."""

    def __init__(self, world: FactWorld) -> None:
        names = {fact.subject for fact in world.store.facts}
        names |= {fact.value.name for fact in world.store.facts if isinstance(fact.value, EntityValue)}
        words = sorted({name.removesuffix(" Light").split()[-1] for name in names})
        # As long as before, so that spans stay where they are.
        self._new = {word: f"Z{chr(97 + number % 26)}{word[2:]}" for number, word in enumerate(words)}
        self._pattern = re.compile(rf"\b(?:{'|'.join(words)})\b")
        if len(set(self._new.values())) < len(words):
            raise ValueError("two names of a world became one")

    def text(self, text: str) -> str:
        """Return a text with other names."""
        return self._pattern.sub(lambda found: self._new[found[0]], text)


def _moved(fact: Fact, kept: Mapping[str, str], rename: _Renaming) -> Fact | None:
    spans = tuple(
        msgspec.structs.replace(span, node=kept[span.node]) for span in fact.spans if span.node in kept
    )
    value = EntityValue(rename.text(fact.value.name)) if isinstance(fact.value, EntityValue) else fact.value
    return new_fact(rename.text(fact.subject), fact.relation, value, spans, fact.time) if spans else None


def extracted(nodes: Iterable[Node]) -> FactStore:
    """Return the store that is built from what the sentences of some observations state."""
    found = tuple(nodes)
    reports = [
        ChunkExtraction(
            node.id,
            chunk,
            Extraction(
                tuple(
                    ExtractedFact(
                        one.subject,
                        one.relation,
                        show_value(one.value),
                        kind_of(one.value),
                        chunk.shown[one.start : one.end],
                        time=str(one.year) if one.year else "",
                        aliases=(f"{one.subject.removesuffix(' Light')} lighthouse",)
                        if one.subject.endswith(" Light")
                        else (),
                    )
                    for one in read_page(chunk.shown).statements
                    if not chunk.shown[one.start :].startswith("|")
                )
            ),
        )
        for node in found
        for chunk in chunks_of(node.observation.text)
    ]
    return build_store(found, reports).store


def _verify(known: FactStore, truth: FactStore) -> None:
    """Refuse a scene whose extraction is not perfect: drafts are spoilt on purpose only."""
    if known_content(known) != known_content(truth):
        missing = known_content(truth) ^ known_content(known)
        raise ValueError(f"the extraction differs from the world: {sorted(map(str, missing))[:4]}")


def known_content(store: FactStore) -> set[Content]:
    """Return what a store says, without ids and places."""
    return {content(fact) for fact in store.facts}


def content(fact: Fact) -> Content:
    """Return what a fact says, without its id and its places."""
    return fact.subject, fact.relation, show_value(fact.value), fact.time.year if fact.time else 0


def facts_of(store: FactStore, nodes: tuple[Node, ...], seed_names: tuple[str, ...]) -> FactsOfTree:
    """Return the facts of a tree as the pipeline describes them."""
    return FactsOfTree(
        store=store,
        nodes=nodes,
        seed_names=seed_names,
        contradicted=frozenset(fact.id for group in contradictions(store.facts) for fact in group),
    )


def with_store(one: Scene, store: FactStore, nodes: tuple[Node, ...] | None = None) -> Scene:
    """Return a scene in which other facts were extracted."""
    known = one.known
    return replace(one, known=facts_of(store, known.nodes if nodes is None else nodes, known.seed_names))


def misread(one: Scene, wrong: Mapping[str, Value]) -> Scene:
    """Return a scene in which some facts were extracted with other values, by the ids of the right ones."""
    store = one.known.store
    facts = [
        new_fact(fact.subject, fact.relation, wrong[fact.id], fact.spans, fact.time)
        if fact.id in wrong
        else fact
        for fact in store.facts
    ]
    return with_store(one, FactStore(facts, store.sets.values(), store.aliases))


def without_facts(one: Scene, ids: Iterable[str]) -> Scene:
    """Return a scene in which the extraction missed some facts."""
    return with_store(one, one.known.store.without(frozenset(ids)))


def sentence(fact: Fact) -> str:
    """Return a sentence that states a fact."""
    time = fact.time.year if fact.time else ""
    return TEMPLATES[fact.relation].format(s=fact.subject, v=show_value(fact.value), t=time)


def with_page(one: Scene, facts: Iterable[Fact], *, title: str, unread: bool, outside: bool = False) -> Scene:
    """Return a scene with a page more.

    :param unread: its facts were not extracted.
    :param outside: the tree did not observe it.
    """
    added = list(facts)
    text = f"# {title}\n\n{' '.join(map(sentence, added))}"
    node = node_of("node_more", text)
    truth = _stated_also(one.truth, added, text, node.id)
    result = replace(one, truth=truth)
    if outside:
        return replace(result, outside=(*one.outside, text))
    nodes = (*one.known.nodes, node)
    store = one.known.store if unread else _stated_also(one.known.store, added, text, node.id)
    return with_store(result, store, nodes)


def _stated_also(store: FactStore, added: Iterable[Fact], text: str, node: str) -> FactStore:
    facts = {content(fact): fact for fact in store.facts}
    for fact in added:
        said = sentence(fact)
        start = text.index(said)
        span = FactSpan(node, start, start + len(said))
        known = facts.get(content(fact))
        facts[content(fact)] = (
            new_fact(fact.subject, fact.relation, fact.value, (span,), fact.time)
            if known is None
            else msgspec.structs.replace(known, spans=(*known.spans, span))
        )
    return FactStore(facts.values(), store.sets.values(), store.aliases)
