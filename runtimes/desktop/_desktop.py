"""Desktop in an instance, seen from the host, and the runtime of desktops in instances of their own."""

import contextlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import anyio
import anyio.to_thread
import msgspec

from agentflow.errors import CannotFork, InstanceGone, IsolationUnavailable, NotOffered, RuntimeFailure
from runtimes._machine import Button, Screen, Window
from runtimes._protocol import Capabilities, ExecResult, Instance, InstanceSpec, Outcome, Runtime
from runtimes.desktop._driver_client import BOOTSTRAP, PYTHON, DriverClient, missing_parts, payload
from runtimes.desktop._options import BUS, DISPLAY, DesktopOptions

_PNG = b"\x89PNG\r\n\x1a\n"
_WHEEL = 100


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
    lacking = await anyio.to_thread.run_sync(missing_parts)
    if lacking:
        raise IsolationUnavailable(f"no desktop can be started here: {'; '.join(lacking)}")
    options = options or DesktopOptions()
    code = await anyio.to_thread.run_sync(payload)
    size = f"{options.width}x{options.height}x24"
    argv = [PYTHON, "-S", "-E", "-s", "-c", BOOTSTRAP, "-screen", "0", size, "-dpi", str(options.dpi)]
    bus = {"DBUS_SESSION_BUS_ADDRESS": BUS} if options.accessibility else {"NO_AT_BRIDGE": "1"}
    stream = await instance.open_stream(argv, env={"DISPLAY": DISPLAY, **bus})
    link = DriverClient(stream)
    try:
        await link.start(code)
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await link.close()
        if isinstance(error, InstanceGone):
            raise RuntimeFailure(f"the desktop did not start: {error}") from None
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
        message, png = await self._ask("screenshot")
        width, height = _size(png)
        if (width, height) != (message.get("width"), message.get("height")):
            raise RuntimeFailure("the driver returned no screenshot")
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
        message, data = await self._ask("exec", argv=list(argv), seconds=seconds, most=limits.output_bytes)
        late, code, cut = bool(message.get("late")), int(message.get("code", 1)), int(message.get("out", 0))
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
        return msgspec.convert(message.get("windows", []), list[Window])

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

        :raises CannotFork: always.
        """
        self._check()
        raise CannotFork("a running desktop cannot be copied: repeat its steps, or use `machine: qemu`")

    async def stop(self) -> None:
        """Stop the desktop, and the instance if it is owned."""
        if self._gone:
            return
        self._gone = True
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(InstanceGone):
                await self._link.close()
            if self._owned:
                await self._instance.stop()

    def _check(self) -> None:
        if self._gone:
            raise InstanceGone("the desktop was stopped")

    async def _ask(self, op: str, **details: object) -> tuple[Mapping[str, Any], bytes]:
        self._check()
        return await self._link.ask(op, **details)


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
        notes = (*of_instances.notes, *missing_parts())
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


def _size(png: bytes) -> tuple[int, int]:
    """Return width and height of a PNG.

    :raises RuntimeFailure: if it is malformed.
    """
    if len(png) < 24 or not png.startswith(_PNG):
        raise RuntimeFailure("the driver returned no PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height
