"""Pieces of which messages are made."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from agentflow.models import Image, Message, Text
from agentflow.models import Part as MessagePart
from agentflow.trajectory import Action, Blob, ToolCard

__all__ = [
    "LONGEST_OBSERVATION",
    "Pictures",
    "called",
    "card_notes",
    "cut",
    "listed",
    "marked",
    "pictured",
    "quoted",
    "system",
    "told",
    "tool_cards",
    "user",
    "written",
]

Pictures = Mapping[str, bytes]
"""Pictures by their hashes, as far as the model sees them."""

LONGEST_OBSERVATION = 6_000
"""Characters of an observation that are shown; from longer ones the middle is left out."""

_JSON = msgspec.json.Encoder()
_MARK = re.compile(r"<(?=/?(?:observation|question|seed)\b)", re.IGNORECASE)


def cut(text: str, longest: int = LONGEST_OBSERVATION) -> str:
    """The text, without its middle where it is too long."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def quoted(text: str) -> str:
    """The text, without what would look like the end of its own block."""
    return _MARK.sub("< ", text) if "<" in text else text


def marked(number: int, text: str, images: tuple[Blob, ...], pictures: Pictures) -> str:
    """What came back, between the marks of data; pictures that are not shown are counted."""
    text = quoted(text)
    unseen = sum(blob.hash not in pictures for blob in images)
    if unseen:
        text = f"{text}\n({unseen} picture{'s' if unseen > 1 else ''} that can't be shown here)".strip()
    return f'<observation number="{number}">\n{text}\n</observation>'


def pictured(images: Iterable[Blob], pictures: Pictures) -> list[MessagePart]:
    """The pictures themselves, each once, as far as they are seen."""
    blobs = {blob.hash: blob for blob in images if blob.hash in pictures}
    return [Image(pictures[hash], blob.mime) for hash, blob in blobs.items()]


def told(tools: Iterable[ToolCard]) -> str:
    """The tools as text."""
    return tool_cards(msgspec.json.encode(tuple(tools)))


@lru_cache(maxsize=64)
def tool_cards(tools: bytes) -> str:
    """The tools as text. Kept by content: a run asks with the same few sets of tools all the time."""
    return "\n\n".join(map(_card, msgspec.json.decode(tools, type=tuple[ToolCard, ...])))


def _card(card: ToolCard) -> str:
    said = f"## {card.name}\n\n{card.description}\n\nArguments: {written(card.schema)}"
    return f"{said}{card_notes(card)}"


def card_notes(card: ToolCard) -> str:
    """What a tool can't do, how it is best used, and good calls; empty where nothing is said of that."""
    examples = tuple(map(written, card.examples))
    notes = (("Limits", card.limits), ("Best", card.practices), ("Examples", examples))
    return "".join(f"\n\n{title}:\n{listed(each)}" for title, each in notes if each)


def called(action: Action) -> str:
    """A call in one line."""
    return f"{action.tool} {written(action.arguments)}"


def listed(lines: Iterable[str]) -> str:
    """Lines as a list."""
    return "\n".join(f"- {line}" for line in lines)


def written(value: object) -> str:
    """The value as JSON."""
    return _JSON.encode(value).decode()


def system(text: str) -> Message:
    """What stands over everything."""
    return Message("system", (Text(text),))


def user(text: str) -> Message:
    """What is asked."""
    return Message("user", (Text(text),))
