"""Desktops: an X server with a window manager inside a process instance. To its users one looks like a machine."""

from typing import TYPE_CHECKING

from runtimes.desktop._options import BUS, DISPLAY, DesktopOptions

if TYPE_CHECKING:
    from runtimes.desktop._desktop import Desktop, open_desktop
    from runtimes.desktop._parts import missing
    from runtimes.desktop._runtime import DesktopRuntime

__all__ = ["BUS", "DISPLAY", "Desktop", "DesktopOptions", "DesktopRuntime", "missing", "open_desktop"]

_HOMES = {
    "Desktop": "_desktop",
    "DesktopRuntime": "_runtime",
    "missing": "_parts",
    "open_desktop": "_desktop",
}


def __getattr__(name: str) -> object:
    # What settings need is light; the rest is loaded by who opens a desktop.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
