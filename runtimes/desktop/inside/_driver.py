"""Answers requests from outside: looks, points, types, runs."""

import sys
import threading
from collections.abc import Callable
from typing import Any

from Xlib.error import ConnectionClosedError

from runtimes._framing import FrameError, read_frame, write_frame
from runtimes.desktop.inside import _programs, _windows
from runtimes.desktop.inside._keyboard import Keyboard
from runtimes.desktop.inside._picture import Picture
from runtimes.desktop.inside._pointer import Pointer
from runtimes.desktop.inside._server import XServer
from runtimes.desktop.inside._wire import LARGEST, Message, pack, unpack

__all__ = ["main"]

Answer = tuple[Message, bytes]


class Driver:
    """One desktop's driver."""

    def __init__(self, server: XServer) -> None:
        self._server = server
        self._display = server.display
        self._keyboard = Keyboard(server.display)
        self._pointer = Pointer(server.display)
        self._picture = Picture(server.environment["DISPLAY"])
        self._turn = threading.Lock()
        self._soon: dict[str, Callable[[Message], Answer]] = {
            "screenshot": self._screenshot,
            "move": lambda asked: done(self._pointer.move(asked["x"], asked["y"])),
            "button": lambda asked: done(self._pointer.button(asked["button"], down=asked["down"])),
            "scroll": lambda asked: done(
                self._pointer.scroll(asked["clicks"], horizontal=asked["horizontal"])
            ),
            "key": lambda asked: done(self._keyboard.press(asked["name"], down=asked["down"])),
            "type": lambda asked: done(self._keyboard.type(asked["text"])),
            "check": lambda asked: done(self._keyboard.check(asked["text"])),
            "windows": lambda asked: ({"windows": _windows.windows(self._display)}, b""),
        }
        self._later: dict[str, Callable[[Message], Answer]] = {"exec": self._exec, "tree": self._tree}

    def serve(self) -> None:
        """Answer until nobody asks any more."""
        while (asked := self._next()) is not None:
            if asked["op"] in self._later:
                # These may take long: looking and pointing go on meanwhile.
                threading.Thread(target=self._answer, args=(asked, self._later), daemon=True).start()
            else:
                self._answer(asked, self._soon)

    def ready(self) -> None:
        """Tell that the desktop is there."""
        self._send({"id": 0}, b"")

    @staticmethod
    def _next() -> Message | None:
        try:
            payload = read_frame(sys.stdin.buffer.read, LARGEST)
        except FrameError:
            return None
        return None if payload is None else unpack(payload)[0]

    def _answer(self, asked: Message, known: dict[str, Callable[[Message], Answer]]) -> None:
        try:
            message, data = known[asked["op"]](asked)
        except ConnectionClosedError as error:
            raise SystemExit(f"the X server has ended: {error}") from None
        except (ValueError, OSError) as error:
            kind = "value" if isinstance(error, ValueError) else "failed"
            message, data = {"error": kind, "detail": str(error)}, b""
        self._send({**message, "id": asked["id"]}, data)

    def _send(self, message: Message, data: bytes) -> None:
        with self._turn:
            write_frame(1, pack(message, data))

    def _screenshot(self, asked: Message) -> Answer:
        try:
            png, (width, height) = self._picture.take()
        except OSError:
            # The picture has a connection of its own; this one tells whether the server is there at all.
            self._display.sync()
            raise
        return {"width": width, "height": height}, png

    def _exec(self, asked: Message) -> Answer:
        late, code, out, err = _programs.run(
            asked["argv"], self._server.environment, asked["seconds"], asked["most"]
        )
        return {"late": late, "code": code, "out": len(out)}, out + err

    def _tree(self, asked: Message) -> Answer:
        from runtimes.desktop.inside import _tree  # only who asks for it needs it

        text = _tree.tree(self._server.environment.get("DBUS_SESSION_BUS_ADDRESS", ""))
        return {}, text.encode()


def done(nothing: None) -> Answer:
    """The answer to what only had to be done."""
    return {}, b""


def main(pid: int, ready: int) -> None:
    """Drive the X server that was started as that process."""
    server = XServer(pid, ready)
    driver = Driver(server)
    driver.ready()
    address: Any = server.environment.get("DBUS_SESSION_BUS_ADDRESS")
    if address:
        server.start_bus(address)
    driver.serve()
