"""Several sources as one: each question once, none of a test set, in an order that only the seed decides."""

from collections import Counter
from collections.abc import Iterable
from hashlib import sha256

from msgspec import Struct

from agentflow.learner.data._sources import Item

__all__ = ["Mix", "mix"]


class Mix(Struct, frozen=True, kw_only=True):
    """Questions to learn from, and others to see by whether it gets better."""

    train: list[Item]
    """To learn from."""
    validation: list[Item]
    """Held out from them."""
    duplicates: int
    """Left out: asked before, in other letters or spaces."""
    tested: int
    """Left out: asked in a test set, too."""


def mix(
    sources: Iterable[Iterable[Item]],
    tested: Iterable[Item],
    *,
    seed: int,
    validation: int | None,
    limit: int | None,
) -> Mix:
    """Mix sources.

    :param tested: the questions of test sets: nothing is learned from them.
    :param seed: decides order, choice and what is held out. More rows in a source change no other row's place among the rest.
    :param validation: how many are held out; `None`: a tenth, 200 at most.
    :param limit: how many of each source are taken at most, chosen by the seed; `None`: all.
    """
    forbidden = {_key(item) for item in tested}
    seen: set[str] = set()
    left_out: Counter[str] = Counter()
    found: list[tuple[bytes, Item]] = []
    for source in sources:
        own: list[tuple[bytes, Item]] = []
        for item in source:
            key = _key(item)
            if key in forbidden or key in seen:
                left_out["tested" if key in forbidden else "duplicates"] += 1
                continue
            seen.add(key)
            own.append((sha256(f"{seed}\0{key}".encode()).digest(), item))
        own.sort(key=lambda entry: entry[0])
        found += own[:limit]
    found.sort(key=lambda entry: entry[0])
    items = [item for _, item in found]
    held_out = min(len(items) // 10, 200) if validation is None else max(validation, 0)
    return Mix(
        train=items[held_out:],
        validation=items[:held_out],
        duplicates=left_out["duplicates"],
        tested=left_out["tested"],
    )


def _key(item: Item) -> str:
    """The question without what does not change it."""
    return " ".join(item.question.casefold().split())
