"""Driver of a desktop, seen from the host: its program, and concurrent requests over the pipes of its command."""

import compileall
import marshal
import os
import re
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import anyio

from agentflow.errors import InstanceGone, RuntimeFailure
from runtimes import _framing
from runtimes._framing import FrameDecoder, pack_frame
from runtimes._protocol import Stream
from runtimes.desktop.inside._wire import LARGEST, Message, pack, unpack

PROGRAMS = {"/usr/bin/Xvfb": "xvfb", "/usr/bin/openbox": "openbox", "/usr/bin/xkbcomp": "x11-xkb-utils"}
"""System programs, and the Debian packages that contain them."""
PACKAGES = ("Xlib", "PIL", "jeepney")
"""Python packages."""
_INSIDE = Path(__file__).parent / "inside"
_PREFIX = "runtimes.desktop.inside"

PYTHON = f"{sys.prefix}/bin/python3"
"""Interpreter of the driver, by its path: the agent may put another one first in `PATH`."""

BOOTSTRAP = (_INSIDE / "_bootstrap.py").read_text(encoding="utf-8")
"""Source of the bootstrap program."""


def missing_parts() -> list[str]:
    """List the missing parts, one line each with the command that installs it."""
    missing: list[str] = []
    if packages := " ".join(name for program, name in PROGRAMS.items() if shutil.which(program) is None):
        missing.append(f"install {packages} (Debian, Ubuntu: apt-get install {packages})")
    if any(find_spec(name) is None for name in PACKAGES):
        missing.append("install agentflow's extra `desktop` (pip install 'agentflow[desktop]')")
    return missing


@cache
def payload() -> bytes:
    """Return the compiled driver, cached, with the directories of its libraries."""
    modules = {"runtimes": b"", "runtimes.desktop": b"", _PREFIX: b""}
    sources = {"runtimes._framing": Path(_framing.__file__)}
    for path in sorted(_INSIDE.glob("*.py")):
        if path.stem not in ("__init__", "_bootstrap"):
            sources[f"{_PREFIX}.{path.stem}"] = path
    for name, path in sources.items():
        modules[name] = marshal.dumps(compile(path.read_text(encoding="utf-8"), f"<{name}>", "exec"))
    return marshal.dumps((_library_folders(), modules, f"{_PREFIX}._driver"))


def _library_folders() -> list[str]:
    folders: dict[str, None] = {}
    for name in ("Xlib", "six", "PIL", "jeepney"):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            continue
        module = Path(spec.origin)
        if module.name == "__init__.py":
            module = module.parent
            if name != "PIL":
                # The instance shows them read-only, so every desktop would compile them again.
                compileall.compile_dir(os.fspath(module), quiet=2)
        folders[os.fspath(module.parent)] = None
    return list(folders)


_STDERR_BYTES = 4096
_IGNORED_STDERR = re.compile(r"^(_XSERV|Openbox-|The XKEYBOARD|>|Errors from|Could not|\s*$)")


@dataclass(slots=True)
class _PendingRequest:
    """Request that awaits its answer."""

    answer: tuple[Message, bytes] | None = None
    woken: anyio.Event = field(default_factory=anyio.Event)
    """Set when the answer has arrived, or when this task is the next to read."""
    sent: bool = False
    """The request was sent, so this task may become the reader."""


class DriverClient:
    """Requests and answers. One of the waiting tasks reads for all of them."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._numbers = count(1)
        self._frames = FrameDecoder(LARGEST)
        self._waiting: dict[int, _PendingRequest] = {}
        self._reading = False
        self._stderr = b""
        self._ended = False

    async def start(self, first: bytes) -> None:
        """Send the driver its code and wait until the desktop is ready.

        :raises InstanceGone: if it did not start; with the last line of its standard error.
        """
        with suppress(BrokenPipeError):
            await self._stream.send(first)
        await self._answer(0, _PendingRequest())

    async def ask(self, op: str, **details: object) -> tuple[Message, bytes]:
        """Send a request and wait for the answer.

        :raises InstanceGone: if the desktop has ended.
        :raises ValueError: if the driver rejects the arguments.
        :raises RuntimeFailure: if the driver failed.
        """
        number, waiting = next(self._numbers), _PendingRequest()
        self._waiting[number] = waiting
        try:
            await self._stream.send(pack_frame(pack({"id": number, "op": op, **details})))
        except BrokenPipeError:
            self._ended = True
        except BaseException:
            del self._waiting[number]
            raise
        message, data = await self._answer(number, waiting)
        if "error" in message:
            kind = ValueError if message["error"] == "value" else RuntimeFailure
            raise kind(str(message.get("detail", ""))[:500])
        return message, data

    async def close(self) -> None:
        """End the driver, the X server and all applications."""
        self._ended = True
        await self._stream.kill()
        await self._stream.__aexit__(None, None, None)

    async def _answer(self, number: int, waiting: _PendingRequest) -> tuple[Message, bytes]:
        self._waiting[number] = waiting
        waiting.sent = True
        try:
            while waiting.answer is None:
                if self._ended:
                    raise self._gone()
                if self._reading:
                    await waiting.woken.wait()
                    waiting.woken = anyio.Event()
                    continue
                self._reading = True
                try:
                    await self._receive()
                finally:
                    self._reading = False
            return waiting.answer
        finally:
            del self._waiting[number]
            if not self._reading:
                self._wake_next()

    def _wake_next(self) -> None:
        """Wake the next reader; after the end, wake everybody."""
        for other in self._waiting.values():
            if other.sent and other.answer is None:
                other.woken.set()
                if not self._ended:
                    return

    async def _receive(self) -> None:
        pieces = self._stream.receive()
        try:
            name, data = await anext(pieces)
        except StopAsyncIteration:
            self._ended = True
            return
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()
        if name == "stderr":
            self._stderr = (self._stderr + data)[-_STDERR_BYTES:]
            return
        self._frames.feed(data)
        try:
            for payload in self._frames:
                self._take(payload)
        except ValueError:
            # Code inside may have replaced the driver: it is no longer trusted.
            self._ended = True
            await self._stream.kill()

    def _take(self, payload: bytes) -> None:
        message, data = unpack(payload)
        number = message.get("id")
        waiting = self._waiting.get(number) if isinstance(number, int) else None
        if waiting is not None:
            waiting.answer = message, data
            waiting.woken.set()

    def _gone(self) -> InstanceGone:
        lines = self._stderr.decode("utf-8", "replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if not _IGNORED_STDERR.match(line)), "")
        return InstanceGone(f"the desktop has ended{': ' + last[:300] if last else ''}")
