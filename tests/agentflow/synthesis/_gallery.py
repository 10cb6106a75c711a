"""A backend that shows pictures."""

import struct
import zlib
from typing import Annotated

from pydantic import Field

from mcp_servers import Backend, CallContext, Image, tool

__all__ = ["Gallery"]


class Gallery(Backend):
    """Pictures by their numbers."""

    name = "gallery"
    description = "Pictures to look at."

    @tool(read_only=True)
    async def show(
        self, context: CallContext, number: Annotated[int, Field(ge=0, le=255, description="Which.")]
    ) -> str:
        """Show a picture. Use it to see what hangs there."""
        context.show(Image(_png(number)))
        return ""


def _png(shade: int) -> bytes:
    """A picture of one pixel of that shade."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    pixel = zlib.compress(bytes([0, shade]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")
