"""Building of the store of a tree from what roles report about its observations."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from agentflow.facts._aliases import (
    NameLink,
    NameTable,
    NameUse,
    entity_names,
    link_names,
)
from agentflow.facts._chunks import TextChunk
from agentflow.facts._facts import ClosedSet, Fact, FactSpan
from agentflow.facts._locating import (
    FactFault,
    FaultKind,
    locate,
    locate_set,
    new_fact,
    new_set,
)
from agentflow.facts._mentions import contains_name, name_spans, sentence_spans, span_at
from agentflow.facts._names import normalise_name
from agentflow.facts._normal_forms import name_key, relation_key
from agentflow.facts._requests import AliasJudgement, AliasPair, Extraction
from agentflow.facts._store import FactStore
from agentflow.facts._tables import read_tables
from agentflow.facts._values import EntityValue, ListValue, NumberValue, TextValue, Value, kind_of
from agentflow.text import quantity_of
from agentflow.trajectory import Node, Verdict

MAX_ALIAS_PAIRS: Final = 20
"""Number of doubtful pairs of names that are judged per tree."""
_MAX_FACTS: Final = 400
"""Number of facts of a chunk; further ones are refused."""
_CONTEXT: Final = 300
"""Characters of the sentence that shows a name."""


class ChunkExtraction(Struct, frozen=True):
    """Answer of a role about a chunk of an observation."""

    node: str
    """Id of the node."""
    chunk: TextChunk
    """The chunk."""
    extraction: Extraction
    """Facts and enumerations that the role reports."""


class StoreBuild(Struct, frozen=True, kw_only=True):
    """Store of a tree, and everything that is needed to merge more names."""

    store: FactStore
    """The store."""
    faults: tuple[FactFault, ...]
    """Reported facts that were refused."""
    pairs: tuple[AliasPair, ...]
    """Names that may mean the same thing, at most `MAX_ALIAS_PAIRS`: the content of an `AliasRequest`."""
    located: tuple[Fact, ...]
    """Facts with the names that their observations use."""
    sets: tuple[ClosedSet, ...]
    """Closed sets with the names that their observations use."""
    links: tuple[NameLink, ...]
    """Names that were merged."""
    order: tuple[str, ...]
    """Ids of the nodes in path order."""


def build_store(nodes: Sequence[Node], extractions: Iterable[ChunkExtraction] = ()) -> StoreBuild:
    """Build the store of a tree from the reported facts and the tables in its observations.

    Only nodes with the verdict `new` count. The result does not depend on the order of the extractions.

    See docs/facts.md.

    :param nodes: nodes of the tree, in path order.
    """
    used = {node.id: node for node in nodes if node.verdict is Verdict.NEW and node.action is not None}
    order = tuple(used)
    texts = {id: node.observation.text for id, node in used.items()}
    places = {id: index for index, id in enumerate(order)}
    facts, sets, faults, reported = _located(used, extractions, places)
    for node in used.values():
        tables = read_tables(node)
        facts += tables.facts
        sets += tables.sets
    facts.sort(key=lambda fact: _place(fact, places))
    sets.sort(key=lambda one: (places[one.spans[0].node], *_position(one.spans[0]), one.id))
    faults.sort(key=lambda fault: (places[fault.node], fault.kind, fault.detail))
    linked = link_names(facts, sorted(reported), texts)
    store, links = _store(facts, sets, linked.links, order)
    pairs = _pairs(linked.doubtful, facts, texts)
    return StoreBuild(
        store=store,
        faults=tuple(faults),
        pairs=pairs,
        located=tuple(facts),
        sets=tuple(sets),
        links=links,
        order=order,
    )


class _Located(NamedTuple):
    """The usable parts of extractions, and the faults of the others."""

    facts: list[Fact]
    sets: list[ClosedSet]
    faults: list[FactFault]
    aliases: list[tuple[str, str, str]]
    """Node, subject and another name that it was reported to have."""


def _located(
    used: Mapping[str, Node], extractions: Iterable[ChunkExtraction], places: Mapping[str, int]
) -> _Located:
    """Return the reported facts and sets with their places in the texts."""
    located = _Located([], [], [], [])
    facts, sets, faults, aliases = located
    for one in sorted(
        (each for each in extractions if each.node in used),
        key=lambda each: (places[each.node], each.chunk.start, each.chunk.end),
    ):
        node, found = used[one.node], one.extraction
        if len(found.facts) > _MAX_FACTS:
            faults.append(FactFault(FaultKind.TOO_MANY, node.id, f"{len(found.facts)} facts in a chunk"))
        for extracted in found.facts[:_MAX_FACTS]:
            fact = locate(extracted, one.chunk, node)
            if isinstance(fact, FactFault):
                faults.append(fact)
                continue
            facts.append(fact)
            aliases += (
                (node.id, fact.subject, alias)
                for alias in extracted.aliases
                if _is_name(alias)
                and name_key(alias) != name_key(fact.subject)
                and contains_name(one.chunk.shown, (alias,))
            )
        for listed in found.sets[:_MAX_FACTS]:
            closed = locate_set(listed, one.chunk, node)
            if isinstance(closed, FactFault):
                faults.append(closed)
            else:
                sets.append(closed)
    return located


def merge_aliases(build: StoreBuild, judgement: AliasJudgement) -> StoreBuild:
    """Return the build with the pairs merged that were judged to mean the same thing.

    See docs/facts.md.
    """
    same = tuple(
        NameLink(pair.first, pair.second)
        for pair, judged in zip(build.pairs, judgement.same, strict=False)
        if judged
    )
    store, links = _store(build.located, build.sets, (*build.links, *same), build.order)
    return replace(build, store=store, links=links, pairs=())


def _place(fact: Fact, places: Mapping[str, int]) -> tuple[object, ...]:
    """Return the key of the order of located facts: by place, then by content."""
    span = fact.spans[0]
    return (places[span.node], *_position(span), fact.id)


def _position(span: FactSpan) -> tuple[object, ...]:
    return (span.start, span.end, span.value_start, span.value_end, span.image, repr(span.region))


def _store(
    facts: Sequence[Fact], sets: Sequence[ClosedSet], links: Iterable[NameLink], order: Sequence[str]
) -> tuple[FactStore, tuple[NameLink, ...]]:
    """Return the store of located facts under canonical names, and the links."""
    merged = tuple(dict.fromkeys(links))
    uses = [NameUse(fact.spans[0].node, name) for fact in facts for name in _names(fact)]
    uses += (NameUse(each.spans[0].node, member) for each in sets for member in each.members)
    names = NameTable(uses, merged)
    relations = _relations(facts)
    groups: dict[tuple[object, ...], list[Fact]] = {}
    for fact in facts:
        node = fact.spans[0].node
        subject = names.canonical(node, fact.subject)
        value = _canonical(fact.value, node, names)
        if value == EntityValue(subject):
            continue
        relation = relations[relation_key(fact.relation)]
        known = fact
        if (subject, relation, value) != (fact.subject, fact.relation, fact.value):
            known = new_fact(subject, relation, value, fact.spans, fact.time)
        groups.setdefault((subject, relation, fact.time, *_value_key(value)), []).append(known)
    places = {id: index for index, id in enumerate(order)}
    found = [_merge(group, places) for group in _without_bare_numbers(groups)]
    found.sort(key=lambda fact: _place(fact, places))
    return FactStore(found, _merged_sets(sets, names), names.aliases()), merged


def _is_name(alias: str) -> bool:
    """Return whether an alias can name a thing in the whole tree: "the ship" means another one elsewhere."""
    return not alias.isascii() or any(map(str.isupper, alias))


def _names(fact: Fact) -> tuple[str, ...]:
    return (fact.subject, *entity_names(fact.value))


def _relations(facts: Iterable[Fact]) -> dict[str, str]:
    """Return the most frequent form of each relation by its normal form."""
    forms: dict[str, Counter[str]] = defaultdict(Counter)
    for fact in facts:
        forms[relation_key(fact.relation)][fact.relation] += 1
    return {key: min(found, key=lambda form: (-found[form], form)) for key, found in forms.items()}


def _canonical(value: Value, node: str, names: NameTable) -> Value:
    match value:
        case EntityValue(name):
            return EntityValue(names.canonical(node, name))
        case ListValue(items):
            renamed = (
                EntityValue(names.canonical(node, item.name)) if isinstance(item, EntityValue) else item
                for item in items
            )
            return replace(value, items=tuple(renamed))
        case _:
            return value


def _value_key(value: Value) -> tuple[object, ...]:
    """Return a key that equal values share: of a number its size, of a name or text its normal form."""
    match value:
        case NumberValue(amount, unit):
            quantity = quantity_of(amount, unit)
            size = quantity.size if quantity.known else amount
            return ("number", size, quantity.kind if quantity.known else "")
        case EntityValue(name):
            return ("name", normalise_name(name))
        case TextValue(text):
            return ("name", normalise_name(text))
        case _:
            return (kind_of(value), value)


def _without_bare_numbers(groups: Mapping[tuple[object, ...], list[Fact]]) -> Iterator[list[Fact]]:
    """Merge a number without a unit with the only one that has the same amount and a unit."""
    units: dict[tuple[object, ...], list[tuple[object, ...]]] = defaultdict(list)
    for key, (fact, *_) in groups.items():
        if isinstance(fact.value, NumberValue) and fact.value.unit:
            units[*key[:3], fact.value.amount].append(key)
    joined: dict[tuple[object, ...], list[Fact]] = {key: list(group) for key, group in groups.items()}
    for key, (fact, *_) in groups.items():
        if isinstance(fact.value, NumberValue) and not fact.value.unit:
            others = units[*key[:3], fact.value.amount]
            if len(others) == 1:
                joined[others[0]] += joined.pop(key)
    yield from joined.values()


def _merge(facts: Sequence[Fact], places: Mapping[str, int]) -> Fact:
    """Merge facts with the same content."""
    if len(facts) == 1:
        return facts[0]
    spans = sorted(
        {span for fact in facts for span in fact.spans},
        key=lambda span: (places[span.node], *_position(span)),
    )
    first = min(facts, key=lambda fact: (_is_vague(fact.value), _place(fact, places)))
    return new_fact(first.subject, first.relation, first.value, tuple(spans), first.time)


def _is_vague(value: Value) -> bool:
    return isinstance(value, TextValue) or (isinstance(value, NumberValue) and not value.unit)


def _merged_sets(sets: Sequence[ClosedSet], names: NameTable) -> list[ClosedSet]:
    """Return the sets with canonical members; those with the same description and members become one."""
    found: dict[str, ClosedSet] = {}
    for one in sets:
        node = one.spans[0].node
        members = tuple(dict.fromkeys(names.canonical(node, member) for member in one.members))
        if len(members) < 2:
            continue
        known = found.get(new_set(one.description, members, ()).id)
        spans = (*known.spans, *one.spans) if known else one.spans
        merged = new_set(one.description, members, tuple(dict.fromkeys(spans)))
        found[merged.id] = merged
    return list(found.values())


def _pairs(
    doubtful: Sequence[NameLink], facts: Sequence[Fact], texts: Mapping[str, str]
) -> tuple[AliasPair, ...]:
    """Return the first doubtful pairs, with a sentence for each name."""
    wanted = {name for link in doubtful[:MAX_ALIAS_PAIRS] for name in (link.short, link.full)}
    places: dict[str, FactSpan] = {}
    for fact in facts:
        for name in _names(fact):
            if name in wanted:
                places.setdefault(name, fact.spans[0])
    return tuple(
        AliasPair(
            first=link.short,
            second=link.full,
            first_context=_sentence(link.short, places.get(link.short), texts),
            second_context=_sentence(link.full, places.get(link.full), texts),
        )
        for link in doubtful[:MAX_ALIAS_PAIRS]
    )


def _sentence(name: str, place: FactSpan | None, texts: Mapping[str, str]) -> str:
    """Return the sentence in which a fact uses a name, or the first one with it."""
    near = [(place.node, place.start)] if place and not place.image else []
    for node, start in (*near, *((node, 0) for node in texts)):
        text = texts[node]
        spans = sentence_spans(text)
        index = span_at(spans, start)
        around = text[slice(*spans[index])] if index >= 0 else ""
        if start and contains_name(around, (name,)):
            return _shortened(around, name)
        if found := name_spans(text, (name,)):
            return _shortened(text[slice(*spans[span_at(spans, found[0][0])])], name)
    return ""


def _shortened(sentence: str, name: str) -> str:
    found = name_spans(sentence, (name,))
    start = max(found[0][0] - _CONTEXT // 2, 0) if found and len(sentence) > _CONTEXT else 0
    return " ".join(sentence[start : start + _CONTEXT].split())
