"""Files of the page, the images that it may show, and the paths that it asks for."""

from importlib.resources import files
from typing import Final
from urllib.parse import quote

RASTER: Final = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
"""Types of images that a page may show, with the endings of their files. SVG is none of them: it can hold scripts."""
_UNESCAPED: Final = "!'()*-._~"
INDEX: Final = "index.html"
"""Name of the page among its files."""
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


def static_files() -> dict[str, tuple[bytes, str]]:
    """Return the files of the page with their MIME types, by name."""
    found: dict[str, tuple[bytes, str]] = {}
    for file in sorted(files("agentflow.dashboard").joinpath("static").iterdir(), key=lambda file: file.name):
        mime = _TYPES.get("." + file.name.rpartition(".")[2])
        if mime is not None:
            found[file.name] = (file.read_bytes(), mime)
    return found


def api_path(*parts: str, **query: str) -> str:
    """Return the path of an answer, as the page spells it: parameters without a value are left out.

    >>> api_path("r", "r1", "s", "a b", "node", spot="0-1")
    'r/r1/s/a%20b/node?spot=0-1'
    """
    path = "/".join(quote(part, safe=_UNESCAPED) for part in parts)
    text = "&".join(f"{name}={quote(value, safe=_UNESCAPED)}" for name, value in query.items() if value)
    return f"{path}{'?' if text else ''}{text}"
