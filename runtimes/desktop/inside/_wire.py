"""Messages between the driver and the host: a line of JSON followed by raw bytes, in one frame."""

import json
from typing import Any

from runtimes._framing import decode_object

Message = dict[str, Any]
"""Request or answer."""

LARGEST = 256 * 1024 * 1024
"""Largest frame in bytes."""


def pack(message: Message, data: bytes = b"") -> bytes:
    """Return the payload of a message with attached bytes."""
    return json.dumps(message).encode() + b"\n" + data


def unpack(payload: bytes) -> tuple[Message, bytes]:
    """Return the message and its attached bytes.

    :raises ValueError: if the payload holds no message.
    """
    text, _, data = payload.partition(b"\n")
    return decode_object(text), data
