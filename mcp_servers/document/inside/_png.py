"""Pictures as PNG, quickly."""

import io
from typing import Any, TypeAlias

__all__ = ["png_of"]

Foreign: TypeAlias = Any


def png_of(image: Foreign) -> bytes:
    """A picture in red, green and blue as PNG; in grey where it has no colour: a third of the work and of the bytes."""
    first, *others = image.split()
    level = first.tobytes()
    if all(band.tobytes() == level for band in others):
        image = first
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=1)
    return out.getvalue()
