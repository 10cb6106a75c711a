"""Images for requests, and the forms that each API gives them."""

import base64
import io
import struct
import zlib
from typing import Any

from PIL import Image

MIMES = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp"}


def image(format: str = "PNG", size: tuple[int, int] = (3, 2), shade: int = 0) -> bytes:
    """Return an image of one colour."""
    out = io.BytesIO()
    Image.new("RGB", size, (shade, 0, 0)).save(out, format)
    return out.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """Return a part of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def forged_png(*sizes: tuple[int, int], before: bytes = b"") -> bytes:
    """Return a PNG whose header states these sizes."""
    headers = (png_chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0)) for size in sizes)
    return b"\x89PNG\r\n\x1a\n" + b"".join(headers) + before + png_chunk(b"IDAT", zlib.compress(bytes(10)))


def data_url(data: bytes, mime: str = "image/png") -> str:
    """Return an image as an address."""
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def chat_image(url: str) -> dict[str, Any]:
    """Return an image as chat completions have it."""
    return {"type": "image_url", "image_url": {"url": url, "detail": "high"}}


def responses_image(url: str) -> dict[str, Any]:
    """Return an image as responses have it."""
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def messages_image(url: str) -> dict[str, Any]:
    """Return an image as messages have it."""
    head, comma, data = url.partition(";base64,")
    if not comma:
        return {"type": "image", "source": {"type": "url", "url": url}}
    source = {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}
    return {"type": "image", "source": source}
