"""Desktops: drivers that answer with what they must not, and programs that seize the screen."""

import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from typing import Final, Literal, Self, cast
from unittest.mock import patch

import anyio

from agentflow.errors import AgentFlowError
from runtimes import Instance, InstanceSpec, Limits
from runtimes._framing import pack_frame
from runtimes.desktop import Desktop, DesktopOptions, DesktopRuntime, _desktop
from runtimes.desktop._desktop import DriverClient
from runtimes.desktop.inside._wire import pack
from runtimes.process import ProcessRuntime
from tests.attacks._table import Attack, attacks

CATEGORY: Final = "desktops"
REFUSED: Final = "refused: (RuntimeFailure|InstanceGone)"
PASSED: Final = "passed on"
CONTAINED: Final = f"({REFUSED}|{PASSED})"
_SHORT: Final = 0.1
_SIZE: Final = DesktopOptions(width=800, height=600)

Use = Callable[[Desktop], Awaitable[object]]


class HostileStream:
    """Stream of a driver that answers the first request by these bytes, and then says nothing."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.kill()

    async def send(self, data: bytes) -> None:
        """Take a request."""

    async def close_stdin(self) -> None:
        """Do nothing."""

    async def receive(self) -> AsyncIterator[tuple[Literal["stdout", "stderr"], bytes]]:
        """Yield the answer once."""
        data, self._data = self._data, b""
        if not data:
            await anyio.sleep_forever()
        yield "stdout", data

    async def wait(self) -> int:
        """Return a status."""
        return 0

    async def kill(self) -> None:
        """Do nothing."""


class _NoInstance:
    """Instance of which only the limits are read."""

    id = "none"
    spec = InstanceSpec(limits=Limits(wall_seconds=_SHORT))


def _png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height)


def _says(data: bytes = b"", **message: object) -> bytes:
    return pack_frame(pack({"id": 1, **message}, data))


async def _screenshot(desktop: Desktop) -> object:
    return await desktop.screenshot()


async def _windows(desktop: Desktop) -> object:
    return await desktop.windows()


async def _exec(desktop: Desktop) -> object:
    return await desktop.exec(["true"])


async def _move(desktop: Desktop) -> object:
    return await desktop.move(1, 1)


_ANSWERS: dict[str, tuple[str, bytes, Use, str]] = {
    "driver: nothing": ("never answer", b"", _screenshot, REFUSED),
    "driver: no frame": ("send bytes that are no frame", b"\xff" * 64, _screenshot, REFUSED),
    "driver: huge frame": ("claim a frame of 4 GB", struct.pack(">I", 0xFFFFFFFF) + b"x", _screenshot, REFUSED),
    "driver: no message": ("send a frame without a message", pack_frame(b"\n\n"), _screenshot, REFUSED),
    "driver: deep": ("exhaust the stack", pack_frame(b"[" * 60_000 + b"\n"), _screenshot, REFUSED),
    "driver: other id": ("answer another request", pack_frame(pack({"id": 99})), _screenshot, REFUSED),
    "driver: no id": ("answer without an id", pack_frame(pack({"id": [1]})), _screenshot, REFUSED),
    "driver: lines in an error": ("send an error of many lines", _says(error="x", detail="a\n\x1b[2J\u202e" * 500), _move, REFUSED),
    "picture: none": ("send no picture", _says(b"x" * 100, width=800, height=600), _screenshot, REFUSED),
    "picture: giant": ("send a picture of 4 gigapixels", _says(_png(65_535, 65_535), width=65_535, height=65_535), _screenshot, REFUSED),
    "picture: other size": ("send a picture of another size", _says(_png(1, 1), width=1, height=1), _screenshot, REFUSED),
    "windows: no list": ("send no list of windows", _says(windows="x"), _windows, REFUSED),
    "windows: types": ("send windows of other types", _says(windows=[{"title": 7}]), _windows, REFUSED),
    "command: code": ("send a status that is no number", _says(code="evil", out=0), _exec, REFUSED),
    "command: length": ("send a length that is no number", _says(code=0, out=[]), _exec, REFUSED),
    "command: huge length": ("send a length beyond the data", _says(b"x", code=0, out=1 << 60), _exec, PASSED),
    "command: negative length": ("send a negative length", _says(b"x", code=0, out=-(1 << 60)), _exec, PASSED),
}  # fmt: skip
_X11: Final = """
import ctypes, os, signal, sys, time
x = ctypes.CDLL("libX11.so.6")
x.XOpenDisplay.restype = ctypes.c_void_p
display = ctypes.c_void_p(x.XOpenDisplay(None))
root = x.XDefaultRootWindow(display)
def window(width=50, height=50):
    made = x.XCreateSimpleWindow(display, ctypes.c_ulong(root), 0, 0, width, height, 1, 0, 0)
    x.XMapWindow(display, ctypes.c_ulong(made))
    return ctypes.c_ulong(made)
"""
_START: Final = """
import subprocess, sys
program = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, start_new_session=True)
program.stdout.readline()
"""
_END: Final = "\nx.XSync(display, 0)\nprint('done', flush=True)\ntime.sleep(600)\n"
_PROGRAMS: dict[str, tuple[str, str, str]] = {
    "screen: seized": ("block the screen for all others", "x.XGrabServer(display)", "failed|shown"),
    "screen: giant window": ("cover the screen by a giant window", "window(32767, 32767)", "shown"),
    "screen: many windows": ("open 400 windows", "[window() for n in range(400)]", "shown"),
    "screen: title": ("send escapes by a title", "x.XStoreName(display, window(), b'\\x1b]0;evil\\x07\\n' * 1000)", "shown"),
    "screen: pixmaps": ("fill the memory of the screen", "[x.XCreatePixmap(display, ctypes.c_ulong(root), 8000, 8000, 24) for n in range(40)]", "failed|shown"),
    "keyboard: seized": ("read the keys of all others", "x.XGrabKeyboard(display, window(), 1, 1, 1, 0)", "shown"),
    "driver: stopped": ("stop the driver", "[os.kill(int(p), signal.SIGSTOP) for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid() and b'-screen' in open(f'/proc/{p}/cmdline', 'rb').read()]", "failed|shown"),
    "driver: killed": ("end the driver", "[os.kill(int(p), 9) for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()]", "failed"),
}  # fmt: skip

ATTACKS: Final[list[Attack]] = [
    *attacks(CATEGORY, {name: (aim, use.__name__, seen) for name, (aim, _, use, seen) in _ANSWERS.items()}),
    *attacks(
        CATEGORY,
        {
            name: (aim, code, f"({seen}); another desktop works")
            for name, (aim, code, seen) in _PROGRAMS.items()
        },
        soak=True,
    ),
]


async def _outcome(data: bytes, use: Use) -> str:
    link = DriverClient(HostileStream(data))
    desktop = Desktop(cast("Instance", _NoInstance()), link, _SIZE, owned=False)
    try:
        with anyio.fail_after(20):
            await use(desktop)
    except (AgentFlowError, ValueError) as error:
        if not str(error).isprintable() or len(str(error)) > 1_000:
            return f"refused with a message that misleads: {str(error)[:300]!r}"
        return f"refused: {type(error).__name__}"
    except Exception as error:  # boundary: any error of an attack is its outcome
        return f"raised {type(error).__name__}: {error}"
    return "passed on"


async def answer(table: Iterable[Attack]) -> dict[str, str]:
    """Use a desktop with each driver; return the outcomes by id."""
    with patch.object(_desktop, "_ANSWER_SECONDS", _SHORT):
        return {
            attack.id: await _outcome(*_ANSWERS[attack.id.removeprefix(f"{CATEGORY}: ")][1:3])
            for attack in table
        }


async def _shows(desktop: Desktop) -> str:
    try:
        await desktop.screenshot()
        await desktop.windows()
    except AgentFlowError:
        return "failed"
    return "shown"


async def run_programs(table: Iterable[Attack]) -> dict[str, str]:
    """Run each program in a desktop of its own; return the outcomes by id."""
    seen: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(ProcessRuntime(preload=(), idle=False))
        desktops = await stack.enter_async_context(DesktopRuntime(runtime, _SIZE))
        other = await desktops.start()
        for attack in table:
            desktop = await desktops.start()
            code = f"{_X11}{attack.code}{_END}"
            with patch.object(_desktop, "_ANSWER_SECONDS", 10.0):
                with suppress(AgentFlowError):
                    await desktop.exec([sys.executable, "-c", _START, code], timeout=10)
                outcome = await _shows(desktop)
                works = (
                    "another desktop works"
                    if await _shows(other) == "shown"
                    else "another desktop does not work"
                )
            seen[attack.id] = f"{outcome}; {works}"
            await desktop.stop()
    return seen
