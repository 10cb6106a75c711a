"""Regions of images: cut out, and covered. Needs Pillow, of the extra `document`."""

import io
from importlib import import_module
from math import ceil
from typing import TYPE_CHECKING, Final

import anyio
from msgspec import Struct

from agentflow.errors import ConfigurationError
from agentflow.extras import missing_extra
from agentflow.trace import Region

if TYPE_CHECKING:
    from PIL import Image

MARGIN: Final = 0.01
"""Share of the image's width and height by which a region is enlarged: models place edges roughly."""
LARGEST: Final = 0.6
"""Largest share of an image that a region may cover."""
_FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP")
_MAX_PIXELS: Final = 50_000_000
_COVER: Final = (127, 127, 127)


class RegionViews(Struct, frozen=True):
    """A region alone, and its image without it, as PNG."""

    crop: bytes
    """The region."""
    masked: bytes
    """The image with the region covered in grey."""


def check_images() -> None:
    """Check that images can be read.

    See docs/tasks.md.

    :raises ConfigurationError: one line with the command that adds the library.
    """
    try:
        import_module("PIL.Image")
    except ImportError:
        raise ConfigurationError(f"tasks: {missing_extra('document', 'document')}") from None


async def views_of(data: bytes, region: Region) -> RegionViews | None:
    """Return the views of a region; `None` if the image can't be read, or the region covers most of it.

    Example::

        views = await views_of(png, Region(1, 0.1, 0.2, 0.5, 0.4))
    """
    if (region.right - region.left) * (region.bottom - region.top) > LARGEST:
        return None
    return await anyio.to_thread.run_sync(_views, data, region)


def _views(data: bytes, region: Region) -> RegionViews | None:
    from PIL import Image  # of an extra

    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
        if image.width * image.height > _MAX_PIXELS:
            return None
        page = image.convert("RGB")
    except Exception:  # boundary: the bytes come from a tool, and Pillow raises many kinds of errors
        return None
    box = (
        max(0, int((region.left - MARGIN) * page.width)),
        max(0, int((region.top - MARGIN) * page.height)),
        min(page.width, ceil((region.right + MARGIN) * page.width)),
        min(page.height, ceil((region.bottom + MARGIN) * page.height)),
    )
    crop = page.crop(box)
    page.paste(_COVER, box)
    return RegionViews(_png(crop), _png(page))


def _png(image: "Image.Image") -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=1)
    return out.getvalue()
