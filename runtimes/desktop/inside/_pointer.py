"""The pointer."""

from Xlib import X
from Xlib.display import Display
from Xlib.ext import xtest

__all__ = ["Pointer"]

_BUTTONS = {"left": 1, "middle": 2, "right": 3}
_UP, _DOWN, _LEFT, _RIGHT = 4, 5, 6, 7


class Pointer:
    """The pointer of one display."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def move(self, x: int, y: int) -> None:
        """Put it there."""
        xtest.fake_input(self._display, X.MotionNotify, x=x, y=y)
        self._display.sync()

    def button(self, name: str, *, down: bool) -> None:
        """Press or release a button."""
        xtest.fake_input(self._display, X.ButtonPress if down else X.ButtonRelease, _BUTTONS[name])
        self._display.sync()

    def scroll(self, clicks: int, *, horizontal: bool) -> None:
        """Turn the wheel; up and right are positive."""
        forward, backward = (_RIGHT, _LEFT) if horizontal else (_UP, _DOWN)
        number = forward if clicks > 0 else backward
        for _ in range(abs(clicks)):
            xtest.fake_input(self._display, X.ButtonPress, number)
            xtest.fake_input(self._display, X.ButtonRelease, number)
        self._display.sync()
