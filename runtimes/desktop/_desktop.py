"""Desktop in an instance, seen from the host, and the runtime of desktops in instances of their own."""

import compileall
import marshal
import os
import re
import shutil
import struct
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.to_thread
import msgspec

from agentflow._terminal import printable
from agentflow.errors import CannotFork, InstanceGone, IsolationUnavailable, NotOffered, RuntimeFailure
from agentflow.extras import missing_extra
from runtimes import _framing
from runtimes._framing import FrameDecoder, pack_frame
from runtimes._machine import Button, Screen, Window
from runtimes._protocol import MIB, Capabilities, ExecResult, Instance, InstanceSpec, Outcome, Runtime, Stream
from runtimes.desktop._options import BUS, DISPLAY, DesktopOptions
from runtimes.desktop.inside._panel import PANEL
from runtimes.desktop.inside._wire import MAX_MESSAGE, Message, pack, unpack

PROGRAMS = {"/usr/bin/Xvfb": "xvfb", "/usr/bin/openbox": "openbox", "/usr/bin/xkbcomp": "x11-xkb-utils"}
"""System programs, and the Debian packages that contain them."""
PANEL_PROGRAMS = {
    "/usr/bin/tint2": "tint2",
    "/usr/bin/xterm": "xterm",
    "/usr/bin/pcmanfm": "pcmanfm",
    "/usr/bin/l3afpad": "l3afpad",
}
"""Further system programs of a desktop with a panel, and their Debian packages."""
PACKAGES = ("Xlib", "PIL", "jeepney")
"""Python packages."""
_INSIDE = Path(__file__).parent / "inside"
_PREFIX = "runtimes.desktop.inside"

PYTHON = f"{sys.prefix}/bin/python3"
"""Interpreter of the driver, by its path: the agent may put another one first in `PATH`."""

BOOTSTRAP = (_INSIDE / "_bootstrap.py").read_text(encoding="utf-8")
"""Source of the bootstrap program."""
_ANSWER_SECONDS = 300.0
"""Time that the driver has for an answer, beyond that of a command; a program inside can stop it, or seize the screen."""
_STDERR_BYTES = 4096
_PNG = b"\x89PNG\r\n\x1a\n"
_WHEEL = 100
_MAX_TITLES, _MAX_TITLE_CHARS = 5, 40
_IGNORED_STDERR = re.compile(r"^(_XSERV|Openbox-|The XKEYBOARD|>|Errors from|Could not|\s*$)")


def missing_parts(*, panel: bool = False) -> list[str]:
    """List the missing parts, one line each with the command that installs it."""
    missing: list[str] = []
    programs = PROGRAMS | (PANEL_PROGRAMS if panel else {})
    if packages := " ".join(name for program, name in programs.items() if shutil.which(program) is None):
        missing.append(f"install {packages} (Debian, Ubuntu: apt-get install {packages})")
    if any(find_spec(name) is None for name in PACKAGES):
        missing.append(missing_extra("it", "desktop"))
    return missing


@cache
def driver_code() -> bytes:
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

    def __init__(self, stream: Stream, max_message: int = MAX_MESSAGE) -> None:
        self._stream = stream
        self._numbers = count(1)
        self._frames = FrameDecoder(max_message)
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
            raise kind(_one_line(str(message.get("detail", ""))[:500]))
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
                self._dispatch(payload)
        except ValueError:
            # Code inside may have replaced the driver: it is no longer trusted.
            self._ended = True
            await self._stream.kill()

    def _dispatch(self, payload: bytes) -> None:
        message, data = unpack(payload)
        number = message.get("id")
        waiting = self._waiting.get(number) if isinstance(number, int) else None
        if waiting is not None:
            waiting.answer = message, data
            waiting.woken.set()

    def _gone(self) -> InstanceGone:
        lines = self._stderr.decode("utf-8", "replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if not _IGNORED_STDERR.match(line)), "")
        return InstanceGone(f"the desktop has ended{': ' + _one_line(last[:300]) if last else ''}")


async def open_desktop(
    instance: Instance, options: DesktopOptions | None = None, *, owned: bool = False
) -> "Desktop":
    """Start a desktop in an instance; an instance has at most one.

    :param owned: stop the instance together with the desktop.
    :raises IsolationUnavailable: if a program or package is missing; the message names it.
    :raises RuntimeFailure: if the desktop did not start.
    Example::
        desktop = await open_desktop(instance, DesktopOptions(width=1024, height=768))
        screen = await desktop.screenshot()
    """
    options = options or DesktopOptions()
    lacking = await anyio.to_thread.run_sync(partial(missing_parts, panel=options.panel))
    if lacking:
        raise IsolationUnavailable(f"no desktop can be started here: {'; '.join(lacking)}")
    code = await anyio.to_thread.run_sync(driver_code)
    size = f"{options.width}x{options.height}x24"
    argv = [PYTHON, "-S", "-E", "-s", "-c", BOOTSTRAP, "-screen", "0", size, "-dpi", str(options.dpi)]
    bus = {"DBUS_SESSION_BUS_ADDRESS": BUS} if options.accessibility else {"NO_AT_BRIDGE": "1"}
    panel = {PANEL: "1"} if options.panel else {}
    stream = await instance.open_stream(argv, env={"DISPLAY": DISPLAY, **bus, **panel})
    link = DriverClient(stream, max(MAX_MESSAGE, 2 * instance.spec.limits.output_bytes + MIB))
    try:
        with anyio.fail_after(_ANSWER_SECONDS):
            await link.start(code)
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await link.close()
        if isinstance(error, InstanceGone):
            raise RuntimeFailure(f"the desktop did not start: {error}") from None
        if isinstance(error, TimeoutError):
            raise RuntimeFailure(f"the desktop did not start within {_ANSWER_SECONDS:g} seconds") from None
        raise
    return Desktop(instance, link, options, owned=owned)


class Desktop:
    """Desktop in an instance. See `runtimes.Machine`."""

    def __init__(
        self, instance: Instance, link: DriverClient, options: DesktopOptions, *, owned: bool
    ) -> None:
        self._instance = instance
        self._owned = owned
        self._link = link
        self._options = options
        self._gone = False

    @property
    def id(self) -> str:
        """Name, unique in its runtime."""
        return self._instance.id

    @property
    def instance(self) -> Instance:
        """Instance that the desktop runs in."""
        return self._instance

    async def screenshot(self) -> Screen:
        """See `runtimes.Machine.screenshot`. The pointer is not visible."""
        _, png = await self._ask("screenshot")
        width, height = _size(png)
        if (width, height) != (self._options.width, self._options.height):
            raise RuntimeFailure(
                f"the driver returned a picture of {width}x{height} pixels, not of the screen"
            )
        return Screen(png, width, height)

    async def move(self, x: int, y: int) -> None:
        """See `runtimes.Machine.move`."""
        await self._ask("move", x=x, y=y)

    async def button(self, button: Button, *, down: bool) -> None:
        """See `runtimes.Machine.button`."""
        await self._ask("button", button=button, down=down)

    async def scroll(self, clicks: int, *, horizontal: bool = False) -> None:
        """See `runtimes.Machine.scroll`; at most 100 clicks."""
        clicks = max(-_WHEEL, min(clicks, _WHEEL))
        await self._ask("scroll", clicks=clicks, horizontal=horizontal)

    async def key(self, name: str, *, down: bool) -> None:
        """See `runtimes.Machine.key`."""
        await self._ask("key", name=name, down=down)

    async def type(self, text: str, *, interval: float = 0.0) -> None:
        """See `runtimes.Machine.type`. Every character but control characters can be typed."""
        if interval <= 0:
            await self._ask("type", text=text)
            return
        await self._ask("check", text=text)
        for number, character in enumerate(text):
            if number:
                await anyio.sleep(interval)
            await self._ask("type", text=character)

    async def exec(self, argv: Sequence[str], *, timeout: float | None = None) -> ExecResult:
        """See `runtimes.Machine.exec`. Background processes that it starts keep running."""
        limits = self._instance.spec.limits
        seconds = limits.wall_seconds if timeout is None else timeout
        message, data = await self._ask(
            "exec", command_seconds=seconds, argv=list(argv), seconds=seconds, most=limits.output_bytes
        )
        late, code, cut = bool(message.get("late")), message.get("code", 1), message.get("out", 0)
        if not isinstance(code, int) or not isinstance(cut, int):
            raise RuntimeFailure("the driver returned no result of a command")
        outcome = Outcome.TIMEOUT if late else Outcome.OK
        detail = "the command was killed: timeout" if late else ""
        return ExecResult(
            outcome=outcome, exit_code=code, stdout=data[:cut], stderr=data[cut:], detail=detail
        )

    async def read(self, path: str) -> bytes:
        """See `runtimes.Machine.read`."""
        self._check()
        return await self._instance.read(path)

    async def windows(self) -> list[Window]:
        """See `runtimes.Machine.windows`."""
        message, _ = await self._ask("windows")
        try:
            return msgspec.convert(message.get("windows", []), list[Window])
        except msgspec.ValidationError as error:
            raise RuntimeFailure(f"the driver returned no windows: {error}") from None

    async def accessibility(self) -> str:
        """See `runtimes.Machine.accessibility`."""
        if not self._options.accessibility:
            raise NotOffered("this desktop was started without `accessibility`")
        try:
            _, text = await self._ask("tree")
        except InstanceGone:
            raise
        except RuntimeFailure as error:
            raise NotOffered(f"no application here provides an accessibility tree: {error}") from None
        return text.decode("utf-8", "replace")

    async def fork(self) -> "Desktop":
        """Refuse: a running X server and its applications cannot be copied.

        :raises CannotFork: always, naming the open windows, whose state is lost unless the steps are repeated.
        """
        self._check()
        titles = ", ".join(
            repr(window.title[:_MAX_TITLE_CHARS]) for window in (await self.windows())[-_MAX_TITLES:]
        )
        windows = f", with its windows {titles}" if titles else ""
        raise CannotFork(
            f"a running desktop cannot be copied{windows}: repeat its steps, or use `machine: qemu`"
        )

    async def stop(self) -> None:
        """Stop the desktop, and the instance if it is owned."""
        if self._gone:
            return
        self._gone = True
        with anyio.CancelScope(shield=True):
            with suppress(InstanceGone):
                await self._link.close()
            if self._owned:
                await self._instance.stop()

    def _check(self) -> None:
        if self._gone:
            raise InstanceGone("the desktop was stopped")

    async def _ask(
        self, op: str, *, command_seconds: float | None = 0.0, **details: object
    ) -> tuple[Mapping[str, Any], bytes]:
        self._check()
        limit = None if command_seconds is None else command_seconds + _ANSWER_SECONDS
        with anyio.move_on_after(limit):
            return await self._link.ask(op, **details)
        raise RuntimeFailure(f"the desktop did not answer within {limit:g} seconds; start another one")


class DesktopRuntime:
    """Runtime of desktops, each in a new instance. See `runtimes.MachineRuntime` and docs/machines.md.

    The caller closes the runtime of the instances.
    """

    def __init__(
        self, runtime: Runtime, options: DesktopOptions | None = None, spec: InstanceSpec | None = None
    ) -> None:
        self._runtime = runtime
        self._options = options or DesktopOptions()
        self._spec = spec
        self._desktops: list[Desktop] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        with anyio.CancelScope(shield=True):
            for desktop in self._desktops:
                await desktop.stop()

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities on this machine."""
        of_instances = self._runtime.capabilities
        notes = (*of_instances.notes, *missing_parts(panel=self._options.panel))
        return replace(of_instances, fork="replay", screen=True, notes=notes)

    async def start(self) -> Desktop:
        """Start a desktop.

        :raises IsolationUnavailable: if this machine lacks the isolation, a program or a package.
        """
        instance = await self._runtime.start(self._spec)
        try:
            desktop = await open_desktop(instance, self._options, owned=True)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await instance.stop()
            raise
        self._desktops.append(desktop)
        return desktop


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _size(png: bytes) -> tuple[int, int]:
    """Return width and height of a PNG.

    :raises RuntimeFailure: if it is malformed.
    """
    if len(png) < 24 or not png.startswith(_PNG):
        raise RuntimeFailure("the driver returned no PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height
