"""Options of a desktop, and the addresses that its applications use."""

from dataclasses import dataclass

DISPLAY = ":0"
"""Display of every desktop: an instance has at most one. A shell in the same instance can use it."""
BUS = "unix:path=/tmp/.desktop/bus"
"""Accessibility bus of its applications, for `DBUS_SESSION_BUS_ADDRESS`."""

MIN_SIDE, MAX_SIDE = 64, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DesktopOptions:
    """Options of a desktop."""

    width: int = 1280
    """Width in pixels."""
    height: int = 800
    """Height in pixels."""
    dpi: int = 96
    """Dots per inch: the size of text."""
    accessibility: bool = True
    """Applications provide an accessibility tree."""
    panel: bool = False
    """A panel with the open windows and buttons for a terminal, a file manager, an editor and, if installed, a browser, and a menu."""

    def __post_init__(self) -> None:
        """Check the limits of the X server.

        :raises ValueError: naming the size.
        """
        if not (MIN_SIDE <= self.width <= MAX_SIDE and MIN_SIDE <= self.height <= MAX_SIDE):
            size = f"{self.width}x{self.height}"
            raise ValueError(f"invalid screen size {size}: each side takes {MIN_SIDE} to {MAX_SIDE} pixels")
        if not 24 <= self.dpi <= 480:
            raise ValueError(f"invalid dpi {self.dpi}: take 24 to 480")
