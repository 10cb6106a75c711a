"""Request loop of the driver: screenshots, pointer, keyboard, commands."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from Xlib.error import ConnectionClosedError

from runtimes._framing import FrameError, read_frame, write_frame
from runtimes.desktop.inside._input import Keyboard, Pointer
from runtimes.desktop.inside._screen import ScreenshotSource, windows
from runtimes.desktop.inside._wire import LARGEST, Message, pack, unpack
from runtimes.desktop.inside._x_server import XServer

Answer = tuple[Message, bytes]


class DesktopDriver:
    """Driver of one desktop."""

    def __init__(self, server: XServer) -> None:
        self._server = server
        self._display = server.display
        self._keyboard = Keyboard(server.display)
        self._pointer = Pointer(server.display)
        self._picture = ScreenshotSource(server.environment["DISPLAY"])
        self._turn = threading.Lock()
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
            payload = read_frame(sys.stdin.buffer.read, LARGEST)
        except FrameError:
            return None
        return None if payload is None else unpack(payload)[0]

    def _answer(self, request: Message, known: dict[str, Callable[[Message], Answer]]) -> None:
        try:
            message, data = known[request["op"]](request)
        except ConnectionClosedError as error:
            raise SystemExit(f"the X server has ended: {error}") from None
        except (ValueError, OSError) as error:
            kind = "value" if isinstance(error, ValueError) else "failed"
            message, data = {"error": kind, "detail": str(error)}, b""
        self._send({**message, "id": request["id"]}, data)

    def _send(self, message: Message, data: bytes) -> None:
        with self._turn:
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
        late, code, out, err = _run_command(
            request["argv"], self._server.environment, request["seconds"], request["most"]
        )
        return {"late": late, "code": code, "out": len(out)}, out + err

    def _tree(self, request: Message) -> Answer:
        from runtimes.desktop.inside import _accessibility  # imported on first use

        text = _accessibility.tree(self._server.environment.get("DBUS_SESSION_BUS_ADDRESS", ""))
        return {}, text.encode()


def done(nothing: None) -> Answer:
    """Return the answer of a request without a result."""
    return {}, b""


def main(pid: int, ready: int) -> None:
    """Drive the X server that runs as process `pid`."""
    server = XServer(pid, ready)
    driver = DesktopDriver(server)
    driver.ready()
    address: Any = server.environment.get("DBUS_SESSION_BUS_ADDRESS")
    if address:
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
        return late, code if code >= 0 else 128 - code, _beginning(out, most), _beginning(err, most)


def _beginning(file: IO[bytes], most: int) -> bytes:
    file.seek(0)
    return file.read(most)
