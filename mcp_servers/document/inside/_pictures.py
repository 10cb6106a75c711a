"""Pictures, as documents and in documents."""

import io
from typing import Any, Final, TypeAlias

from mcp_servers.document.inside._draft import Draft, Unreadable
from mcp_servers.document.inside._ocr import Ocr
from mcp_servers.document.inside._png import png_of

__all__ = ["Picture", "as_png"]

Foreign: TypeAlias = Any

FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP")
MOST_PIXELS = 100_000_000
MOST_FRAMES = 500
LONGEST_SIDE = 2048


class Picture:
    """A picture that is a document; one with several frames has as many pages."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._data = file.read()
        self._image = _opened(self._data)
        self._frames = min(int(getattr(self._image, "n_frames", 1)), MOST_FRAMES)

    def draft(self, ocr: Ocr) -> Draft:
        """The text in it."""
        draft = Draft("picture")
        for number in range(self._frames):
            draft.page()
            text = ocr.text(self._frame(number + 1)) if ocr.there else ""
            draft.write(text.strip() + "\n\n")
        if not ocr.there:
            draft.note(f"The text in pictures is not read. {ocr.missing}")
        return draft

    def image(self, number: int) -> tuple[bytes, int, int, int]:
        """A frame as PNG, its width and height; it has no resolution to speak of."""
        if not 1 <= number <= self._frames:
            raise Unreadable("not_found", f"there is no page {number}: it has {self._frames}")
        return (*_png(self._frame(number)), 0)

    def _frame(self, number: int) -> Foreign:
        try:
            self._image.seek(number - 1)
            return self._image.convert("RGB")
        except (OSError, ValueError, SyntaxError, EOFError):
            raise Unreadable("failed", "the picture is damaged") from None


def as_png(data: bytes) -> tuple[bytes, int, int]:
    """A picture as PNG, no larger than is shown; its width and height."""
    try:
        return _png(_opened(data).convert("RGB"))
    except (OSError, ValueError, SyntaxError, EOFError):
        raise Unreadable("failed", "the picture is damaged") from None


def _opened(data: bytes) -> Foreign:
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError:
        raise Unreadable("file_too_large", f"the picture has more than {MOST_PIXELS} pixels") from None
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        raise Unreadable("failed", "the picture is damaged, or of an unknown format") from None
    if image.width * image.height > MOST_PIXELS:
        raise Unreadable("file_too_large", f"the picture has more than {MOST_PIXELS} pixels")
    return image


def _png(image: Foreign) -> tuple[bytes, int, int]:
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    return png_of(image), image.width, image.height
