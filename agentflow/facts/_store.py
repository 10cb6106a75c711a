"""Store of the facts of a tree."""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from agentflow.facts._facts import ClosedSet, Fact
from agentflow.facts._values import ListValue, Value


class FactStore:
    """Facts and closed sets, found by subject, relation and value. It does not change.

    Facts are in the order given, which is path order.
    """

    def __init__(
        self,
        facts: Iterable[Fact],
        sets: Iterable[ClosedSet] = (),
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Index the facts.

        :param aliases: canonical names by other names.
        """
        self.facts: tuple[Fact, ...] = tuple(facts)
        """All facts."""
        self.sets: Mapping[str, ClosedSet] = {one.id: one for one in sets}
        """Closed sets by id."""
        self.aliases: Mapping[str, str] = dict(aliases)
        """Canonical names by other names."""
        self.by_id: Mapping[str, Fact] = {fact.id: fact for fact in self.facts}
        """Facts by id."""
        self._of: dict[tuple[str, str], list[Fact]] = {}
        self._about: dict[str, list[Fact]] = {}
        self._with: dict[tuple[str, Value], list[Fact]] = {}
        self._having: dict[str, list[Fact]] = {}
        for fact in self.facts:
            self._about.setdefault(fact.subject, []).append(fact)
            self._of.setdefault((fact.subject, fact.relation), []).append(fact)
            self._having.setdefault(fact.relation, []).append(fact)
            items = fact.value.items if isinstance(fact.value, ListValue) else (fact.value,)
            for item in dict.fromkeys(items):
                self._with.setdefault((fact.relation, item), []).append(fact)

    def canonical(self, name: str) -> str:
        """Return the canonical form of a name."""
        return self.aliases.get(name, name)

    def about(self, subject: str) -> tuple[Fact, ...]:
        """Return the facts about a subject."""
        return tuple(self._about.get(subject, ()))

    def of(self, subject: str, relation: str) -> tuple[Fact, ...]:
        """Return the facts that state a relation of a subject."""
        return tuple(self._of.get((subject, relation), ()))

    def stating(self, relation: str, value: Value) -> tuple[Fact, ...]:
        """Return the facts whose relation has this value, or a list with it."""
        return tuple(self._with.get((relation, value), ()))

    def having(self, relation: str) -> tuple[Fact, ...]:
        """Return the facts with this relation."""
        return tuple(self._having.get(relation, ()))

    @property
    def relations(self) -> tuple[str, ...]:
        """All relations, in the order of the facts."""
        return tuple(self._having)

    def without(self, facts: Collection[str]) -> "FactStore":
        """Return a store without some facts, given by their ids."""
        left = (fact for fact in self.facts if fact.id not in facts)
        return FactStore(left, self.sets.values(), self.aliases)
