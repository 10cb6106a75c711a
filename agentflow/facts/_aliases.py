"""Names that mean the same thing: merged by rule, or doubtful."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from agentflow.facts._facts import KIND, Fact
from agentflow.facts._normal_forms import bare_name, name_key
from agentflow.facts._values import EntityValue, ListValue, TextValue, Value

_MAX_CANDIDATES: Final = 200
_INITIALS: Final = re.compile(r"(?P<initial>[A-Z])(?:\.\s?[A-Z])*\.?\s+(?P<last>\w[\w’'-]+)")
_DEFINED: Final = re.compile(r"\((?P<short>[A-Z][A-Za-z&]{0,6}[A-Z])\)")
_BEFORE: Final = 120
"""Characters before a definition in parentheses in which its name is looked for."""
_SMALL: Final = frozenset({"of", "the", "and", "for", "in", "de", "la", "du", "des", "von", "&", "at", "on"})
_PERSONAL: Final = frozenset({
    "birthplace", "date of birth", "year of birth", "date of death", "year of death", "place of death", "profession",
    "spouse", "husband", "wife", "nationality", "father", "mother", "child", "children", "son", "daughter",
})  # fmt: skip
"""Relations that only a person has."""
_PERSONS: Final = frozenset({
    "captain", "founder", "designer", "builder", "author", "inventor", "discoverer", "keeper", "master", "architect",
    "engineer", "painter", "composer", "director", "president", "king", "queen", "mayor", "wife", "husband", "father",
    "mother", "son", "daughter", "brother", "sister", "teacher", "student", "leader", "commander", "editor", "spouse",
    "astronomer", "politician", "sailor", "clockmaker", "shipwright", "scientist", "poet", "guildmaster", "person",
})  # fmt: skip
"""Last words of relations and kinds of persons."""


class NameUse(NamedTuple):
    """A name in an observation."""

    node: str
    name: str


class NameLink(NamedTuple):
    """Two names that mean the same thing, or may."""

    short: str
    """A name."""
    full: str
    """The other one, which is not shorter."""
    node: str = ""
    """Id of the only node in which they do; empty: in the whole tree."""


class NameTable:
    """Canonical names of a tree: groups of names, and short forms within single observations."""

    def __init__(self, uses: Iterable[NameUse], links: Iterable[NameLink]) -> None:
        """Merge the linked names."""
        self._parents: dict[str, str] = {}
        self._forms: dict[str, Counter[str]] = defaultdict(Counter)
        self._within: dict[NameUse, str] = {}
        self._canonical: dict[str, str] = {}
        keys: set[NameUse] = set()
        for use in uses:
            self._forms[name_key(use.name)][bare_name(use.name)] += 1
            keys.add(NameUse(use.node, name_key(use.name)))
        ordered = list(links)
        for link in ordered:
            short, full = name_key(link.short), name_key(link.full)
            for name, key in ((link.short, short), (link.full, full)):
                self._forms[key][bare_name(name)] += 0
            if link.node:
                self._within[NameUse(link.node, short)] = full
            else:
                self._parents[self._root(short)] = self._root(full)
        self._elsewhere = {use.name for use in keys - self._within.keys()}
        groups: dict[str, list[tuple[tuple[object, ...], str]]] = defaultdict(list)
        for key, forms in self._forms.items():
            for form, count in forms.items():
                groups[self._root(key)].append((_rank(key, form, count), form))
        for root, members in groups.items():
            self._canonical[root] = min(members)[1]

    def canonical(self, node: str, name: str) -> str:
        """Return the canonical form of a name in an observation."""
        key = name_key(name)
        key = self._within.get(NameUse(node, key), key)
        return self._canonical.get(self._root(key), bare_name(name))

    def aliases(self) -> dict[str, str]:
        """Return the canonical names by the other names that mean the same everywhere, in alphabetical order."""
        found: dict[str, str] = {}
        short = {use.name for use in self._within}
        for key, forms in self._forms.items():
            if key not in short:
                found.update((form, self._canonical[self._root(key)]) for form in forms)
        meant: dict[str, set[str]] = defaultdict(set)
        for use, full in self._within.items():
            meant[use.name].add(self._canonical[self._root(full)])
        for key, names in meant.items():
            if len(names) == 1 and key not in self._elsewhere:
                found.update((form, next(iter(names))) for form in self._forms[key])
        return {form: name for form, name in sorted(found.items()) if form != name}

    def _root(self, key: str) -> str:
        root = key
        while (parent := self._parents.get(root, root)) != root:
            root = parent
        while (parent := self._parents.get(key, key)) != root:
            self._parents[key], key = root, parent
        return root


def _rank(key: str, form: str, count: int) -> tuple[object, ...]:
    """Order the forms of a name: the fullest first, without a title."""
    short = _INITIALS.fullmatch(form) is not None or (form.isupper() and " " not in form)
    return (short, -len(key.split()), len(form.split()), -count, form)


def entity_names(value: Value) -> tuple[str, ...]:
    """Return the names in a value.

    >>> entity_names(EntityValue("Ilsa Venn"))
    ('Ilsa Venn',)
    """
    match value:
        case EntityValue(name):
            return (name,)
        case ListValue(items):
            return tuple(item.name for item in items if isinstance(item, EntityValue))
        case _:
            return ()


class LinkedNames(NamedTuple):
    """Result of the rules."""

    links: tuple[NameLink, ...]
    """Names that mean the same thing."""
    doubtful: tuple[NameLink, ...]
    """Names that may; those most worth asking about come first."""


def link_names(
    facts: Sequence[Fact],
    reported: Sequence[tuple[str, str, str]],
    texts: Mapping[str, str],
) -> LinkedNames:
    """Find the names that mean the same thing.

    :param facts: located facts, in path order.
    :param reported: node, subject and other name, as roles report them.
    :param texts: texts of the observations by node, in path order.
    """
    return _Linking(facts).result(reported, texts)


class _Linking:
    """The rules, over the names of a tree."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        self._names: dict[str, str] = {}
        self._nodes: dict[str, list[str]] = defaultdict(list)
        self._related: set[frozenset[str]] = set()
        self._kinds: dict[str, set[str]] = defaultdict(set)
        self._persons: set[str] = set()
        self._dates: dict[tuple[str, str], Value] = {}
        self._links: list[NameLink] = []
        self._doubtful: list[NameLink] = []
        for fact in facts:
            self._learn(fact)

    def _learn(self, fact: Fact) -> None:
        subject = name_key(fact.subject)
        node = fact.spans[0].node
        values = entity_names(fact.value)
        for name in (fact.subject, *values):
            key = name_key(name)
            self._names.setdefault(key, bare_name(name))
            if node not in self._nodes[key][-1:]:
                self._nodes[key].append(node)
        for name in values:
            self._related.add(frozenset((subject, name_key(name))))
            if fact.relation.split()[-1] in _PERSONS:
                self._persons.add(name_key(name))
        if fact.relation in _PERSONAL:
            self._persons.add(subject)
        if fact.relation == KIND and isinstance(fact.value, EntityValue | TextValue):
            kind = name_key(fact.value.name if isinstance(fact.value, EntityValue) else fact.value.text)
            self._kinds[subject].add(kind)
            if kind.split()[-1] in _PERSONS:
                self._persons.add(subject)

    def result(self, reported: Sequence[tuple[str, str, str]], texts: Mapping[str, str]) -> LinkedNames:
        self._defined(texts)
        self._initials()
        self._reported(reported)
        self._short_forms()
        linked = {frozenset((name_key(link.short), name_key(link.full))) for link in self._links}
        asked: dict[frozenset[str], NameLink] = {}
        for link in self._doubtful:
            pair = frozenset((name_key(link.short), name_key(link.full)))
            if len(pair) == 2 and pair not in linked:
                asked.setdefault(pair, link)
        return LinkedNames(tuple(dict.fromkeys(self._links)), tuple(asked.values()))

    def _distinct(self, one: str, other: str) -> bool:
        """Return whether two names certainly mean different things: one is related to the other, or of another kind."""
        mine, theirs = self._kinds.get(one), self._kinds.get(other)
        return frozenset((one, other)) in self._related or bool(mine and theirs and not mine & theirs)

    def _link(self, short: str, full: str, node: str = "") -> None:
        if name_key(short) != name_key(full) and not self._distinct(name_key(short), name_key(full)):
            self._links.append(NameLink(short, full, node))

    def _doubt(self, short: str, full: str) -> None:
        if name_key(short) != name_key(full) and not self._distinct(name_key(short), name_key(full)):
            self._doubtful.append(NameLink(short, full))

    def _defined(self, texts: Mapping[str, str]) -> None:
        """Link abbreviations that a text defines: `Guild of Glaziers (GG)`."""
        meant: dict[str, dict[str, str]] = defaultdict(dict)
        for node, text in texts.items():
            for found in _DEFINED.finditer(text):
                before = text[max(found.start() - _BEFORE, 0) : found.start()]
                name = _spelled(before, found["short"])
                if name and (name_key(name) in self._names or name_key(found["short"]) in self._names):
                    meant[found["short"]][node] = name
        for short, names in meant.items():
            if len({name_key(name) for name in names.values()}) == 1:
                self._link(short, next(iter(names.values())))
            else:
                for node, name in names.items():
                    self._link(short, name, node)

    def _initials(self) -> None:
        """Link initials with a surname to the only full name that fits."""
        full: dict[tuple[str, str], list[str]] = defaultdict(list)
        short: list[tuple[str, str, str]] = []
        for key, name in self._names.items():
            words = key.split()
            if found := _INITIALS.fullmatch(name):
                short.append((name, found["initial"].casefold(), name_key(found["last"])))
            elif len(words) > 1:
                full[words[0][0], words[-1]].append(name)
        for name, initial, last in short:
            candidates = full[initial, last][:_MAX_CANDIDATES]
            if len(candidates) == 1:
                self._link(name, candidates[0])
            for candidate in candidates[:3] if len(candidates) > 1 else ():
                self._doubt(name, candidate)

    def _reported(self, reported: Sequence[tuple[str, str, str]]) -> None:
        """Link names that a role reported if they share a word; others are doubtful."""
        for _, subject, alias in reported:
            mine, theirs = set(name_key(subject).split()), set(name_key(alias).split())
            if len(theirs) > 1 and mine >= theirs - _SMALL:
                self._link(alias, subject)
            elif len(mine) > 1 and theirs >= mine:
                self._link(subject, alias)
            else:
                self._doubt(alias, subject)

    def _short_forms(self) -> None:
        """Link a surname to the only person of its observation with it; other names within names are doubtful."""
        holders: dict[str, list[str]] = defaultdict(list)
        for key, name in self._names.items():
            if _INITIALS.fullmatch(name):
                continue
            words = key.split()
            parts = {" ".join(words[:cut]) for cut in range(1, min(len(words), 6))}
            # The end of "Great Chart of the Varrow Isles" names something else.
            parts |= {
                " ".join(words[-cut:])
                for cut in range(1, min(len(words), 6))
                if words[-cut - 1] not in _SMALL
            }
            for part in sorted((parts | {"".join(words)}) - {key}):
                if part in self._names:
                    holders[part].append(key)
        for key, kinds in self._kinds.items():
            # Brenn lighthouse may be Brenn Light if that is a lighthouse.
            for kind in sorted(kinds):
                other = " ".join([*key.split()[:-1], kind])
                if other in self._names:
                    self._doubt(self._names[other], self._names[key])
        for part, keys in holders.items():
            persons = [key for key in keys if key in self._persons and key.split()[-1] == part]
            here = set(self._nodes[part])
            for node in self._nodes[part]:
                near = [key for key in persons[:_MAX_CANDIDATES] if node in self._nodes[key]]
                if len(near) == 1 and " " not in part:
                    self._link(self._names[part], self._names[near[0]], node)
                    here.discard(node)
            if here:
                for key in keys[:3]:
                    self._doubt(self._names[part], self._names[key])


def _spelled(before: str, short: str) -> str:
    """Return the name at the end of a text whose initials spell an abbreviation; empty if there is none."""
    words = before.split()
    letters = [letter for letter in short.upper() if letter.isalpha()]
    start = len(words)
    while letters and start:
        start -= 1
        word = words[start].strip("\"'“”‘’,")
        if word[:1].upper() == letters[-1] and word[:1].isupper():
            letters.pop()
        elif word.casefold() not in _SMALL:
            return ""
    return "" if letters else bare_name(" ".join(words[start:]))
