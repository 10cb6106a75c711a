"""Desktop runtime: an X server with a window manager inside an instance, with a machine's interface. See docs/machines.md."""

from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports
from runtimes.desktop._options import BUS, DISPLAY, DesktopOptions

if TYPE_CHECKING:
    from runtimes.desktop._desktop import Desktop, DesktopRuntime, open_desktop

__all__ = ["BUS", "DISPLAY", "Desktop", "DesktopOptions", "DesktopRuntime", "open_desktop"]


# Settings need only the options; everything else is imported when a desktop is opened.
__getattr__ = lazy_exports(__name__, {"._desktop": ["Desktop", "DesktopRuntime", "open_desktop"]})
