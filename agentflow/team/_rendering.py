"""Pieces from which messages are made."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from agentflow.models import ImagePart, Message, TextPart
from agentflow.text import PromptFiles
from agentflow.trace import Action, Blob, ToolCard, Turn

Images = Mapping[str, bytes]
"""Bytes of the images that the model can see, by hash."""

_PROMPTS = PromptFiles(Path(__file__).parent / "prompts")
prompt = _PROMPTS.fill
_JSON = msgspec.json.Encoder()
_MARK = re.compile(
    r"<(?=/?(?:observation|question|seed|claim|document|tables|environment|solution|result|instruction)\b)",
    re.IGNORECASE,
)


def prompt_versions() -> Mapping[str, str]:
    """Return the version of each prompt. Answers to different versions are not comparable.

    Example::

        assert prompt_versions()["planner_next_step"] == "v3"
    """
    return _PROMPTS.versions


def cut(text: str, limit: int) -> str:
    """Cut a long text in the middle, and state how much was left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def escape_marks(text: str) -> str:
    """Escape tags that would end the text's own block."""
    return _MARK.sub("< ", text) if "<" in text else text


def observation_block(
    number: int, text: str, blobs: tuple[Blob, ...], images: Images, places: Sequence[str] = ()
) -> str:
    """Return an observation between its tags, and the place of its images; those that the model cannot see are counted.

    :param places: hashes of all images of the message, in order; without them, those of the observation follow it.
    """
    text = escape_marks(text)
    unseen = sum(blob.hash not in images for blob in blobs)
    if unseen:
        text = f"{text}\n({unseen} image{'s' if unseen > 1 else ''} that cannot be shown here)".strip()
    label = image_label(f"observation {number}", [blob.hash for blob in blobs if blob.hash in images], places)
    return f'<observation number="{number}">\n{text}\n</observation>{label}'


def image_label(owner: str, hashes: Sequence[str], places: Sequence[str] = ()) -> str:
    """Return a line with the place of images; empty without any.

    :param owner: thing that the images belong to.
    :param places: hashes of all images of the message, in order; without them, the images follow.
    """
    own = dict.fromkeys(hashes)
    if not own:
        return ""
    noun = "Image" if len(own) == 1 else "Images"
    if not places:
        return f"\n({noun} of {owner}:)"
    numbers = ", ".join(str(places.index(hash) + 1) for hash in own)
    return f"\n({noun} of {owner}: {numbers} of the images below)"


def episode_images(images: Iterable[Blob], turns: Iterable[Turn]) -> tuple[Blob, ...]:
    """Return the images of a task and of its turns."""
    return (*images, *(blob for turn in turns for blob in turn.images))


def image_parts(blobs: Iterable[Blob], images: Images) -> list[ImagePart]:
    """Return each visible image once."""
    seen = {blob.hash: blob for blob in blobs if blob.hash in images}
    return [ImagePart(images[hash], blob.mime) for hash, blob in seen.items()]


def describe_tools(tools: Iterable[ToolCard]) -> str:
    """Describe tools with their arguments and notes."""
    return _describe_tools(msgspec.json.encode(tuple(tools)))


@lru_cache(maxsize=64)
def _describe_tools(tools: bytes) -> str:
    """Describe encoded tools. Cached by content: a run uses the same few sets of tools throughout."""
    return "\n\n".join(map(_describe_tool, msgspec.json.decode(tools, type=tuple[ToolCard, ...])))


def _describe_tool(card: ToolCard) -> str:
    text = f"## {card.name}\n\n{card.description}\n\nArguments: {json_text(card.schema)}"
    return f"{text}{card_notes(card)}"


def card_notes(card: ToolCard) -> str:
    """Describe a tool's limits, recommended use and examples; empty if it declares none."""
    examples = tuple(map(json_text, card.examples))
    notes = (("Limits", card.limits), ("Best", card.practices), ("Examples", examples))
    return "".join(f"\n\n{title}:\n{bullets(each)}" for title, each in notes if each)


def call_line(action: Action) -> str:
    """Return a tool call in one line."""
    return f"{action.tool} {json_text(action.arguments)}"


def bullets(lines: Iterable[str]) -> str:
    """Return lines as a bulleted list."""
    return "\n".join(f"- {line}" for line in lines)


def json_text(value: object) -> str:
    """Encode a value as JSON text."""
    return _JSON.encode(value).decode()


def system(text: str) -> Message:
    """Return a system message."""
    return Message("system", (TextPart(text),))


def user(text: str, images: Iterable[ImagePart] = ()) -> Message:
    """Return a user message."""
    return Message("user", (TextPart(text), *images))
