"""Images of messages: their type and size from their headers, before anything decodes their pixels."""

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from agentflow.models import ImagePart, Message, Part, ToolReply

MAX_IMAGES: Final = 100
"""Number of images in a conversation."""
MAX_IMAGE_BYTES: Final = 5 * 2**20
"""Size of an image."""
MAX_IMAGE_PIXELS: Final = 50_000_000
"""Width by height of an image: the engine decodes it to three bytes a pixel, however small its file is."""
MAX_PIXELS: Final = 250_000_000
"""Pixels of all images of a conversation."""
MAX_SEGMENTS: Final = 1_000
"""Segments of a file before the first pixels."""
IMAGE_FORMATS: Final = "PNG, JPEG, WebP or GIF"
"""Names of the supported formats."""

Sizes: TypeAlias = Iterator[tuple[int, int]]
"""Every width and height that the header of a file states. A decoder may use any of them."""


def images_of(messages: Iterable[Message]) -> Iterator[ImagePart]:
    """Yield the images of messages, in order."""
    for message in messages:
        for part in message.parts:
            for content in part.parts if isinstance(part, ToolReply) else (part,):
                if isinstance(content, ImagePart):
                    yield content


def hash_of(image: ImagePart) -> str:
    """Return the hash of an image of a call."""
    return image.data.decode()


def with_bytes(messages: Sequence[Message], data: Mapping[str, bytes]) -> tuple[Message, ...]:
    """Return messages whose images have their bytes, as they are sent to a model."""
    return tuple(
        replace(message, parts=tuple(_with_bytes(part, data) for part in message.parts))
        for message in messages
    )


def _with_bytes(part: Part, data: Mapping[str, bytes]) -> Part:
    # A function inside `with_bytes` that calls itself would keep all images until the next collection of cycles.
    if isinstance(part, ImagePart):
        return ImagePart(data[hash_of(part)], part.mime)
    if isinstance(part, ToolReply):
        return replace(part, parts=tuple(_with_bytes(content, data) for content in part.parts))
    return part


def mime_of_image(data: bytes) -> str:
    """Return the type of an image from its first bytes; empty: none of those that are supported."""
    return next((mime for mime, (begin, _) in _FORMATS.items() if begin.match(data)), "")


def image_size(data: bytes) -> tuple[int, int]:
    """Return the width and height of an image from its header; of several, the largest.

    Libraries that only read headers take the first ones: those of a GIF's screen, although its frame may be larger.

    :raises ValueError: if the header is damaged.
    """
    mime = mime_of_image(data)
    sizes = list[tuple[int, int]]()
    try:
        sizes += _FORMATS[mime][1](data)
    except (KeyError, struct.error, IndexError):
        raise ValueError("its header is damaged") from None
    if not sizes or not all(width and height for width, height in sizes):
        raise ValueError("its header has no size")
    return max(width for width, _ in sizes), max(height for _, height in sizes)


def _png(data: bytes) -> Sizes:
    offset = 8
    for _ in range(MAX_SEGMENTS):
        length, kind = struct.unpack_from(">I4s", data, offset)
        if kind == b"IDAT":
            return
        if kind == b"IHDR":
            yield struct.unpack_from(">II", data, offset + 8)
        offset += length + 12
    raise ValueError("its header is too long")


def _jpeg(data: bytes) -> Sizes:
    offset = 2
    for _ in range(MAX_SEGMENTS):
        mark, kind, length = struct.unpack_from(">BBH", data, offset)
        if mark != 0xFF or kind < 0xC0 or 0xD0 <= kind <= 0xD9:
            raise ValueError("its header is damaged")
        if kind == 0xDA:
            return
        if kind == 0xFF:
            offset += 1
            continue
        if kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, offset + 5)
            yield width, height
        offset += 2 + length
    raise ValueError("its header is too long")


def _gif(data: bytes) -> Sizes:
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    yield width, height
    offset = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    in_extension = False
    for _ in range(MAX_SEGMENTS):
        kind = data[offset]
        if in_extension:
            offset += kind + 1
            in_extension = kind > 0
        elif kind == 0x2C:
            left, top, width, height = struct.unpack_from("<4H", data, offset + 1)
            yield left + width, top + height
            return
        elif kind == 0x21:
            offset += 2
            in_extension = True
        else:
            raise ValueError("its header is damaged")
    raise ValueError("its header is too long")


def _webp(data: bytes) -> Sizes:
    kind = data[12:16]
    if kind == b"VP8X":
        # Decoders refuse frames beyond the canvas.
        packed = int.from_bytes(struct.unpack_from("6s", data, 24)[0], "little")
        yield (packed & 0xFFFFFF) + 1, (packed >> 24) + 1
    elif kind == b"VP8L":
        (packed,) = struct.unpack_from("<I", data, 21)
        yield (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        yield width & 0x3FFF, height & 0x3FFF


_FORMATS: Final[Mapping[str, tuple[re.Pattern[bytes], Callable[[bytes], Sizes]]]] = {
    "image/png": (re.compile(rb"\x89PNG\r\n\x1a\n"), _png),
    "image/jpeg": (re.compile(rb"\xff\xd8\xff"), _jpeg),
    "image/gif": (re.compile(rb"GIF8[79]a"), _gif),
    "image/webp": (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), _webp),
}
IMAGE_TYPES: Final = frozenset(_FORMATS)
"""Media types of the supported formats."""
