"""Adding seeds: each once and in order, with concurrent writers."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct, field
from sqlalchemy import Connection, func, select

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow.errors import ConfigurationError
from agentflow.journal._schema import runs, seeds
from agentflow.trace import Seed


class NewSeed(Struct, frozen=True):
    """Seed to be added to a run."""

    content: str
    """The topic to explore, in words."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Tool arguments that the seed fixes."""
    id: str | None = None
    """Its id; by default `seed_` and its number."""


def add_seeds(
    connection: Connection, run: int, wanted: Sequence[NewSeed], origin: str, *, further: bool = False
) -> list[Seed]:
    """Add the missing seeds of a list; return the whole list as stored.

    :param further: if the list is another one than before, add those of its seeds that the run does not have.
    :raises ConfigurationError: if the list began differently before, or an id is taken or invalid.
    """
    # A writer locks the run, so that indices and ids are assigned by one at a time.
    connection.execute(select(runs.c.id).where(runs.c.id == run).with_for_update())
    stored = _stored_seeds(connection, run, origin)
    difference = _difference(stored, wanted, origin)
    if difference and not further:
        raise ConfigurationError(difference)
    if difference:
        every = {_content(seed) for seed in _stored_seeds(connection, run)}
        wanted = [new for new in wanted if _content(new) not in every]
        stored, origin = [], f"{origin} {sha256(b''.join(map(_content, wanted))).hexdigest()[:16]}"
    count = connection.scalar(select(func.count()).where(seeds.c.run == run)) or 0
    tail = wanted[len(stored) :]
    written = [_encoded(new, index) for index, new in enumerate(tail, start=count)]
    # Normalise as a reader will see it: the adder and the reader of a seed must agree.
    added = [msgspec.json.decode(body, type=Seed) for body in written]
    _check_ids(connection, run, added)
    if added:
        connection.execute(
            seeds.insert(),
            [
                {
                    "run": run,
                    "number": seed.index,
                    "name": seed.id,
                    "origin": origin,
                    "place": index,
                    "body": body,
                    "done": False,
                    "claims": 0,
                }
                for index, (seed, body) in enumerate(zip(added, written, strict=True), start=len(stored))
            ],
        )
    return stored + added


def _stored_seeds(connection: Connection, run: int, origin: str | None = None) -> list[Seed]:
    """Return the seeds of a list, or all of the run."""
    query = select(seeds.c.body).where(seeds.c.run == run).order_by(seeds.c.place)
    if origin is not None:
        query = query.where(seeds.c.origin == origin)
    return [msgspec.json.decode(body, type=Seed) for body in connection.scalars(query)]


def _content(seed: Seed | NewSeed) -> bytes:
    return msgspec.json.encode([seed.content, seed.kwargs], order="deterministic")


def _difference(stored: Sequence[Seed], wanted: Sequence[NewSeed], origin: str) -> str:
    """Return the first difference of a list from the known one and the remedy; empty if it continues the known one."""
    fix = "go back to the old list (more may follow at its end), or choose another run_name"
    if len(wanted) < len(stored):
        return f"seeds ({origin}): {len(stored)} were there, now {len(wanted)} are; {fix}"
    for index, (old, new) in enumerate(zip(stored, wanted, strict=False), start=1):
        # Compare the encoded form: decoding turns a tuple into a list.
        kwargs = msgspec.json.decode(msgspec.json.encode(new.kwargs))
        if (old.content, old.kwargs, old.id) != (new.content, kwargs, _id(new, old.index)):
            return f"seeds ({origin}): number {index} ({old.id}) was another one before; {fix}"
    return ""


def _check_ids(connection: Connection, run: int, added: Sequence[Seed]) -> None:
    seen: set[str] = set()
    if added:
        seen.update(connection.scalars(select(seeds.c.name).where(seeds.c.run == run)))
    for seed in added:
        if not seed.id.isprintable() or not seed.id.strip():
            raise ConfigurationError(
                f"seeds: the id {seed.id!r} can't be used; write one line of visible signs"
            )
        if seed.id in seen:
            raise ConfigurationError(f"seeds: two have the id {seed.id!r}; give each its own")
        seen.add(seed.id)


def _id(new: NewSeed, index: int) -> str:
    return f"seed_{index + 1:03d}" if new.id is None else new.id


def _encoded(new: NewSeed, index: int) -> bytes:
    seed = Seed(index=index, id=_id(new, index), content=new.content, kwargs=new.kwargs)
    try:
        return msgspec.json.encode(seed)
    except (TypeError, *DECODE_ERRORS) as error:
        raise ConfigurationError(
            f"seeds: {seed.id} can't be written as JSON ({decode_reason(error)}); mend it"
        ) from error
