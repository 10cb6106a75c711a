"""What runs inside an instance beside the X server: it looks, points and types for who is outside.

Inside, these modules are loaded from code that came through a pipe. They use the standard library, python-xlib, Pillow and
jeepney, and nothing else of this project.
"""

__all__: list[str] = []
