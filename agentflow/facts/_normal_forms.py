"""Normal forms of names and relations."""

import re
import unicodedata
from functools import lru_cache
from typing import Final

from agentflow.facts._names import normalise_name
from agentflow.facts._values import ValueKind

_ARTICLE: Final = re.compile(r"^(?:the|an?)\s+(?=\S)", re.IGNORECASE)
_RANK: Final = re.compile(
    r"(?:captain|capt|admiral|colonel|governor|lord|lady|bishop|doctor|mayor)\.?\s+(?=\S+\s+\S)",
    re.IGNORECASE,
)
"""A rank before a name of two words or more."""
_POSSESSIVE: Final = re.compile(r"(?:['’]s|(?<=s)['’])(?=\s|$)")
_NO_WORD: Final = re.compile(r"[\W_]+")
_OF: Final = re.compile(r"\s+(?:of|by|in|at|for|to|from|on|with)$")
_SUFFIXES: Final = ("ations", "ation", "ments", "ment", "ings", "ing", "ied", "ies", "ed", "es", "s", "e")
"""Endings that `_stem` removes, longest first."""
_FILLERS: Final = frozenset(
    {"of", "the", "a", "an", "in", "by", "at", "was", "is", "were", "when", "which", "its"}
)
_SYNONYMS: Final = {
    "place of birth": "birthplace", "birth place": "birthplace", "deathplace": "place of death",
    "birth date": "date of birth", "birthdate": "date of birth", "birthday": "date of birth",
    "death date": "date of death", "birth year": "year of birth", "death year": "year of death",
    "year of establishment": "year of foundation", "establishment year": "year of foundation",
    "number of inhabitants": "population", "inhabitants": "population", "number of residents": "population",
    "founded by": "founder", "designed by": "designer", "built by": "builder", "invented by": "inventor",
    "discovered by": "discoverer", "written by": "author", "writer": "author", "owned by": "owner",
    "occupation": "profession", "job": "profession", "type": "kind", "class": "kind", "category": "kind",
    "capital city": "capital",
}  # fmt: skip
"""Relations that mean the same, by the form in which they are kept."""
_COUNTED: Final = re.compile(
    r"(?:\d{1,4}|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)\s+(?=\S)", re.IGNORECASE
)
"""Number of the members before their name."""
_EVENTS: Final = {
    "born": "birth", "birth": "birth", "died": "death", "death": "death", "founded": "foundation",
    "founding": "foundation", "established": "foundation", "built": "construction", "constructed": "construction",
    "launched": "launch", "launching": "launch", "opened": "opening", "closed": "closure", "completed": "completion",
}  # fmt: skip
"""Nouns of verbs whose value may be a year, a date or a place."""


@lru_cache(maxsize=8192)
def bare_name(name: str) -> str:
    """Return a name with single spaces, without a leading article.

    >>> bare_name(" The  Grey Petrel")
    'Grey Petrel'
    """
    plain = " ".join(unicodedata.normalize("NFC", name).split()).strip(' .,;:"“”')
    return plain if plain.startswith("The Hague") else _ARTICLE.sub("", plain)


@lru_cache(maxsize=8192)
def name_key(name: str) -> str:
    """Return the form in which names that differ in case, article, title or possessive are equal.

    >>> name_key("the Pilots’ Guild") == name_key("Pilots' guild")
    True
    """
    plain = _RANK.sub("", _POSSESSIVE.sub("", bare_name(name)), count=1)
    # The initial of A. Holm is not an article.
    return (
        f"a {normalise_name(plain[2:])}"
        if plain.startswith("A.") and plain[2:].strip()
        else normalise_name(plain)
    )


@lru_cache(maxsize=8192)
def relation_name(relation: str, kind: ValueKind = ValueKind.TEXT) -> str:
    """Return a relation in lower case, without an article and a trailing "of"; a few synonyms become one.

    >>> relation_name("The Number of Inhabitants of"), relation_name("founded in", ValueKind.DATE)
    ('population', 'year of foundation')

    :param kind: type of the value: "born in" is followed by a year or a place.
    """
    plain = " ".join(unicodedata.normalize("NFC", relation).replace("_", " ").lower().split()).strip(" .,;:?")
    plain = _ARTICLE.sub("", plain)
    if event := _event(plain, kind):
        return event
    plain = _SYNONYMS.get(plain) or _OF.sub("", plain)
    return _SYNONYMS.get(plain, plain)


def set_name(description: str) -> str:
    """Return the description of a closed set without an article and the number of its members.

    >>> set_name("The five islands of the group")
    'islands of the group'
    >>> set_name("rows in the table “Ships”")
    'rows in the table “Ships”'
    """
    plain = _COUNTED.sub("", bare_name(description).strip(" .:"), count=1)
    return f"{plain}”" if plain.count("“") > plain.count("”") else plain


def _event(plain: str, kind: ValueKind) -> str:
    """Return the year, date or place of an event as a noun phrase; empty for another relation."""
    words = plain.split()
    told = [word for word in words if word not in _FILLERS and word not in ("year", "date", "on")]
    event = _EVENTS.get(told[0], "") if len(told) == 1 else ""
    if not event:
        return ""
    if "date" in words or (kind is ValueKind.DATE and words[-1] == "on"):
        return f"date of {event}"
    if "year" in words or kind is ValueKind.DATE:
        return f"year of {event}"
    placed = kind is ValueKind.ENTITY and words[-1] in ("in", "at")
    return ("birthplace" if event == "birth" else f"place of {event}") if placed else ""


@lru_cache(maxsize=8192)
def relation_key(relation: str) -> str:
    """Return the form in which relations with the same stems in another order are equal.

    >>> relation_key("launch date") == relation_key("date of launching")
    True
    """
    words = _NO_WORD.sub(" ", relation_name(relation)).split()
    stems = sorted({_stem(word) for word in words if word not in _FILLERS})
    return " ".join(stems) or relation_name(relation)


def _stem(word: str) -> str:
    """Remove one ending, if at least four letters are left."""
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 4:
            return word.removesuffix(suffix)
    return word
