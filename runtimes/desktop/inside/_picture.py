"""Pictures of the screen."""

import io

from PIL import Image, ImageGrab

__all__ = ["Picture"]


class Picture:
    """Takes pictures; a screen that has not changed is not packed again."""

    def __init__(self, display: str) -> None:
        self._display = display
        self._pixels = b""
        self._png = b""
        self._size = (0, 0)

    def take(self) -> tuple[bytes, tuple[int, int]]:
        """The screen as PNG, and its size."""
        image: Image.Image = ImageGrab.grab(xdisplay=self._display)
        pixels = image.tobytes()
        if pixels != self._pixels:
            packed = io.BytesIO()
            # Speed counts more than size here: level 6 takes five times as long.
            image.save(packed, "PNG", compress_level=1)
            self._pixels, self._png, self._size = pixels, packed.getvalue(), image.size
        return self._png, self._size
