"""A family of tasks about fictional things: a corpus, and questions that need one search, two, or a computation.

The unit is a cluster: a ship, its home port, and their two documents. The documents of a cluster belong to one part, `train`,
`choose` or `held_out`; so do its answers, which are unique.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import ceil, sqrt
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

import msgspec

from agentflow.errors import ConfigurationError
from agentflow.trace import Task

__all__ = ["AMOUNTS", "PARTS", "Cluster", "Document", "Family", "Kind", "Part", "make_family"]

Part = Literal["train", "choose", "held_out"]
Kind = Literal["look_up", "chain", "compute"]
PARTS: tuple[Part, ...] = ("train", "choose", "held_out")
"""Parts: training tasks, tasks for choosing a checkpoint, and tasks for the final evaluation."""

_SHIPS = (
    """Amber Bold Bright Calm Copper Crimson Dusky Faithful Golden Grey Hidden Iron Jolly Lonely Merry Noble Pale Quiet
    Royal Silver""",
    """Albatross Comet Condor Curlew Dolphin Eagle Falcon Gannet Heron Ibis Kestrel Lynx Magpie Osprey Otter Pelican
    Petrel Raven Sparrow Walrus""",
)
_TOWNS = (
    """Alder Barrow Birch Clover Deep Elder Fern Frost Hazel High Lower Marsh Mill Reed Rose Stone Thorn Upper White
    Winter""",
    """Bank Bridge Brook Cape Cliff Creek Cross Dale Edge Field Ford Gate Glen Haven Hollow Moor Quay Ridge Shore
    Strand""",
)
_PEOPLE = (
    "Ada Anton Berta Bruno Clara Dora Edgar Elsa Emil Flora Georg Greta Hugo Ida Jonas Karla Lena Mara Nils Olga",
    """Adler Bauer Becker Brandt Dietz Ebner Falk Fischer Gruber Hahn Heller Jansen Keller Koch Lang Moser Pohl Richter
    Sauer Vogel""",
)
_CARGO = ("lamps", "bells", "ropes", "bricks", "books", "jars")
AMOUNTS = (
    12, 14, 15, 17, 18, 19, 21, 23, 26, 27, 29, 31, 34, 35, 37, 38, 41, 43, 46, 47, 53, 58, 59, 61, 67, 71, 73, 79, 83, 89,
)  # fmt: skip
"""Nouns for things."""


class Document(NamedTuple):
    """A document of the corpus."""

    id: str
    """Id of the document."""
    title: str
    """Its title."""
    text: str
    """Its text."""


class Cluster(NamedTuple):
    """A ship and its home port."""

    part: Part
    """The part it belongs to."""
    ship: str
    """Name of the ship."""
    town: str
    """Name of its home port."""
    mayor: str
    """Mayor of the town."""
    crates: int
    """Number of crates on the ship."""
    each: int
    """Number of things in each crate."""
    cargo: str
    """Name of the things."""

    def documents(self, number: int) -> tuple[Document, Document]:
        """The two documents; neither contains the other's answer."""
        ship, town = self.ship, self.town
        name = _letters(number)
        return (
            Document(
                f"{name}s",
                ship,
                f"The home port of the {ship} is {town}. "
                # Numbers follow a colon, as at the beginning of the program: a model this small continues what it has read.
                f"The {ship} carries in crates: {self.crates} * {self.each} {self.cargo}.",
            ),
            Document(f"{name}t", town, f"The mayor of {town} is {self.mayor}."),
        )

    def questions(self) -> Iterator[tuple[Kind, str, str]]:
        """A question of each kind, with its answer."""
        yield "look_up", f"Who is the mayor of {self.town}?", self.mayor
        yield "chain", f"Who is the mayor of the home port of the {self.ship}?", self.mayor
        yield (
            "compute",
            f"How many {self.cargo} does the {self.ship} carry in all?",
            str(self.crates * self.each),
        )


class Family(NamedTuple):
    """The corpus and the tasks."""

    clusters: tuple[Cluster, ...]
    """All clusters, part by part."""

    def documents(self) -> list[Document]:
        """The corpus."""
        return [text for number, cluster in enumerate(self.clusters) for text in cluster.documents(number)]

    def tasks(self, part: Part) -> list[Task]:
        """Return the tasks of one part, three for each cluster."""
        asked = [
            (number, kind, question, answer)
            for number, cluster in enumerate(self.clusters)
            if cluster.part == part
            for kind, question, answer in cluster.questions()
        ]
        return [
            Task(
                index=index,
                id=f"{part}-{number}-{kind}",
                question=question,
                references=(answer,),
                metadata={"kind": kind},
            )
            for index, (number, kind, question, answer) in enumerate(asked)
        ]

    def renaming(self, seed: int) -> Callable[[str], str]:
        """Replaces the names and numbers in a text by others, none of which belongs to a part that is not trained on.

        A model that reads a text with other names each time learns to copy names instead of memorising them.
        """
        random = Random(seed)
        instead: dict[str, str] = dict(
            zip(map(str, AMOUNTS), map(str, random.sample(AMOUNTS, len(AMOUNTS))), strict=True)
        )
        for names in (
            [one.ship for one in self.clusters],
            [one.town for one in self.clusters],
            [one.mayor for one in self.clusters],
        ):
            kept = {name for name, one in zip(names, self.clusters, strict=True) if one.part != "train"}
            words = [name.split() for name in names]
            every = product(sorted({one for one, _ in words}), sorted({other for _, other in words}))
            free = [name for name in map(" ".join, every) if name not in kept]
            instead |= {name: random.choice(free) for name in names}
        pattern = re.compile(rf"\b(?:{'|'.join(sorted(instead, key=len, reverse=True))})\b")
        return lambda text: pattern.sub(lambda match: instead[match[0]], text)

    def write(self, folder: Path) -> Path:
        """Write the corpus and the tasks of each part to files; return the path of the corpus."""
        folder.mkdir(parents=True, exist_ok=True)
        corpus = folder / "documents.jsonl"
        _write(corpus, [text._asdict() for text in self.documents()])
        for part in PARTS:
            lines = [
                {"id": task.id, "question": task.question, "answer": task.references[0], **task.metadata}
                for task in self.tasks(part)
            ]
            _write(folder / f"{part}.jsonl", lines)
        return corpus


def make_family(seed: int = 0, *, train: int = 200, choose: int = 24, held_out: int = 110) -> Family:
    """Make a family with that many clusters in each part; it depends only on the seed.

    :raises ConfigurationError: if there are not enough names.
    """
    random = Random(seed)
    sizes: dict[Part, int] = {"train": train, "choose": choose, "held_out": held_out}
    parts: list[Part] = [part for part in PARTS for _ in range(sizes[part])]
    if len(parts) > (most := _most_clusters()):
        raise ConfigurationError(f"clusters: {len(parts)} in all; there are names for {most} at most")
    ships, towns, people = (_names(words, len(parts), random) for words in (_SHIPS, _TOWNS, _PEOPLE))
    numbers = _factors(len(parts), random)
    return Family(
        tuple(
            Cluster(part, ship, town, mayor, crates, each, random.choice(_CARGO))
            for part, ship, town, mayor, (crates, each) in zip(
                parts, ships, towns, people, numbers, strict=True
            )
        )
    )


def _most_clusters() -> int:
    """Return how many clusters have names and products of their own."""
    names = min(len(each.split()) ** 2 for words in (_SHIPS, _TOWNS, _PEOPLE) for each in words)
    return min(names, len({one * other for one, other in product(AMOUNTS, repeat=2)}))


def _names(words: tuple[str, str], count: int, random: Random) -> list[str]:
    """Return different names of two words, with as few words as possible."""
    enough = ceil(sqrt(count))
    ones, others = (random.sample(each.split(), enough) for each in words)
    return random.sample([f"{one} {other}" for one, other in product(ones, others)], count)


def _factors(count: int, random: Random) -> list[tuple[int, int]]:
    """Return pairs of numbers with different products."""
    pairs = list(product(AMOUNTS, repeat=2))
    random.shuffle(pairs)
    return list({one * other: (one, other) for one, other in pairs}.values())[:count]


def _letters(number: int) -> str:
    """Return a short name without digits: the only digits in a text are those of the cargo."""
    return chr(97 + number // 26) + chr(97 + number % 26)


def _write(path: Path, lines: Sequence[object]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
