"""Verdicts on the nodes of trees, from one journal entry for each level."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import repeat
from threading import Lock
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from agentflow.growth import LevelRecord, VerdictRecord
from agentflow.inspection._spots import depth_of, nodes_by_spot
from agentflow.journal import JournalReader, StoredSeed
from agentflow.trace import Verdict

_MARKS: Final = {
    Verdict.NEW: "n",
    Verdict.REPEATS: "r",
    Verdict.EMPTY: "e",
    Verdict.ERROR: "x",
    Verdict.OFF_TOPIC: "o",
}
_UNJUDGED: Final = "."
_REMEMBERED: Final = 8


class _OldNode(Struct, frozen=True):
    """Node of a stored tree, without what the skeleton does not need."""

    id: str
    parent: str | None
    position: int
    verdict: Verdict
    reason: str = ""


class _OldTree(Struct, frozen=True):
    nodes: tuple[_OldNode, ...]


class _OldResult(Struct, frozen=True):
    tree: _OldTree | None = None


class _JudgedLevels(NamedTuple):
    """Levels of a tree that are judged."""

    depths: frozenset[int]
    others: Mapping[str, tuple[Verdict, str]]
    """Verdicts other than `new`, by spot."""


class VerdictReader:
    """Verdicts in the journal of a run. Threads may share it."""

    def __init__(self, journal: JournalReader, run: int) -> None:
        self._journal = journal
        self._run = run
        self._lock = Lock()
        self._known: dict[int, _JudgedLevels] = {}

    def marks(self, stored: StoredSeed, spots: Sequence[str]) -> str:
        """Return a letter for each node, whose spots are ordered by depth."""
        levels = self._levels(stored)
        if not levels.depths and spots:
            verdicts = self._old(stored)
            return "".join(_MARKS[verdicts[spot][0]] if spot in verdicts else _UNJUDGED for spot in spots)
        known = bisect_right(spots, max(levels.depths, default=0), key=depth_of)
        letters = {spot: _MARKS[verdict] for spot, (verdict, _) in levels.others.items()}
        return "".join(map(letters.get, spots[:known], repeat("n"))) + _UNJUDGED * (len(spots) - known)

    def on(self, stored: StoredSeed, spots: Sequence[str]) -> dict[str, tuple[Verdict, str]]:
        """Return the verdicts on these nodes; those that are not yet judged are left out."""
        levels = self._levels(stored)
        if not levels.depths:
            return dict(self._old(stored))
        judged = max(levels.depths)
        return {
            spot: levels.others.get(spot, (Verdict.NEW, "")) for spot in spots if depth_of(spot) <= judged
        }

    def _levels(self, stored: StoredSeed) -> _JudgedLevels:
        """Return the judged levels. Those of the last seeds are remembered, because a level is written once."""
        number = stored.seed.index
        with self._lock:
            known = self._known.get(number, _JudgedLevels(frozenset(), {}))
        depths = frozenset(map(int, self._journal.keys_below(self._run, number, "level/")))
        if depths == known.depths:
            return known
        others = dict(known.others)
        missing = [f"level/{depth}" for depth in depths - known.depths]
        for body in self._journal.bodies(self._run, number, missing).values():
            others |= msgspec.json.decode(body, type=LevelRecord).others
        levels = _JudgedLevels(depths, others)
        with self._lock:
            self._known.pop(number, None)
            self._known[number] = levels
            while len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]
        return levels

    def _old(self, stored: StoredSeed) -> Mapping[str, tuple[Verdict, str]]:
        """Return the verdicts in a journal of an earlier version: of a finished tree, or those of a model."""
        number = stored.seed.index
        if body := self._journal.harvests(self._run, [number]).get(number) if stored.done else None:
            tree = msgspec.json.decode(body, type=_OldResult).tree
            nodes = () if tree is None else tree.nodes
            return {spot: (node.verdict, node.reason) for spot, node in nodes_by_spot(nodes).items()}
        records = self._journal.entries(self._run, number, "node/")
        judged = {key[5:]: msgspec.json.decode(body, type=VerdictRecord) for key, body in records.items()}
        return {spot: (record.verdict, record.reason) for spot, record in judged.items()}
