"""Messages between the driver and the host: a line of JSON followed by raw bytes, in one frame."""

from typing import Any

from runtimes._framing import JsonLimits, pack_message, unpack_message

Message = dict[str, Any]
"""Request or answer."""

MAX_MESSAGE = 64 * 1024 * 1024
"""Largest frame in bytes."""
_LIMITS = JsonLimits(max_bytes=1024 * 1024, max_values=50_000)


def pack(message: Message, data: bytes = b"") -> bytes:
    """Return the payload of a message with attached bytes."""
    return pack_message(message, data)


def unpack(payload: bytes) -> tuple[Message, bytes]:
    """Return the message and its attached bytes.

    :raises ValueError: if the payload holds no message.
    """
    message, data = unpack_message(payload, _LIMITS)
    return message, bytes(data)
