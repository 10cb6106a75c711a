"""Prompts of model calls, in the blob store of a run.

Each message is a blob that refers to the message before it, so a prompt that extends another one adds only its new
messages. A reply has the hash of the last message of its prompt.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentflow.errors import ModelFailure
from agentflow.journal import Run
from agentflow.models import (
    Call,
    Completion,
    ImagePart,
    Message,
    Model,
    ModelWrapper,
    Part,
    TextPart,
    ToolReply,
)
from agentflow.trace import Blob

T = TypeVar("T")

_REMEMBERED: Final = 8_192
_MAX_PROMPT: Final = 64 << 20


class StoredMessage(Struct, frozen=True):
    """A message of a prompt as it is stored."""

    before: str
    """Hash of the message before it; empty: it is the first."""
    message: Message
    """The message; the data of an image is the hash of its blob."""


class PromptStore:
    """Stores prompts of a run. Messages that were stored lately are not written again."""

    def __init__(self, run: Run) -> None:
        """Store nothing yet."""
        self._run = run
        self._known: dict[str, None] = {}

    def add(self, messages: Sequence[Message]) -> str:
        """Store the messages that are new with the next entry of the journal, and return the hash of the last message."""
        hash = ""
        images: dict[str, bytes] = {}
        texts: dict[str, bytes] = {}
        for message in messages:
            text = msgspec.json.encode(StoredMessage(hash, _without_images(message, images)))
            hash = sha256(text).hexdigest()
            if hash not in self._known:
                texts[hash] = text
        if texts:
            self._run.attach_blobs(images, json=False)
            self._run.attach_blobs(texts, json=True)
            self._known |= dict.fromkeys(texts)
            while len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]
        return hash


def _without_images(message: Message, blobs: dict[str, bytes]) -> Message:
    """Replace the data of images by their hashes, and add the data to the blobs."""
    if all(isinstance(part, TextPart) for part in message.parts):
        return message
    return replace(message, parts=tuple(_stored(part, blobs) for part in message.parts))


def _stored(part: Part, blobs: dict[str, bytes]) -> Part:
    # A function inside `_without_images` that calls itself would keep all images until the next collection of cycles.
    if isinstance(part, ImagePart):
        hash = Blob.of(part.data, part.mime).hash
        blobs[hash] = part.data
        return ImagePart(hash.encode(), part.mime)
    if isinstance(part, ToolReply):
        return replace(part, parts=tuple(_stored(one, blobs) for one in part.parts))
    return part


class PromptStoringModel(ModelWrapper):
    """Model whose prompts are stored with its answers."""

    def __init__(self, model: Model, prompts: PromptStore) -> None:
        super().__init__(model)
        self._prompts = prompts

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer one call."""
        prompt = self._prompts.add(call.messages)
        try:
            completion = await self._model.complete(call)
        except ModelFailure as failure:
            failure.prompt = prompt
            raise
        return replace(completion, prompt=prompt)


def read_prompt(read: Callable[[str], bytes], hash: str) -> list[Message]:
    """Return the messages of a stored prompt; the data of an image is the hash of its blob.

    See docs/journal.md.

    :param read: returns the JSON with a hash (`JournalReader.json`).
    :param hash: hash of the last message.
    :raises KeyError: if a message is missing.
    :raises ValueError: if one is damaged.
    """
    messages: dict[str, Message] = {}
    left = _MAX_PROMPT
    while hash:
        text = read(hash)
        left -= len(text)
        # The journal may come from elsewhere.
        if hash in messages or left < 0:
            raise ValueError(f"a message follows itself, or all have more than {_MAX_PROMPT:,} bytes")
        stored = msgspec.json.decode(text, type=StoredMessage)
        messages[hash] = stored.message
        hash = stored.before
    return list(messages.values())[::-1]
