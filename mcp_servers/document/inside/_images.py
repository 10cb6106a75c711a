"""Images as documents and in documents: PNG conversion, and OCR by tesseract where it is installed."""

import io
import shutil
import subprocess
from typing import Any, Final, TypeAlias

from mcp_servers.document.inside._draft import Draft, Unreadable

__all__ = ["Ocr", "Picture", "as_png", "png_of"]

Foreign: TypeAlias = Any
SECONDS = 60
FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP")
MOST_PIXELS = 100_000_000
MOST_FRAMES = 500
LONGEST_SIDE = 2048


def png_of(image: Foreign) -> bytes:
    """A picture in red, green and blue as PNG; in grey where it has no colour: a third of the work and of the bytes."""
    first, *others = image.split()
    level = first.tobytes()
    if all(band.tobytes() == level for band in others):
        image = first
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=1)
    return out.getvalue()


class Ocr:
    """A program that reads pictures."""

    def __init__(self, program: str, languages: str) -> None:
        self._program = program
        self._languages = languages
        self._place = shutil.which(program)

    @property
    def there(self) -> bool:
        """It is installed."""
        return self._place is not None

    @property
    def missing(self) -> str:
        """What to install."""
        return f"To read them, {self._program} is needed: install it (Debian, Ubuntu: tesseract-ocr)."

    def text(self, picture: Any) -> str:  # noqa: ANN401 - a picture of Pillow, which is imported late
        """The text in a picture.

        :raises Unreadable: if the program fails.
        """
        assert self._place is not None
        command = [self._place, "-", "-", "-l", self._languages]
        png = png_of(picture.convert("RGB"))
        done = subprocess.run(command, input=png, capture_output=True, timeout=SECONDS, check=False)
        if done.returncode:
            said = " ".join(done.stderr.decode("utf-8", "replace").split())[-200:]
            raise Unreadable("failed", f"{self._program} failed: {said}")
        return done.stdout.decode("utf-8", "replace").replace("\f", "")


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
        return (*_thumbnail(self._frame(number)), 0)

    def _frame(self, number: int) -> Foreign:
        try:
            self._image.seek(number - 1)
            return self._image.convert("RGB")
        except (OSError, ValueError, SyntaxError, EOFError):
            raise Unreadable("failed", "the picture is damaged") from None


def as_png(data: bytes) -> tuple[bytes, int, int]:
    """A picture as PNG, no larger than is shown; its width and height."""
    try:
        return _thumbnail(_opened(data).convert("RGB"))
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


def _thumbnail(image: Foreign) -> tuple[bytes, int, int]:
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    return png_of(image), image.width, image.height
