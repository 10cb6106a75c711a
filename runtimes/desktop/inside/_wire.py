"""Frames between a desktop's driver and the server: a JSON object, and bytes beside it."""

import json
from typing import Any, cast

__all__ = ["HEAD", "LARGEST", "Message", "pack", "sizes", "unpack"]

Message = dict[str, Any]
"""One request or answer."""

HEAD = 8
"""Bytes that tell the sizes of what follows."""

LARGEST = 256 * 1024 * 1024
"""No frame is larger."""


def pack(message: Message, data: bytes = b"") -> bytes:
    """A frame."""
    text = json.dumps(message).encode()
    return len(text).to_bytes(4, "big") + len(data).to_bytes(4, "big") + text + data


def sizes(head: bytes) -> tuple[int, int]:
    """The sizes of the object and of the bytes.

    :raises ValueError: if no frame begins so.
    """
    text, data = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:HEAD], "big")
    if text + data > LARGEST:
        raise ValueError(f"a frame of {text + data} bytes")
    return text, data


def unpack(text: bytes) -> Message:
    """The object.

    :raises ValueError: if it is none.
    """
    message = json.loads(text)
    if not isinstance(message, dict):
        raise ValueError("no object")
    return cast("Message", message)
