"""Choice of the pairs that are written: contradictions between trees, duplicates and quotas, decided in seed order."""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from importlib import import_module
from typing import Final, NamedTuple, Protocol

import msgspec

from agentflow.facts import (
    KIND,
    BoolValue,
    Claim,
    EntityValue,
    Fact,
    NumberValue,
    Value,
    is_single,
    normalise_name,
    show_value,
    values_agree,
    values_conflict,
)
from agentflow.synthesis._config import QuotaSettings
from agentflow.synthesis._seed_result import Pair
from agentflow.text import quantity_of, tokens

MIN_OF_KIND: Final = 5
"""Pairs of a kind that a file may have, however small it is."""
MIN_OF_RELATION: Final = 5
"""Pairs with a relation that a file may have, however small it is."""
MIN_OF_ANSWER: Final = 2
"""Pairs with an answer that a file may have, however small it is."""
_HASHES: Final = 128
_BANDS: Final = 16
"""Few candidates: thousands of similar questions share most of their words."""
_MORE_BANDS: Final = 32
"""More candidates, for a low similarity threshold."""
_ALIKE: Final = 0.7


class Surplus(StrEnum):
    """Reason that an accepted pair is not in the file of pairs. The set is closed: reports count by it."""

    CONTRADICTION = "contradiction"
    """The tree of another seed gives another value for one of its facts."""
    DUPLICATE = "duplicate"
    """An earlier question is nearly the same, or rests on the same facts."""
    KIND = "kind"
    """There are enough pairs of its kind."""
    RELATION = "relation"
    """There are enough pairs with one of its relations."""
    ANSWER = "answer"
    """There are enough pairs with its answer."""


class PairKey(NamedTuple):
    """Everything about a pair that decides about its place in the file."""

    id: str
    question: str
    answer: Value
    kind: str
    asks: str
    relations: tuple[str, ...]
    facts: tuple[str, ...]
    """Its facts without their values; see `fact_key`."""

    @classmethod
    def of(cls, pair: Pair) -> "PairKey":
        """Return the key of a pair."""
        relations = dict.fromkeys(fact.relation for fact in pair.facts if fact.relation != KIND)
        facts = tuple(dict.fromkeys(fact_key(fact) for fact in pair.facts))
        return cls(pair.id, pair.question, pair.value, pair.kind, pair.asks, tuple(relations), facts)


def fact_key(fact: Fact | Claim) -> str:
    """Return the same text for facts about one subject, relation and time, in any tree."""
    time = "" if fact.time is None else show_value(fact.time)
    return f"{normalise_name(fact.subject)}\t{fact.relation}\t{time}"


def surplus_of(
    pairs: Sequence[PairKey],
    contradicted: Collection[str],
    asked: "QuestionIndex",
    quotas: QuotaSettings,
) -> dict[int, Surplus]:
    """Return the places of the pairs that are not written, with the reasons.

    Contradicted pairs and duplicates of earlier ones are removed first. Quotas are shares of the pairs that are left in
    the end; where too many have something in common, the earlier ones stay.

    :param contradicted: facts with different values in different trees.
    :param asked: index of the questions asked before; those that stay are added.
    """
    reasons: dict[int, Surplus] = {}
    left: list[int] = []
    for place, pair in enumerate(pairs):
        if not set(pair.facts).isdisjoint(contradicted):
            reasons[place] = Surplus.CONTRADICTION
        elif asked.before(pair.question, pair.answer, pair.facts, pair.asks) is not None:
            reasons[place] = Surplus.DUPLICATE
        else:
            asked.add(pair.question, pair.answer, pair.id, pair.facts, pair.asks)
            left.append(place)
    total = len(left)
    while True:
        over = _over_quotas([pairs[place] for place in left], quotas, total)
        if len(left) - len(over) >= total:
            break
        total = len(left) - len(over)
    return {**reasons, **{left[place]: reason for place, reason in over.items()}}


def _over_quotas(pairs: Sequence[PairKey], quotas: QuotaSettings, total: int) -> dict[int, Surplus]:
    """Return the places of the pairs that exceed a share of a total, with the reasons."""
    kinds, relations, answers = Counter[str](), Counter[str](), Counter[str]()
    of_kind = max(MIN_OF_KIND, int(quotas.kind * total))
    of_relation = max(MIN_OF_RELATION, int(quotas.relation * total))
    of_answer = max(MIN_OF_ANSWER, int(quotas.answer * total))
    # With three kinds, one of them always has more than a quarter.
    if quotas.kind * len({pair.kind for pair in pairs}) < 1:
        of_kind = len(pairs)
    if quotas.relation * len({relation for pair in pairs for relation in pair.relations}) < 1:
        of_relation = len(pairs)
    over: dict[int, Surplus] = {}
    for place, pair in enumerate(pairs):
        answer = "" if isinstance(pair.answer, BoolValue) else normalise_name(show_value(pair.answer))
        if kinds[pair.kind] >= of_kind:
            over[place] = Surplus.KIND
        elif any(relations[relation] >= of_relation for relation in pair.relations):
            over[place] = Surplus.RELATION
        elif answer and answers[answer] >= of_answer:
            over[place] = Surplus.ANSWER
        else:
            kinds[pair.kind] += 1
            relations.update(pair.relations)
            answers[answer] += 1
    return over


class CorpusClaims:
    """Facts of all trees, in a temporary database: memory does not grow with their number."""

    def __init__(self) -> None:
        """Start without facts."""
        self._database = sqlite3.connect("", check_same_thread=False)
        self._database.execute("CREATE TABLE claims (key, subject, relation, value, tree)")
        self._several = set[str]()

    def close(self) -> None:
        """Delete the database."""
        self._database.close()

    def add(self, tree: str, claims: Iterable[Claim]) -> None:
        """Add the facts of a tree."""
        rows: list[tuple[str, str, str, bytes, str]] = []
        for claim in claims:
            value = msgspec.json.encode(claim.value)
            rows.append((fact_key(claim), normalise_name(claim.subject), claim.relation, value, tree))
            if claim.several:
                self._several.add(claim.relation)
        self._database.executemany("INSERT INTO claims VALUES (?, ?, ?, ?, ?)", rows)

    def contradicted(self) -> frozenset[str]:
        """Return the keys of the facts with values of different trees that cannot all be true."""
        self._database.execute("CREATE INDEX IF NOT EXISTS by_key ON claims (key, value)")
        alone = dict(
            self._database.execute(
                "SELECT relation, COUNT(*) FROM (SELECT relation, key FROM claims GROUP BY key HAVING COUNT(DISTINCT value) = 1)"
                " GROUP BY relation"
            ).fetchall()
        )
        rows = self._database.execute(
            "SELECT DISTINCT key, subject, relation, value, tree FROM claims WHERE relation != ? AND key IN"
            " (SELECT key FROM claims GROUP BY key HAVING COUNT(DISTINCT value) > 1 AND COUNT(DISTINCT tree) > 1)"
            " ORDER BY key, value, tree",
            (KIND,),
        )
        stated: dict[tuple[str, str, str], dict[str, list[Value]]] = defaultdict(dict)
        for key, subject, relation, value, tree in rows:
            stated[key, subject, relation].setdefault(tree, []).append(msgspec.json.decode(value, type=Value))
        return frozenset(
            key
            for (key, subject, relation), trees in stated.items()
            if self._conflict(
                list(trees.values()),
                relation not in self._several and is_single(relation, alone.get(relation, 0)),
            )
            and self._alike(subject, trees)
        )

    @staticmethod
    def _conflict(trees: Sequence[Sequence[Value]], single: bool) -> bool:
        """Return whether the trees disagree. A name that is part of another one may mean the same."""
        values = list(dict.fromkeys(value for own in trees for value in own))
        words = [normalise_name(one.name).split() if isinstance(one, EntityValue) else [] for one in values]
        whole = [
            value
            for value, own in zip(values, words, strict=True)
            if not own or not any(set(own) < set(other) for other in words)
        ]
        return values_conflict(whole, single=single)

    def _alike(self, subject: str, trees: Iterable[str]) -> bool:
        """Return whether the trees may mean the same thing: no two of them give it different kinds."""
        rows = self._database.execute(
            "SELECT tree, value FROM claims WHERE key = ? ORDER BY tree, value", (f"{subject}\t{KIND}\t",)
        )
        kinds: dict[str, set[bytes]] = defaultdict(set)
        for tree, value in rows:
            kinds[tree].add(value)
        told = [kinds[tree] for tree in trees if kinds[tree]]
        return len(told) < 2 or bool(set[bytes].intersection(*told))


class _Sketch(Protocol):
    """MinHash sketch of a set of words."""

    def update(self, items: Iterable[str]) -> None: ...


class _Index(Protocol):
    """LSH index of sketches."""

    def insert(self, key: int, minhash: _Sketch) -> None: ...
    def query(self, minhash: _Sketch) -> list[int]: ...


class _Asked(NamedTuple):
    words: list[str]
    answer: Value
    facts: frozenset[str]
    id: str


class QuestionIndex:
    """Index of the accepted questions of a run, by their words and by their facts."""

    def __init__(self, similarity: float) -> None:
        """Start an empty index.

        :param similarity: similarity from which two questions are duplicates: of their words, with the same answer, or
            of the sets of their facts.
        """
        rensa = import_module("rensa")  # it has no types
        bands = _BANDS if similarity >= _ALIKE else _MORE_BANDS
        self._worded: _Index = rensa.RMinHashLSH(similarity, _HASHES, bands)
        self._based: _Index = rensa.RMinHashLSH(similarity, _HASHES, bands)
        self._new_sketch: Callable[[int, int], _Sketch] = rensa.RMinHash
        self._similarity = similarity
        self._known: list[_Asked] = []
        self._verbatim: dict[str, str] = {}
        self._asks: dict[str, str] = {}

    def before(self, question: str, answer: Value, facts: Collection[str] = (), asks: str = "") -> str | None:
        """Return the id of an earlier duplicate: equal words, similar words and the same answer, or similar facts.

        :param facts: keys of the facts that it rests on.
        :param asks: the fact that it asks for.
        """
        from rapidfuzz import fuzz

        words = tokens(question)
        verbatim = self._verbatim.get(" ".join(words)) or self._asks.get(asks)
        if verbatim is not None:
            return verbatim
        for key in sorted(self._worded.query(self._worded_sketch(words, answer))):
            known = self._known[key]
            if fuzz.ratio(known.words, words) >= 100 * self._similarity and values_agree(
                answer, known.answer
            ):
                return known.id
        own = frozenset(facts)
        for key in sorted(self._based.query(self._sketch(own))) if own else ():
            known = self._known[key]
            if len(known.facts & own) >= self._similarity * len(known.facts | own):
                return known.id
        return None

    def add(
        self, question: str, answer: Value, own: str, facts: Collection[str] = (), asks: str = ""
    ) -> None:
        """Add a question. See `before`."""
        words = tokens(question)
        self._verbatim.setdefault(" ".join(words), own)
        if asks:
            self._asks.setdefault(asks, own)
        self._worded.insert(len(self._known), self._worded_sketch(words, answer))
        if facts:
            self._based.insert(len(self._known), self._sketch(frozenset(facts)))
        self._known.append(_Asked(words, answer, frozenset(facts), own))

    def _worded_sketch(self, words: list[str], answer: Value) -> _Sketch:
        """Return a sketch that is half question and half answer, so that other answers give no candidates."""
        said = " ".join(tokens(show_value(answer)))
        if isinstance(answer, NumberValue):  # 12 km is 12,000 metres
            quantity = quantity_of(answer.amount, answer.unit)
            said = f"{quantity.size.normalize()} {quantity.kind}"
        return self._sketch({*words, *(f"{said} {number}" for number in range(len(words)))})

    def _sketch(self, items: Collection[str]) -> _Sketch:
        sketch = self._new_sketch(_HASHES, 1)
        sketch.update(sorted(items))
        return sketch
