"""Text out of pictures, by tesseract where it is installed."""

import shutil
import subprocess
from typing import Any

from mcp_servers.document.inside._draft import Unreadable
from mcp_servers.document.inside._png import png_of

__all__ = ["Ocr"]

SECONDS = 60


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
