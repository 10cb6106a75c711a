"""Images as documents and in documents: PNG conversion, and OCR by tesseract where it is installed."""

import io
import shutil
import subprocess
from typing import Final

from mcp_servers.document.inside._draft import DocumentWriter, UnreadableDocument, Untyped

SECONDS = 60
FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP")
MAX_PIXELS = 100_000_000
MAX_FRAMES = 500
MAX_SIDE = 2048


def png_of(image: Untyped) -> bytes:
    """Encode an RGB image as PNG; in grey if it has no colour, which takes a third of the time and space."""
    first, *others = image.split()
    level = first.tobytes()
    if all(band.tobytes() == level for band in others):
        image = first
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=1)
    return out.getvalue()


class Ocr:
    """OCR program."""

    def __init__(self, program: str, languages: str) -> None:
        self._program = program
        self._languages = languages
        self._executable = shutil.which(program)

    @property
    def there(self) -> bool:
        """The program is installed."""
        return self._executable is not None

    @property
    def missing(self) -> str:
        """Message that names what to install."""
        return f"Install {self._program} to read them (Debian, Ubuntu: tesseract-ocr)."

    def text(self, picture: Untyped) -> str:
        """Return the text in a picture.

        :raises Unreadable: if the program fails.
        """
        assert self._executable is not None
        command = [self._executable, "-", "-", "-l", self._languages]
        png = png_of(picture.convert("RGB"))
        done = subprocess.run(command, input=png, capture_output=True, timeout=SECONDS, check=False)
        if done.returncode:
            reply = " ".join(done.stderr.decode("utf-8", "replace").split())[-200:]
            raise UnreadableDocument("failed", f"{self._program} failed: {reply}")
        return done.stdout.decode("utf-8", "replace").replace("\f", "")


class ImageDocument:
    """An image file as a document; each frame is a page."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._data = file.read()
        self._image = _opened(self._data)
        self._frames = min(int(getattr(self._image, "n_frames", 1)), MAX_FRAMES)

    def draft(self, ocr: Ocr) -> DocumentWriter:
        """Return its text, by OCR."""
        draft = DocumentWriter("picture")
        for number in range(self._frames):
            draft.page()
            text = ocr.text(self._frame(number + 1)) if ocr.there else ""
            draft.write(text.strip() + "\n\n")
        if not ocr.there:
            draft.note(f"The text in pictures was not read. {ocr.missing}")
        return draft

    def image(self, number: int) -> tuple[bytes, int, int, int]:
        """Return a frame as PNG, its width and height, and 0 as its resolution."""
        if not 1 <= number <= self._frames:
            raise UnreadableDocument("not_found", f"it has no page {number}, only {self._frames}")
        return (*_thumbnail(self._frame(number)), 0)

    def _frame(self, number: int) -> Untyped:
        try:
            self._image.seek(number - 1)
            return self._image.convert("RGB")
        except (OSError, ValueError, SyntaxError, EOFError):
            raise UnreadableDocument("failed", "the picture is damaged") from None


def as_png(data: bytes) -> tuple[bytes, int, int]:
    """Convert a picture to PNG of at most 2048 pixels per side; return it with its width and height."""
    try:
        return _thumbnail(_opened(data).convert("RGB"))
    except (OSError, ValueError, SyntaxError, EOFError):
        raise UnreadableDocument("failed", "the picture is damaged") from None


def _opened(data: bytes) -> Untyped:
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError:
        raise UnreadableDocument("file_too_large", f"the picture has more than {MAX_PIXELS} pixels") from None
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        raise UnreadableDocument("failed", "the picture is damaged or its format is unknown") from None
    if image.width * image.height > MAX_PIXELS:
        raise UnreadableDocument("file_too_large", f"the picture has more than {MAX_PIXELS} pixels")
    return image


def _thumbnail(image: Untyped) -> tuple[bytes, int, int]:
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    return png_of(image), image.width, image.height
