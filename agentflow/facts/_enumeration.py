"""Enumeration of question skeletons over a store, and the choice of those that become questions."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

from agentflow.facts._candidates import MAX_LISTED, MAX_MEMBERS, Candidate, Candidates
from agentflow.facts._evaluation import answer_of, evaluate
from agentflow.facts._facts import KIND
from agentflow.facts._names import normalise_name
from agentflow.facts._programs import Operator, Program, ProgramStep
from agentflow.facts._skeletons import QuestionKind, Skeleton
from agentflow.facts._store import FactStore
from agentflow.facts._support import (
    closed_sets,
    ends_of,
    is_needed,
    minimal_support,
    needs_all,
    seed_distances,
    support_distance,
)
from agentflow.facts._values import (
    BoolValue,
    DateValue,
    EntityValue,
    ListValue,
    NumberValue,
    TextValue,
    Value,
    show_value,
)
from agentflow.trajectory import digest

MAX_FACTS: Final = MAX_MEMBERS + 2
"""Most facts that an answer rests on."""
_FAR: Final = 4
"""Distance of a fact that no path of three facts connects with the seed."""
RELATION_SHARE: Final = 0.1
"""Largest share of the questions with a relation, if there are enough others."""
KIND_SHARE: Final = 0.25
"""Largest share of a kind, if there are enough questions of others."""


def enumerate_skeletons(
    store: FactStore,
    seed_names: Iterable[str],
    *,
    per_kind: int = 12,
    per_relation: int = 4,
    tried: int = 400,
    min_nodes: int = 0,
    records: bool = False,
) -> list[Skeleton]:
    """Return skeletons of all kinds over a store, the best first.

    Each has one answer, which needs each of its facts (at least two) and each of its conditions, and is connected with
    the seed by at most three facts. Counts, lists, sums and superlatives are asked about closed sets only. The order
    is that of `select_questions` without a limit on shared facts, except that no kind ends early.

    See docs/facts.md for examples.

    :param seed_names: names of the seed's entities, or texts that mention them.
    :param per_kind: most skeletons of a kind.
    :param per_relation: most skeletons of a kind with the same relation, if there are enough relations.
    :param tried: most candidates of a kind that are checked.
    :param min_nodes: fewest nodes that state the facts of a skeleton.
    :param records: also ask for things together with their values: the tallest tower and its height.
    """
    seed = tuple(seed_names)
    distances = seed_distances(store, seed)
    if not distances:
        return []
    candidates = Candidates(store, distances, records=records)
    scores = _Scores(store, distances, seed)
    best: list[_Scored] = []
    for kind in QuestionKind:
        scored: dict[str, _Scored] = {}
        for candidate in islice(candidates.of(kind), tried):
            skeleton = _checked(candidate, store)
            if skeleton is None or support_distance(skeleton.facts, distances, store) is None:
                continue
            nodes = len(minimal_support(skeleton.facts, store, closed_sets(skeleton.program)))
            if nodes >= min_nodes:
                scored.setdefault(skeleton.id, _Scored(scores.of(skeleton, nodes), skeleton))
        best += _limited(sorted(scored.values(), key=_Scored.rank), per_kind, per_relation)
    return [one.skeleton for one in sorted(best, key=_Scored.rank)]


def select_questions(
    skeletons: Iterable[Skeleton], limit: int, *, shared: float = 0.5, taken: Sequence[Skeleton] = ()
) -> list[Skeleton]:
    """Return skeletons that become questions: kinds in turns, and no two that share too many of their facts.

    The order of the skeletons decides between those of a kind. No kind has more than a quarter of the questions, and no
    relation more than a tenth, if there are enough others.

    See docs/facts.md for examples.

    :param limit: most questions, those that are taken included.
    :param shared: largest share of a question's facts that another one rests on, too.
    :param taken: questions that there are already.
    """
    waiting = list(skeletons)
    known = {relation for one in (*taken, *waiting) for relation in relations_of(one.program)}
    # Among few questions, two with a relation are not many.
    least = 1 if limit * RELATION_SHARE >= 1 else 2
    most = max(least, round(limit * max(RELATION_SHARE, 2 / max(1, len(known)))))
    kinds = Counter(one.kind for one in taken)
    relations = Counter(relation for one in taken for relation in relations_of(one.program))
    truths = Counter(one.answer.truth for one in taken if isinstance(one.answer, BoolValue))
    chosen: list[Skeleton] = []
    while len(taken) + len(chosen) < limit:
        waiting = [
            one
            for one in waiting
            if not any(overlaps(one, other, shared) for other in (*taken, *chosen))
            and all(relations[relation] < most for relation in relations_of(one.program))
        ]
        if not waiting:
            break

        def turn(one: Skeleton) -> tuple[int, int]:
            truth = truths[one.answer.truth] if isinstance(one.answer, BoolValue) else 0
            asked = max((relations[relation] for relation in relations_of(one.program)), default=0)
            return kinds[one.kind] + 4 * asked, truth

        best = min(waiting, key=turn)
        waiting.remove(best)
        chosen.append(best)
        kinds[best.kind] += 1
        relations.update(relations_of(best.program))
        if isinstance(best.answer, BoolValue):
            truths[best.answer.truth] += 1
    return _balanced(chosen, kinds)


def overlaps(one: Skeleton, other: Skeleton, shared: float) -> bool:
    """Return whether more than a share of the facts of either skeleton are facts of the other.

    See docs/facts.md.
    """
    common = len(set(one.facts) & set(other.facts))
    return common > shared * min(len(set(one.facts)), len(set(other.facts)))


def relations_of(program: Program) -> tuple[str, ...]:
    """Return the relations of a program, each once, without the kinds of things.

    >>> relations_of((ProgramStep(Operator.FOLLOW, (EntityValue("Brenn Light"),), "first keeper"),))
    ('first keeper',)
    """
    return tuple(dict.fromkeys(step.relation for step in program if step.relation not in ("", KIND)))


def skeleton_of(
    kind: QuestionKind, program: Program, store: FactStore, hidden: Iterable[str] = ()
) -> Skeleton | None:
    """Return the skeleton of a program, `None` if its answer is not unique.

    See docs/facts.md for examples.

    :param hidden: entities on the way to the answer.
    """
    answers = evaluate(program, store).answers
    if len(answers) != 1:
        return None
    answer = answers[0]
    given = tuple(
        dict.fromkeys(one.name for step in program for one in step.inputs if isinstance(one, EntityValue))
    )
    secret = dict.fromkeys([*hidden, *_names(answer.value)])
    return Skeleton(
        id=digest([kind, program, 0]),
        kind=kind,
        program=program,
        given=given,
        hidden=tuple(name for name in secret if name not in given),
        facts=answer.facts,
        answer=answer.value,
    )


def without_condition(program: Program) -> Iterator[Program]:
    """Return the program without each of its conditions: inputs of `and`, and `where` steps."""
    for number, step in enumerate(program):
        if step.operator is Operator.WHERE:
            yield (*program[:number], ProgramStep(Operator.OR, step.inputs[:1]), *program[number + 1 :])
        if step.operator is Operator.AND and len(step.inputs) > 1:
            for place in range(len(step.inputs)):
                left = step.inputs[:place] + step.inputs[place + 1 :]
                yield (*program[:number], ProgramStep(Operator.AND, left), *program[number + 1 :])


def leaks(skeleton: Skeleton, store: FactStore) -> bool:
    """Return whether words that a question needs contain a hidden name or its answer: `Brenn` in `Brenn Light`."""
    words = [
        *skeleton.given,
        *(one.words for one in skeleton.descriptions),
        *(step.relation for step in skeleton.program),
        *(store.sets[one].description for one in closed_sets(skeleton.program) if one in store.sets),
    ]
    secret = list(skeleton.hidden)
    if isinstance(skeleton.answer, DateValue | TextValue) or (
        isinstance(skeleton.answer, NumberValue) and skeleton.answer.unit
    ):
        secret.append(show_value(skeleton.answer))
    texts = [f" {normalise_name(text)} " for text in words]
    return any(f" {normalise_name(name)} " in text for name in secret for text in texts)


class _Scored(NamedTuple):
    score: float
    skeleton: Skeleton

    def rank(self) -> tuple[float, str]:
        return -self.score, self.skeleton.id


def _checked(candidate: Candidate, store: FactStore) -> Skeleton | None:
    """Return the skeleton of a candidate that can become a question, else `None`."""
    skeleton = skeleton_of(candidate.kind, candidate.program, store, candidate.hidden)
    if skeleton is None or not 2 <= len(skeleton.facts) <= MAX_FACTS:
        return None
    answer = skeleton.answer
    if candidate.wanted is not None and answer != BoolValue(candidate.wanted):
        return None
    if isinstance(answer, ListValue) and not 2 <= len(answer.items) <= MAX_LISTED:
        return None
    if skeleton.kind not in {QuestionKind.COMPARISON, QuestionKind.TEMPORAL} and set(_names(answer)) & set(
        skeleton.given
    ):
        return None
    if leaks(skeleton, store):
        return None
    if any(answer_of(shorter, store) == answer for shorter in without_condition(skeleton.program)):
        return None
    if not needs_all(skeleton.program, skeleton.facts, store) and not all(
        is_needed(fact, skeleton.program, answer, store) for fact in skeleton.facts
    ):
        return None
    return skeleton


def _names(value: Value) -> list[str]:
    items = value.items if isinstance(value, ListValue) else (value,)
    return [item.name for item in items if isinstance(item, EntityValue)]


class _Scores:
    """Scores of skeletons: promises of good questions."""

    def __init__(self, store: FactStore, distances: Mapping[str, int], seed: tuple[str, ...]) -> None:
        self._store = store
        self._seed = seed
        self._far = _walks(store, distances)
        self._subjects = Counter(
            relation for relation, _ in {(fact.relation, fact.subject) for fact in store.facts}
        )

    def of(self, skeleton: Skeleton, nodes: int) -> float:
        """Return how good a question a skeleton promises to become.

        Its facts are near the seed, and their relations are special: many things have a population, few have a captain.
        """
        relations = relations_of(skeleton.program)
        far = [
            min(self._far.get(end, _FAR) for end in ends_of(self._store.by_id[fact]))
            for fact in skeleton.facts
        ]
        near = 3.0 - 2.0 * sum(far) / len(far)
        common = sum(math.log2(max(1, self._subjects[relation])) for relation in relations)
        long = sum(max(0, len(relation.split()) - 3) for relation in relations)
        size = {2: 1.0, 3: 1.5, 4: 1.5}.get(len(skeleton.facts), 1.0)
        hidden = 0.5 if set(skeleton.hidden) - set(_names(skeleton.answer)) else 0.0
        # Lists of things with values are enumerated only where they are wanted.
        records = (
            3.0 if any(step.operator is Operator.LIST and step.relation for step in skeleton.program) else 0.0
        )
        special = -0.8 * common / max(1, len(relations))
        taste = 1.5 * self._taste(skeleton.id) + max(map(self._taste, relations), default=0.0)
        return near + size + hidden + records + 0.5 * min(nodes, 3) + special + taste - 0.2 * long

    def _taste(self, text: str) -> float:
        """Return a number from 0 to 1 that differs between seeds: those with similar trees ask different questions."""
        return int(digest([self._seed, text])[:8], 16) / 0xFFFFFFFF


def _walks(store: FactStore, distances: Mapping[str, int]) -> dict[str, float]:
    """Return how far entities are from the seed. A step through a thing with many neighbours is longer than others."""
    links: dict[str, dict[str, None]] = {}
    for fact in store.facts:
        ends = ends_of(fact)
        for end in ends:
            links.setdefault(end, {}).update(dict.fromkeys(ends))
    far: dict[str, float] = {}
    waiting = [(0.0, name) for name, distance in distances.items() if not distance]
    while waiting:
        so_far, name = heappop(waiting)
        if name in far or so_far > _FAR:
            continue
        far[name] = so_far
        step = 1.0 if not so_far else math.log2(max(2, len(links.get(name, ())) - 1))
        for other in links.get(name, ()):
            heappush(waiting, (so_far + step, other))
    return far


def _limited(ranked: Sequence[_Scored], per_kind: int, per_relation: int) -> list[_Scored]:
    """Return the best ones, not too many with one relation, and as many with `yes` as with `no`."""
    counts: Counter[str] = Counter()
    left: list[_Scored] = []
    known = {relation for one in ranked for relation in relations_of(one.skeleton.program)}
    most = max(per_relation, 3 * per_kind // max(1, len(known)))
    for one in ranked:
        relations = relations_of(one.skeleton.program)
        if all(counts[relation] < most for relation in relations):
            counts.update(relations)
            left.append(one)
    yes = [one for one in left if one.skeleton.answer == BoolValue(True)]
    no = [one for one in left if one.skeleton.answer == BoolValue(False)]
    if yes or no:
        few = min(len(yes), len(no), per_kind // 2)
        left = sorted([*yes[: few or 1], *no[: few or 1]], key=_Scored.rank)
    return left[:per_kind]


def _balanced(chosen: Sequence[Skeleton], kinds: Mapping[QuestionKind, int]) -> list[Skeleton]:
    """Return the chosen ones without the last of kinds that have too large a share, if the others can make it up."""
    left = list(chosen)
    if len(kinds) * KIND_SHARE < 1:
        return left
    while left:
        counts = Counter(one.kind for one in left)
        kind, most = counts.most_common(1)[0]
        if most <= max(1, KIND_SHARE * len(left)):
            break
        left.reverse()
        left.remove(next(one for one in left if one.kind is kind))
        left.reverse()
    return left
