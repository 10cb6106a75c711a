"""Which proposals are new: exact duplicates over a whole tree, near ones among siblings and on the path."""

import re
from collections.abc import Iterable
from functools import lru_cache

from rapidfuzz import fuzz

from agentflow.trajectory import Action, canonical

__all__ = ["Taken"]

_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"\w+")


class Taken:
    """The actions that a tree has."""

    def __init__(self, similarity: float, searches: Iterable[str]) -> None:
        """Begin with none.

        :param similarity: from here on two searches are the same search.
        :param searches: the tools whose arguments are words to search with. Of the others (code, commands), one
            letter can be all the difference, so only exact duplicates count.
        """
        self._similarity = similarity * 100
        self._searches = frozenset(searches)
        self._exact: set[str] = set()

    def add(self, action: Action) -> None:
        """The tree has it now."""
        self._exact.add(canonical(action))

    def duplicate(self, action: Action, near: Iterable[Action]) -> bool:
        """Whether the tree has it, or one of its siblings and ancestors is nearly the same."""
        form = canonical(action)
        if form in self._exact:
            return True
        if action.tool not in self._searches:
            return False
        words, numbers = _search(form)
        for other in near:
            if other.tool != action.tool:
                continue
            theirs, other_numbers = _search(canonical(other))
            # Another year or page is another search, however alike the words are.
            if other_numbers == numbers and fuzz.ratio(words, theirs) >= self._similarity:
                return True
        return False


@lru_cache(maxsize=4096)
def _search(form: str) -> tuple[str, list[str]]:
    """Its words in alphabetical order, for the same search may put them in another one; and its numbers."""
    return " ".join(sorted(_WORD.findall(form.casefold()))), _NUMBER.findall(form)
