"""Desktops: an X server with a window manager inside a process instance. To its users one looks like a machine."""

from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports
from runtimes.desktop._options import BUS, DISPLAY, DesktopOptions

if TYPE_CHECKING:
    from runtimes.desktop._desktop import Desktop, open_desktop
    from runtimes.desktop._parts import missing
    from runtimes.desktop._runtime import DesktopRuntime

__all__ = ["BUS", "DISPLAY", "Desktop", "DesktopOptions", "DesktopRuntime", "missing", "open_desktop"]


# Settings need only the options; the rest loads when a desktop is opened.
__getattr__ = lazy_exports(
    __name__,
    {
        "._desktop": ["Desktop", "open_desktop"],
        "._parts": ["missing"],
        "._runtime": ["DesktopRuntime"],
    },
)
