"""Support of questions: the facts that an answer needs, the nodes that state them, and their path to the seed."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final

from agentflow.facts._evaluation import evaluate
from agentflow.facts._facts import KIND, Fact
from agentflow.facts._names import normalise_name
from agentflow.facts._programs import Operator, Program
from agentflow.facts._skeletons import Skeleton
from agentflow.facts._store import FactStore
from agentflow.facts._values import EntityValue, ListValue, TextValue, Value, values_agree

MAX_EXACT: Final = 12
"""Nodes up to which the smallest support is found by trying all combinations."""
MAX_PASSES: Final = 3
"""Facts between a seed entity and the support of a question."""


def closed_sets(program: Program) -> tuple[str, ...]:
    """Return the ids of the closed sets that a program uses, in order.

    >>> from agentflow.facts import ProgramStep
    >>> closed_sets((ProgramStep(Operator.MEMBERS, name="set_1"),))
    ('set_1',)
    """
    return tuple(dict.fromkeys(step.name for step in program if step.operator is Operator.MEMBERS))


def minimal_support(facts: Iterable[str], store: FactStore, sets: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the ids of the fewest nodes that together state facts and closed sets.

    The result is exact if at most 12 nodes have to be chosen among. Of more, the one that states most of what is
    missing is taken first; the order of the facts decides between equals. Unknown ids are left out.

    See docs/facts.md for examples.

    :param facts: ids of facts.
    :param sets: ids of closed sets.
    """
    order: dict[str, int] = {}
    statements: list[frozenset[str]] = []
    for spans in [
        *(store.by_id[fact].spans for fact in facts if fact in store.by_id),
        *(store.sets[one].spans for one in sets if one in store.sets),
    ]:
        statements.append(frozenset(span.node for span in spans))
        for span in spans:
            order.setdefault(span.node, len(order))
    chosen = {node for one in statements if len(one) == 1 for node in one}
    missing = [one for one in statements if one and one.isdisjoint(chosen)]
    nodes = [node for node in order if any(node in one for one in missing)]
    chosen |= _fewest(missing, nodes) if len(nodes) <= MAX_EXACT else _greedy(missing, nodes)
    return tuple(node for node in order if node in chosen)


def needed_facts(skeleton: Skeleton, store: FactStore) -> tuple[str, ...]:
    """Return the ids of the facts without which the store no longer gives the skeleton's answer, in its order.

    Their number is the number of hops. Each fact is left out together with those that state the same at another time.
    A fact that the program can replace by others is not needed; one that several nodes state is.

    See docs/facts.md for examples.
    """
    return facts_needed_by(skeleton.program, store)


def facts_needed_by(program: Program, store: FactStore) -> tuple[str, ...]:
    """Return the ids of the facts without which a program has another answer or none; see `needed_facts`."""
    answers = evaluate(program, store).answers
    if len(answers) != 1:
        return ()
    return tuple(fact for fact in answers[0].facts if is_needed(fact, program, answers[0].value, store))


def is_needed(fact: str, program: Program, answer: Value, store: FactStore) -> bool:
    """Return whether a program has another answer, or none, without a fact."""
    known = store.by_id[fact]
    without = {
        one.id for one in store.of(known.subject, known.relation) if values_agree(one.value, known.value)
    }
    left = evaluate(program, store, without).answers
    return len(left) != 1 or left[0].value != answer


def needs_all(program: Program, facts: Iterable[str], store: FactStore) -> bool:
    """Return true if each step of a program visibly uses a single fact, without which there is no answer.

    False says nothing: then `is_needed` tells, which evaluates the program without the fact.
    """
    values: list[Value] = []
    used: set[str] = set()
    for number, step in enumerate(program, start=1):
        given = [values[one - 1] if isinstance(one, int) else one for one in step.inputs]
        names = [store.canonical(one.name) for one in given if isinstance(one, EntityValue)]
        wanted: list[tuple[Fact, ...]] = []
        if step.operator is Operator.FOLLOW and len(names) == len(given) == 1:
            wanted = [store.of(names[0], step.relation)]
        elif step.operator is Operator.FIND and len(names) == len(given) == 1:
            wanted = [store.stating(step.relation, EntityValue(names[0]))]
        elif number < len(program) or len(given) != 2 or step.operator not in _OF_TWO:
            return False
        elif step.operator in (Operator.GREATEST, Operator.LEAST):
            wanted = [store.of(name, step.relation) for name in names]
        for choices in wanted:
            known = [one for one in choices if not step.time or (one.time and one.time.year == step.time)]
            if len(known) != 1 or isinstance(known[0].value, ListValue):
                return False
            used.add(known[0].id)
            found = EntityValue(known[0].subject) if step.operator is Operator.FIND else known[0].value
            values.append(found)
    return used == set(facts)


_OF_TWO: Final = frozenset({
    Operator.BEFORE, Operator.GREATER, Operator.EQUAL, Operator.DIFFERENCE, Operator.SUM, Operator.GREATEST,
    Operator.LEAST,
})  # fmt: skip
"""Last steps that have no result if one of their two inputs has none."""


def relates_to_seed(skeleton: Skeleton, store: FactStore, seed_names: Iterable[str]) -> int | None:
    """Return the number of facts between the seed and the support of a skeleton, `None` if there is no path of three.

    It is 0 if a fact of the support mentions a seed entity. The members of a closed set are connected by it.

    See docs/facts.md for examples.

    :param seed_names: names of the seed's entities, or texts that mention them.
    """
    distances = seed_distances(store, seed_names)
    return support_distance(skeleton.facts, distances, store)


def support_distance(facts: Iterable[str], distances: Mapping[str, int], store: FactStore) -> int | None:
    """Return the least distance of the entities in some facts.

    See docs/facts.md.
    """
    found = [
        distances[name]
        for fact in facts
        if fact in store.by_id
        for name in ends_of(store.by_id[fact])
        if name in distances
    ]
    return min(found, default=None)


def seed_distances(store: FactStore, seed_names: Iterable[str]) -> dict[str, int]:
    """Return the number of facts, at most three, between the seed and each entity that can be reached from it.

    See docs/facts.md.
    """
    distances = dict.fromkeys(_seed_entities(store, seed_names), 0)
    links: dict[str, set[str]] = {}
    for fact in store.facts:
        ends = ends_of(fact)
        for end in ends:
            links.setdefault(end, set()).update(ends)
    for one in store.sets.values():
        for member in one.members:
            links.setdefault(member, set()).update(one.members)
    reached = list(distances)
    for distance in range(1, MAX_PASSES + 1):
        found = {end for name in reached for end in links.get(name, ()) if end not in distances}
        reached = sorted(found)
        distances.update(dict.fromkeys(reached, distance))
    return distances


def _seed_entities(store: FactStore, seed_names: Iterable[str]) -> list[str]:
    """Return the entities that the seed names; if none, the members of sets and the things of a kind it mentions."""
    seeds = "\0".join(f" {normalise_name(name)} " for name in seed_names)

    def mentioned(name: str) -> bool:
        return f" {normalise_name(name)} " in seeds

    found: dict[str, None] = {}
    others: dict[str, list[str]] = {}
    for alias, name in store.aliases.items():
        others.setdefault(name, []).append(alias)
    for name in dict.fromkeys(end for fact in store.facts for end in ends_of(fact)):
        if mentioned(name) or any(map(mentioned, others.get(name, ()))):
            found[name] = None
    if found:
        return list(found)
    for one in store.sets.values():
        if mentioned(one.description):
            found.update(dict.fromkeys(one.members))
    for fact in store.having(KIND):
        noun = fact.value.text if isinstance(fact.value, TextValue) else ""
        if noun and (mentioned(noun) or mentioned(f"{noun}s")):
            found[fact.subject] = None
    return list(found)


def ends_of(fact: Fact) -> tuple[str, ...]:
    """Return the entities of a fact. A kind connects nothing.

    See docs/facts.md.
    """
    if fact.relation == KIND:
        return (fact.subject,)
    items = fact.value.items if isinstance(fact.value, ListValue) else (fact.value,)
    return (fact.subject, *(item.name for item in items if isinstance(item, EntityValue)))


def _fewest(statements: Sequence[frozenset[str]], nodes: Sequence[str]) -> set[str]:
    for size in range(len(nodes)):
        for chosen in combinations(nodes, size):
            if all(not one.isdisjoint(chosen) for one in statements):
                return set(chosen)
    return set(nodes)


def _greedy(statements: Sequence[frozenset[str]], nodes: Sequence[str]) -> set[str]:
    missing, chosen = list(statements), set[str]()
    while missing:
        best = max(nodes, key=lambda node: sum(node in one for one in missing))
        chosen.add(best)
        missing = [one for one in missing if best not in one]
    return chosen
