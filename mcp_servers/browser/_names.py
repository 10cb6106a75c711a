"""The names of elements (`e12`, `f1e3`) that a fork's users know, where its page has given others.

Chromium numbers a page's elements as they are looked at, so a page that is loaded again numbers them anew. A fork's
page is loaded again; who holds a snapshot of the parent goes on with its names.
"""

import re
from collections.abc import Callable
from difflib import SequenceMatcher
from itertools import zip_longest

__all__ = ["RefNames", "is_ref", "without_refs"]

MOST_LINES = 2_000
"""Longer snapshots that differ are only compared up to their first difference: it would take too long."""

_REF = re.compile(r"(?:f\d+)?e\d+\Z")
_MARKED = re.compile(r"\[ref=((?:f\d+)?e\d+)\]")
_FRAME = re.compile(r"(f\d+)?e(\d+)")


def is_ref(target: str) -> bool:
    """It names an element of a snapshot; anything else is a selector."""
    return _REF.match(target) is not None


def without_refs(snapshot: str) -> str:
    """A snapshot without names."""
    return _MARKED.sub("", snapshot)


class RefNames:
    """Two ways between the names that users know and those that the page has given. At first they are the same."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._real: dict[str, str] = {}
        self._beyond = 0

    def align(self, known: str, real: str) -> str:
        """Call the elements of the snapshot `real` as they are called in `known`, line by line.

        :return: the first line in which the two differ otherwise; empty, if they don't.
        """
        names: dict[str, str] = {}
        difference = ""
        old, new = known.splitlines(), real.splitlines()
        plain_old, plain_new = [without_refs(line) for line in old], [without_refs(line) for line in new]
        for one, other, size in _common(plain_old, plain_new):
            for left, right in zip(old[one : one + size], new[other : other + size], strict=True):
                names.update(zip(_MARKED.findall(right), _MARKED.findall(left), strict=True))
        if plain_old != plain_new:
            pairs = zip_longest(plain_old, plain_new, fillvalue="")
            difference = next((left or right for left, right in pairs if left != right)).strip()
        self._shown, self._real, self._beyond = {}, {}, 0
        if difference or any(real != shown for real, shown in names.items()):
            self._shown = names
            self._real = {shown: real for real, shown in names.items()}
            taken = [_number(name) for name in (*_MARKED.findall(known), *_MARKED.findall(real))]
            self._beyond = 1 + max(taken, default=0)
        return difference

    def shown(self, snapshot: str) -> str:
        """A snapshot of the page, as users know its elements."""
        return _renamed(snapshot, self.shown_name) if self._beyond else snapshot

    def shown_name(self, real: str) -> str:
        """What users call an element."""
        if not self._beyond or real in self._shown:
            return self._shown.get(real, real)
        # Elements that came later: beyond all names that are taken.
        frame, number = _parts(real)
        return f"{frame}e{number + self._beyond}"

    def real_name(self, shown: str) -> str:
        """What the page calls it."""
        if not self._beyond or shown in self._real:
            return self._real.get(shown, shown)
        frame, number = _parts(shown)
        # `e0` is nobody's name: an element of the parent that the fork does not have is not found.
        return f"{frame}e{max(number - self._beyond, 0)}"


def _common(old: list[str], new: list[str]) -> list[tuple[int, int, int]]:
    """Runs of equal lines: where they begin in the one and in the other, and how long they are."""
    if old == new:
        return [(0, 0, len(old))]
    if len(old) + len(new) > MOST_LINES:
        same = next((at for at, (left, right) in enumerate(zip(old, new, strict=False)) if left != right), 0)
        return [(0, 0, same)]
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [(block.a, block.b, block.size) for block in matcher.get_matching_blocks()]


def _renamed(snapshot: str, rename: Callable[[str], str]) -> str:
    return _MARKED.sub(lambda match: f"[ref={rename(match[1])}]", snapshot)


def _parts(name: str) -> tuple[str, int]:
    match = _FRAME.fullmatch(name)
    assert match is not None
    return match[1] or "", int(match[2])


def _number(name: str) -> int:
    return _parts(name)[1]
