"""Screenshots, and the windows on the screen as listed by the window manager."""

import io
from typing import Any

from PIL import Image, ImageGrab
from Xlib import X
from Xlib.display import Display
from Xlib.error import XError


def windows(display: Display) -> list[dict[str, Any]]:
    """Return the windows, topmost last."""
    root = display.screen().root
    order = _property(display, root, "_NET_CLIENT_LIST_STACKING")
    active = _property(display, root, "_NET_ACTIVE_WINDOW")
    focused = active[0] if active else 0
    found: list[dict[str, Any]] = []
    for number in order:
        try:
            found.append(_described(display, number, focused=number == focused))
        except XError:
            continue  # closed meanwhile
    return found


def _described(display: Display, number: int, *, focused: bool) -> dict[str, Any]:
    window = display.create_resource_object("window", number)
    place = window.get_geometry()
    corner = display.screen().root.translate_coords(window, 0, 0)
    named = window.get_wm_class()
    return {
        "title": _title(display, window),
        "application": named[1] if named else "",
        "x": -corner.x if corner.x > 0x7FFF else corner.x,
        "y": corner.y,
        "width": place.width,
        "height": place.height,
        "focused": focused,
    }


def _title(display: Display, window: Any) -> str:  # noqa: ANN401  # the library has no type for it
    for name in ("_NET_WM_NAME", "WM_NAME"):
        value = _property(display, window, name)
        if value:
            return bytes(value).decode("utf-8", "replace") if not isinstance(value, str) else value
    return ""


def _property(display: Display, window: Any, name: str) -> Any:  # noqa: ANN401  # of any type
    found = window.get_full_property(display.intern_atom(name), X.AnyPropertyType)
    return found.value if found is not None else ()


class ScreenshotSource:
    """Screenshot source; an unchanged screen is not compressed again."""

    def __init__(self, display: str) -> None:
        self._display = display
        self._pixels = b""
        self._png = b""
        self._size = (0, 0)

    def take(self) -> tuple[bytes, tuple[int, int]]:
        """Return the screen as PNG, and its size."""
        image: Image.Image = ImageGrab.grab(xdisplay=self._display)
        pixels = image.tobytes()
        if pixels != self._pixels:
            packed = io.BytesIO()
            # Speed matters more than size: level 6 takes five times as long.
            image.save(packed, "PNG", compress_level=1)
            self._pixels, self._png, self._size = pixels, packed.getvalue(), image.size
        return self._png, self._size
