"""What a desktop is to be, and where its applications find it."""

from dataclasses import dataclass

__all__ = ["BUS", "DISPLAY", "DesktopOptions"]

DISPLAY = ":0"
"""Every desktop's display: an instance has at most one. A shell in the same instance reaches it by this name."""
BUS = "unix:path=/tmp/.desktop/bus"
"""Where its applications tell of what is in their windows: for `DBUS_SESSION_BUS_ADDRESS`."""

FEWEST, MOST = 64, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DesktopOptions:
    """What a desktop is to be."""

    width: int = 1280
    """Pixels from left to right."""
    height: int = 800
    """Pixels from top to bottom."""
    dpi: int = 96
    """How large letters are."""
    accessibility: bool = True
    """Applications can tell what is in their windows."""

    def __post_init__(self) -> None:
        """Refuse what no X server makes.

        :raises ValueError: naming the size.
        """
        if not (FEWEST <= self.width <= MOST and FEWEST <= self.height <= MOST):
            size = f"{self.width}x{self.height}"
            raise ValueError(f"no screen can be {size}: each side takes {FEWEST} to {MOST} pixels")
        if not 24 <= self.dpi <= 480:
            raise ValueError(f"no screen can have {self.dpi} dots per inch: take 24 to 480")
