"""One machine of the qemu runtime."""

import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import anyio
import anyio.to_thread

from agentflow.errors import CannotFork, InstanceGone, NotOffered, RuntimeFailure
from runtimes._machine import Button, Screen, Window
from runtimes._protocol import ExecResult
from runtimes.qemu._image import Image
from runtimes.qemu._keys import keys_of_name, keys_of_text
from runtimes.qemu._process import Qemu
from runtimes.qemu._screen import Eyes, size_of, to_screen

_PACE = 0.008
"""Between strokes: the queues of a guest's programs hold a few, and one that is short of time must not lose one."""
_KEYBOARD = "i /xb 0x64"
"""Reads the state of the keyboard's controller, which changes nothing."""
_UNTAKEN = re.compile(r"= 0x[0-9a-f]*[13579bdf]\s*$")
_TAKING_SECONDS = 30.0
_ABSOLUTE = 1 << 15
_DOOR_SECONDS = 60.0
_NO_DOOR = "this guest has no door for whoever judges: build one with scripts/make-guest"

Event = dict[str, Any]


def key_event(key: str, *, down: bool) -> Event:
    """A key goes down or up."""
    return {"type": "key", "data": {"down": down, "key": {"type": "qcode", "data": key}}}


def button_event(button: str, *, down: bool) -> Event:
    """A button goes down or up."""
    return {"type": "btn", "data": {"down": down, "button": button}}


class QemuMachine:
    """A whole computer that QEMU is. See `runtimes.Machine`."""

    def __init__(
        self,
        name: str,
        qemu: Qemu,
        image: Image,
        *,
        fork: "Callable[[QemuMachine], Awaitable[QemuMachine]]",
        stop: "Callable[[QemuMachine], Awaitable[None]]",
    ) -> None:
        self._name = name
        self.qemu = qemu
        """The process."""
        self._image = image
        self._fork = fork
        self._stop = stop
        self._eyes = Eyes(qemu.qmp)
        self._size: tuple[int, int] | None = None
        self._hands = anyio.Lock()
        self.gone = False
        """It was stopped."""

    @property
    def id(self) -> str:
        """A name that is unique in its runtime."""
        return self._name

    def _check(self) -> None:
        if self.gone or self.qemu.qmp.ended.is_set():
            raise InstanceGone("the machine has ended")

    async def _look(self) -> bytes:
        self._check()
        ppm = await self._eyes.look()
        self._size = size_of(ppm)
        return ppm

    async def screenshot(self) -> Screen:
        """What is on the screen now."""
        ppm = await self._look()
        return await anyio.to_thread.run_sync(to_screen, ppm)

    async def _send(self, events: Iterable[Event]) -> None:
        self._check()
        await self.qemu.qmp.execute("input-send-event", events=list(events))

    async def _taken(self) -> None:
        """Wait until the guest has taken every stroke: what the keyboard's queue can't hold is lost.

        :raises RuntimeFailure: if it takes none.
        """
        try:
            with anyio.fail_after(_TAKING_SECONDS):
                while await self._untaken():  # noqa: ASYNC110  # a guest does not tell when it takes one
                    await anyio.sleep(_PACE / 4)
        except TimeoutError:
            raise RuntimeFailure("the guest takes no keys; it hangs, or has not booted yet") from None

    async def _untaken(self) -> bool:
        state = await self.qemu.qmp.execute("human-monitor-command", command_line=_KEYBOARD)
        return _UNTAKEN.search(str(state)) is not None

    async def move(self, x: int, y: int) -> None:
        """Put the pointer there.

        :raises ValueError: if that is not on the screen.
        """
        if self._size is None:
            await self._look()
        assert self._size is not None
        width, height = self._size
        if not (0 <= x < width and 0 <= y < height):
            raise ValueError(f"({x}, {y}) is not on the screen, which is {width} x {height}")
        places = {"x": (2 * x + 1) * _ABSOLUTE // (2 * width), "y": (2 * y + 1) * _ABSOLUTE // (2 * height)}
        async with self._hands:
            await self._send(
                {"type": "abs", "data": {"axis": axis, "value": value}} for axis, value in places.items()
            )

    async def button(self, button: Button, *, down: bool) -> None:
        """Press or release a button where the pointer is."""
        async with self._hands:
            await self._send([button_event(button, down=down)])

    async def scroll(self, clicks: int, *, horizontal: bool = False) -> None:
        """Turn the wheel where the pointer is: up and right are positive. Sideways it is the wheel with Shift held."""
        up = clicks < 0 if horizontal else clicks > 0
        wheel = "wheel-up" if up else "wheel-down"
        async with self._hands:
            if horizontal:
                await self._send([key_event("shift", down=True)])
            for _ in range(abs(clicks)):
                await self._send([button_event(wheel, down=True), button_event(wheel, down=False)])
                await anyio.sleep(_PACE)
            if horizontal:
                await self._send([key_event("shift", down=False)])

    async def key(self, name: str, *, down: bool) -> None:
        """Press or release a key.

        :raises ValueError: if there is no such key.
        """
        keys = keys_of_name(name)
        async with self._hands:
            await self._send(key_event(key, down=down) for key in (keys if down else reversed(keys)))
            await anyio.sleep(_PACE / 2)
            await self._taken()

    async def type(self, text: str, *, interval: float = 0.0) -> None:
        """Type a text, waiting `interval` seconds between keys.

        :raises ValueError: naming the first character that can't be typed; then nothing was typed.
        """
        strokes = keys_of_text(text)
        self._check()
        async with self._hands:
            for keys in strokes:
                # A stroke once begun is ended: no key stays down because somebody gave up.
                with anyio.CancelScope(shield=True):
                    await self._send(key_event(key, down=True) for key in keys)
                    await self._send(key_event(key, down=False) for key in reversed(keys))
                await anyio.sleep(max(interval, _PACE))
                await self._taken()

    async def exec(self, argv: Sequence[str], *, timeout: float | None = None) -> ExecResult:
        """Run a command inside, as root.

        :raises NotOffered: if there is no way in.
        """
        self._enter()
        return await self.qemu.door.run(argv, _DOOR_SECONDS if timeout is None else timeout)

    async def read(self, path: str) -> bytes:
        """Bytes of a file inside; a relative path begins where root is at home.

        :raises NotOffered: if there is no way in.
        """
        self._enter()
        return await self.qemu.door.read(path, _DOOR_SECONDS)

    def _enter(self) -> None:
        self._check()
        if not self._image.door:
            raise NotOffered(_NO_DOOR)

    async def windows(self) -> list[Window]:
        """The windows, the uppermost last.

        :raises NotOffered: if there is no way in.
        """
        self._enter()
        if not self._image.windows:
            raise NotOffered(
                "this guest has no windows that could be listed: scripts/make-guest desktop builds one"
            )
        result = await self.exec(self._image.windows)
        if result.exit_code:
            raise RuntimeFailure(
                f"the guest can't list its windows: {result.stderr.decode(errors='replace')[:200]}"
            )
        return _windows(result.stdout.decode(errors="replace"))

    async def accessibility(self) -> str:
        """The accessibility tree.

        :raises NotOffered: no guest of ours tells it.
        """
        self._enter()
        raise NotOffered("this guest tells no accessibility tree: the desktop runtime does")

    async def fork(self) -> "QemuMachine":
        """An independent copy of the running machine, which waits meanwhile.

        :raises CannotFork: if it can't be copied; the machine goes on unharmed.
        """
        self._check()
        async with self._hands, self._eyes.lock, self.qemu.door.hold():
            self._check()
            try:
                return await self._fork(self)
            except InstanceGone:
                raise
            except (RuntimeFailure, OSError) as error:
                raise CannotFork(f"the machine can't be copied: {error}") from error

    async def stop(self) -> None:
        """End it and all that it holds. Fine if it has ended."""
        with anyio.CancelScope(shield=True):
            if not self.gone:
                self.gone = True
                await self.qemu.end()
                self._eyes.close()
                with contextlib.suppress(OSError):
                    await self._stop(self)


def _windows(lines: str) -> list[Window]:
    windows: list[Window] = []
    for line in lines.splitlines():
        focused, x, y, width, height, application, title = (line.split("\t", 6) + [""] * 7)[:7]
        try:
            place = int(x), int(y), int(width), int(height)
        except ValueError:
            raise RuntimeFailure(f"the guest lists its windows in a way of its own: {line[:80]!r}") from None
        windows.append(Window(title, application, *place, focused=focused == "1"))
    return windows
