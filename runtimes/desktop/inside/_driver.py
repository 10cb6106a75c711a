"""Driver of a desktop: screenshots, windows, pointer, keyboard, commands, and the loop that answers requests."""

import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from PIL import Image, ImageGrab
from Xlib import XK, X
from Xlib.display import Display
from Xlib.error import ConnectionClosedError, XError
from Xlib.ext import xtest

from runtimes._framing import FrameError, read_frame, write_frame
from runtimes.desktop.inside._wire import MAX_MESSAGE, Message, pack, unpack
from runtimes.desktop.inside._x_server import XServer


def windows(display: Display) -> list[dict[str, Any]]:
    """Return the windows, topmost last."""
    root = display.screen().root
    order = _property(display, root, "_NET_CLIENT_LIST_STACKING")
    active = _property(display, root, "_NET_ACTIVE_WINDOW")
    focused = active[0] if active else 0
    described: list[dict[str, Any]] = []
    for number in order:
        # It may have been closed meanwhile.
        with suppress(XError):
            described.append(_described(display, number, focused=number == focused))
    return described


def _described(display: Display, number: int, *, focused: bool) -> dict[str, Any]:
    window = display.create_resource_object("window", number)
    geometry = window.get_geometry()
    corner = display.screen().root.translate_coords(window, 0, 0)
    named = window.get_wm_class()
    return {
        "title": _title(display, window),
        "application": named[1] if named else "",
        "x": -corner.x if corner.x > 0x7FFF else corner.x,
        "y": corner.y,
        "width": geometry.width,
        "height": geometry.height,
        "focused": focused,
    }


def _title(display: Display, window: Any) -> str:  # noqa: ANN401  # the library has no type for it
    for name in ("_NET_WM_NAME", "WM_NAME"):
        value = _property(display, window, name)
        if value:
            return bytes(value).decode("utf-8", "replace") if not isinstance(value, str) else value
    return ""


def _property(display: Display, window: Any, name: str) -> Any:  # noqa: ANN401  # of any type
    reply = window.get_full_property(display.intern_atom(name), X.AnyPropertyType)
    return reply.value if reply is not None else ()


class ScreenshotSource:
    """Screenshot source; an unchanged screen is not compressed again."""

    def __init__(self, display: str) -> None:
        self._display = display
        self._pixels = b""
        self._png = b""
        self._size = (0, 0)

    def take(self) -> tuple[bytes, tuple[int, int]]:
        """Return the screen as PNG, and its size."""
        image: Image.Image = ImageGrab.grab(xdisplay=self._display)
        pixels = image.tobytes()
        if pixels != self._pixels:
            packed = io.BytesIO()
            # Speed matters more than size: level 6 takes five times as long.
            image.save(packed, "PNG", compress_level=1)
            self._pixels, self._png, self._size = pixels, packed.getvalue(), image.size
        return self._png, self._size


_NAMED = {"\n": "Return", "\r": "Return", "\t": "Tab", "\b": "BackSpace", "\x1b": "Escape", "\x7f": "Delete"}
_UNICODE = 0x01000000
_BUTTONS = {"left": 1, "middle": 2, "right": 3}
_UP, _DOWN, _LEFT, _RIGHT = 4, 5, 6, 7


class Keyboard:
    """Keys of one display. A character without a key is assigned to an unused one."""

    def __init__(self, display: Display) -> None:
        self._display = display
        first, last = display.display.info.min_keycode, display.display.info.max_keycode
        self._keys: dict[int, tuple[int, bool]] = {}
        self._unused: list[int] = []
        for offset, symbols in enumerate(display.get_keyboard_mapping(first, last - first + 1)):
            if not any(symbols):
                self._unused.append(first + offset)
            for level, symbol in enumerate(symbols[:2]):
                if symbol:
                    self._keys.setdefault(symbol, (first + offset, level == 1))
        self._assigned: list[int] = []
        self._shift = self._keys[XK.XK_Shift_L][0]

    def press(self, name: str, *, down: bool) -> None:
        """Press or release a key, named by its keysym or character.

        :raises ValueError: if there is no such key.
        """
        symbol = XK.string_to_keysym(_NAMED.get(name, name)) or (_symbol(name) if len(name) == 1 else 0)
        if not symbol:
            raise ValueError(f"no key {name!r}")
        self._assign([symbol])
        code, shifted = self._keys[symbol]
        if down and shifted:
            self._fake(self._shift, down=True)
        self._fake(code, down=down)
        if shifted and not down:
            self._fake(self._shift, down=False)
        self._display.sync()

    def type(self, text: str) -> None:
        """Type a text.

        :raises ValueError: naming the first character that cannot be typed; then nothing was typed.
        """
        self.check(text)
        symbols = [_symbol(character) for character in text]
        pieces = max(1, len(self._unused) + len(self._assigned))
        for start in range(0, len(symbols), pieces):
            piece = symbols[start : start + pieces]
            self._assign(piece)
            for symbol in piece:
                self._stroke(*self._keys[symbol])
            self._display.sync()

    @staticmethod
    def check(text: str) -> None:
        """Check that a text can be typed.

        :raises ValueError: naming the first character that cannot.
        """
        for character in text:
            if not _symbol(character):
                raise ValueError(f"the character {character!r} cannot be typed")

    def _stroke(self, code: int, shifted: bool) -> None:
        if shifted:
            self._fake(self._shift, down=True)
        self._fake(code, down=True)
        self._fake(code, down=False)
        if shifted:
            self._fake(self._shift, down=False)

    def _fake(self, code: int, *, down: bool) -> None:
        xtest.fake_input(self._display, X.KeyPress if down else X.KeyRelease, code)

    def _assign(self, symbols: list[int]) -> None:
        """Assign keys to the keysyms that have none, reusing the least recently assigned keys."""
        wanted = dict.fromkeys(symbol for symbol in symbols if symbol not in self._keys)
        for symbol in wanted:
            if not self._unused:
                oldest = next(candidate for candidate in self._assigned if candidate not in symbols)
                self._assigned.remove(oldest)
                self._unused.append(self._keys.pop(oldest)[0])
            code = self._unused.pop()
            self._display.change_keyboard_mapping(code, [(symbol, symbol)])
            self._keys[symbol] = (code, False)
            self._assigned.append(symbol)
        if wanted:
            self._display.sync()


def _symbol(character: str) -> int:
    """Return the keysym of a character; 0 if there is none."""
    name = _NAMED.get(character)
    if name is not None:
        return XK.string_to_keysym(name)
    code = ord(character)
    if 0x20 <= code < 0x7F or 0xA0 <= code <= 0xFF:
        return code
    if code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code <= 0xDFFF:
        return 0
    return _UNICODE + code


class Pointer:
    """Pointer of one display."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def move(self, x: int, y: int) -> None:
        """Move the pointer."""
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


Answer = tuple[Message, bytes]


class DesktopDriver:
    """Driver of one desktop."""

    def __init__(self, server: XServer) -> None:
        self._server = server
        self._display = server.display
        self._keyboard = Keyboard(server.display)
        self._pointer = Pointer(server.display)
        self._picture = ScreenshotSource(server.environment["DISPLAY"])
        self._lock = threading.Lock()
        self._immediate: dict[str, Callable[[Message], Answer]] = {
            "screenshot": self._screenshot,
            "move": lambda request: done(self._pointer.move(request["x"], request["y"])),
            "button": lambda request: done(self._pointer.button(request["button"], down=request["down"])),
            "scroll": lambda request: done(
                self._pointer.scroll(request["clicks"], horizontal=request["horizontal"])
            ),
            "key": lambda request: done(self._keyboard.press(request["name"], down=request["down"])),
            "type": lambda request: done(self._keyboard.type(request["text"])),
            "check": lambda request: done(self._keyboard.check(request["text"])),
            "windows": lambda request: ({"windows": windows(self._display)}, b""),
        }
        self._threaded: dict[str, Callable[[Message], Answer]] = {"exec": self._exec, "tree": self._tree}

    def serve(self) -> None:
        """Answer requests until standard input ends."""
        while (request := self._next()) is not None:
            if request["op"] in self._threaded:
                # Possibly slow: screen, pointer and keyboard stay responsive meanwhile.
                threading.Thread(target=self._answer, args=(request, self._threaded), daemon=True).start()
            else:
                self._answer(request, self._immediate)

    def ready(self) -> None:
        """Report that the desktop is ready."""
        self._send({"id": 0}, b"")

    @staticmethod
    def _next() -> Message | None:
        try:
            payload = read_frame(sys.stdin.buffer.read, MAX_MESSAGE)
        except FrameError:
            return None
        return None if payload is None else unpack(payload)[0]

    def _answer(self, request: Message, operations: dict[str, Callable[[Message], Answer]]) -> None:
        try:
            message, data = operations[request["op"]](request)
        except ConnectionClosedError as error:
            raise SystemExit(f"the X server has ended: {error}") from None
        except (ValueError, OSError) as error:
            kind = "value" if isinstance(error, ValueError) else "failed"
            message, data = {"error": kind, "detail": str(error)}, b""
        self._send({**message, "id": request["id"]}, data)

    def _send(self, message: Message, data: bytes) -> None:
        with self._lock:
            write_frame(1, pack(message, data))

    def _screenshot(self, request: Message) -> Answer:
        try:
            png, (width, height) = self._picture.take()
        except OSError:
            # Screenshots have a connection of their own; this one tells whether the server is alive at all.
            self._display.sync()
            raise
        return {"width": width, "height": height}, png

    def _exec(self, request: Message) -> Answer:
        environment = self._server.environment
        late, code, out, err = _run_command(request["argv"], environment, request["seconds"], request["most"])
        return {"late": late, "code": code, "out": len(out)}, out + err

    def _tree(self, request: Message) -> Answer:
        from runtimes.desktop.inside import _accessibility  # imported on first use

        text = _accessibility.tree(self._server.environment.get("DBUS_SESSION_BUS_ADDRESS", ""))
        return {}, text.encode()


def done(nothing: None) -> Answer:
    """Return the answer of a request without a result."""
    return {}, b""


def main(ready: int) -> None:
    """Drive the X server that reports on a descriptor that it is ready."""
    server = XServer(ready)
    driver = DesktopDriver(server)
    driver.ready()
    if address := server.environment.get("DBUS_SESSION_BUS_ADDRESS"):
        server.start_bus(address)
    driver.serve()


def _run_command(
    argv: Sequence[str], environment: Mapping[str, str], seconds: float | None, most: int
) -> tuple[bool, int, bytes, bytes]:
    """Run a command to its end; return a timeout flag, the status, and the beginning of stdout and stderr.

    Output goes to files: a background process may keep a pipe open forever.
    """
    with tempfile.TemporaryFile(dir="/tmp") as out, tempfile.TemporaryFile(dir="/tmp") as err:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
        )
        late = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            late = True
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        code = process.returncode
        out.seek(0)
        err.seek(0)
        return late, code if code >= 0 else 128 - code, out.read(most), err.read(most)
