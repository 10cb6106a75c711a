"""Rich output of a run: plots, tables and rich representations. Runs inside a session.

Heavy libraries are only looked up in `sys.modules`: objects of a library exist only if user code has imported it.
"""

import binascii
import json
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from io import BytesIO
from types import ModuleType
from typing import TypeGuard, TypeVar

from runtimes.process.inside._tables import TABLE_MIME, Foreign, is_mapping, table_of

T = TypeVar("T")

MIB = 1024 * 1024
COUNT = 64
BYTES = 24 * MIB
MIME_LENGTH = 100

# From the richest to the plainest form; an object is shown once, in its richest.
_METHODS = (
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_latex_", "text/latex"),
)

# User code may replace the attributes of the json module.
_to_json = json.JSONEncoder(allow_nan=False).encode


class Displays:
    """Collect the rich output of runs."""

    def __init__(self) -> None:
        self._shown: list[tuple[str, bytes]] = []
        self._bytes = 0
        self._drawn: list[object] = []
        _on_pyplot(self._take_over_show)

    def add(self, mime: str, data: bytes) -> None:
        """Show data of a MIME type, up to 64 items and 24 MiB per run."""
        if len(self._shown) >= COUNT:
            return
        if self._bytes + len(data) > BYTES:
            mime, data = "text/plain", f"({mime} of {len(data)} bytes left out: too much to show)".encode()
        self._bytes += len(data)
        self._shown.append((mime[:MIME_LENGTH], data))

    def add_json(self, mime: str, value: object) -> None:
        """Show structured data as JSON."""
        self.add(mime, _to_json(value).encode())

    def display(self, *values: object, **options: object) -> None:
        """Show values in their richest form; notebook options are accepted and ignored."""
        for value in values:
            if not self.show(value):
                self.add("text/plain", repr(value).encode("utf-8", "backslashreplace"))

    def show(self, value: object) -> bool:
        """Show a value in its richest form; return `False` if it has none."""
        table = _attempt(lambda: table_of(value))
        if table is not None:
            self.add_json(TABLE_MIME, table)
            return True
        if _is_figure(value):
            self._draw(value)
            return True
        bundle = _rich(value)
        for mime, data in bundle.items():
            self.add(mime, data)
        return bool(bundle)

    def show_figures(self) -> None:
        """Show every open figure not yet shown, and close all figures."""
        pyplot: Foreign = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        try:
            for number in pyplot.get_fignums():
                figure = pyplot.figure(number)
                if not any(figure is drawn for drawn in self._drawn):
                    self._draw(figure)
        finally:
            pyplot.close("all")

    def take(self) -> list[tuple[str, bytes]]:
        """Return MIME type and data of the items shown since the last call."""
        shown, self._shown, self._bytes = self._shown, [], 0
        self._drawn.clear()
        return shown

    def _draw(self, figure: Foreign) -> None:
        # A figure without axes has nothing to crop to.
        tight = {"bbox_inches": "tight"} if figure.axes else {}
        picture = BytesIO()
        figure.savefig(picture, format="png", **tight)
        self._drawn.append(figure)
        self.add("image/png", picture.getvalue())

    def _take_over_show(self, pyplot: ModuleType) -> None:
        # A plain function: pyplot sets attributes on it.
        def show(*args: object, **options: object) -> None:
            self.show_figures()

        vars(pyplot)["show"] = show


def _is_figure(value: object) -> bool:
    figure = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
    return isinstance(figure, type) and isinstance(value, figure)


def _rich(value: object) -> dict[str, bytes]:
    bundle = _attempt(lambda: _bundle(value))
    if bundle:
        return bundle
    for method, mime in _METHODS:
        data = _attempt(lambda name=method, of=mime: _encoded(of, _call(value, name)))
        if data is not None:
            return {mime: data}
    return {}


def _bundle(value: object) -> dict[str, bytes]:
    bundle = _call(value, "_repr_mimebundle_")
    if not is_mapping(bundle):
        return {}
    encoded = {str(mime): _encoded(str(mime), data) for mime, data in bundle.items() if mime != "text/plain"}
    return {mime: data for mime, data in encoded.items() if data is not None}


def _call(value: object, method: str) -> object:
    # Looked up on the type, so that classes and objects with a catch-all `__getattr__` do not match.
    represent = getattr(type(value), method, None)
    data: object = represent(value) if callable(represent) else None
    # Metadata may follow the data; only notebooks use it.
    return data[0] if _is_tuple(data) else data


def _is_tuple(value: object) -> TypeGuard[tuple[object, ...]]:
    return isinstance(value, tuple)


def _encoded(mime: str, data: object) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str) and mime.startswith("image/") and not mime.endswith("+xml"):
        return binascii.a2b_base64(data)
    text = data if isinstance(data, str) else _to_json(data)
    return text.encode("utf-8", "backslashreplace")


def _attempt(make: Callable[[], T]) -> T | None:
    try:
        return make()
    except Exception:
        # A broken representation is the user's; the next plainer form is shown instead.
        return None


def _be_silent_about_fonts() -> None:
    """Hide matplotlib's notice that it makes a list of fonts, which depends on the speed of the machine."""
    import logging  # only with matplotlib

    def is_worth_showing(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("Matplotlib is building the font cache")

    logging.getLogger("matplotlib.font_manager").addFilter(is_worth_showing)


class _PyplotFinder(MetaPathFinder):
    """Import hook that calls back once `matplotlib.pyplot` has been imported."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(self, fullname: str, path: Foreign, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname == "matplotlib":
            _be_silent_about_fonts()
        if fullname != "matplotlib.pyplot":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Foreign:
        return getattr(self._loader, name)


def _on_pyplot(then: Callable[[ModuleType], None]) -> None:
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        then(pyplot)
    else:
        sys.meta_path.insert(0, _PyplotFinder(then))
