"""Mix sources: duplicates and test questions are removed, and the order depends only on the seed."""

from collections import Counter
from collections.abc import Iterable
from hashlib import sha256

from msgspec import Struct

from agentflow.learner.data._sources import Item


class Mix(Struct, frozen=True, kw_only=True):
    """Training and validation questions."""

    train: list[Item]
    """Training questions."""
    validation: list[Item]
    """Held-out questions."""
    duplicates: int
    """Number of questions left out because they differ from another only in case or spaces."""
    tested: int
    """Number of questions left out because they are in a test set."""


def mix(
    sources: Iterable[Iterable[Item]],
    tested: Iterable[Item],
    *,
    seed: int,
    validation: int | None,
    limit: int | None,
) -> Mix:
    """Mix sources.

    :param tested: questions of test sets, which are left out.
    :param seed: determines order, selection and what is held out. Additional rows do not change the relative order of others.
    :param validation: number of held-out questions; `None`: a tenth, at most 200.
    :param limit: maximum number of questions of each source, selected by the seed; `None`: all.
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
    """Return the question without case and redundant spaces."""
    return " ".join(item.question.casefold().split())
