"""Driver of a desktop, inside the instance: screenshots, pointer, keyboard.

The modules are loaded from compiled code that arrives through a pipe. They use the standard library, python-xlib,
Pillow, jeepney and `runtimes._framing`.
"""

__all__: list[str] = []
