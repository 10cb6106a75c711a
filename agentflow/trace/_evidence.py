"""Documents that a task needs, and the parts of documents that the result of a turn shows."""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from agentflow.text import TextWindow, placed_windows
from agentflow.trace._node import Observation, SourceSpan
from agentflow.trace._task import Task

_Name = Annotated[str, Meta(min_length=1)]


class NeededDocument(Struct, frozen=True):
    """Document without which a task can't be answered."""

    id: _Name
    """Name by which the tools know it: an id, an address or a path."""
    copies: tuple[_Name, ...] = ()
    """Other documents with the same text."""
    computed: bool = False
    """It is the result of a call, such as a query, and no document."""


def needed_documents(task: Task, *, strict: bool = False) -> tuple[NeededDocument, ...]:
    """Return the documents that a task needs: its field `documents`, as pairs of a synthesis have it, or a list of ids.

    Results of calls are left out: another call may show the same. See docs/training.md.

    :param strict: refuse a field of another form; otherwise it names no document.
    :raises ValueError: if it is refused.
    """
    value = task.metadata.get("documents")
    try:
        entries = msgspec.convert([] if value is None else value, list[_Name | NeededDocument])
    except msgspec.ValidationError as error:
        if strict:
            raise ValueError(f"documents: {error}; list ids, or objects with an id") from None
        return ()
    named = [NeededDocument(entry) if isinstance(entry, str) else entry for entry in entries]
    return tuple({document.id: document for document in named if not document.computed}.values())


def shown_sources(observation: Observation, result: str) -> tuple[SourceSpan, ...]:
    """Return the parts of documents in a result as it is shown, whole or in windows; `start` and `end` are places in it.

    See docs/training.md.
    """
    return tuple(_shown(observation, result)) if observation.sources else ()


def _shown(observation: Observation, result: str) -> Iterator[SourceSpan]:
    text = observation.text
    begin = result.find(text)
    placed = [(TextWindow(0, len(text)), begin)] if begin >= 0 else list(placed_windows(text, result))
    for source in observation.sources:
        for window, position in placed:
            start, end = max(source.start, window.start), min(source.end, window.end)
            if text[start:end].strip():
                moved = position - window.start
                offset = source.offset + start - source.start if source.offset >= 0 else -1
                yield replace(source, start=start + moved, end=end + moved, offset=offset)
