"""Machine of the qemu runtime, and the keys of a US keyboard by X keysym and by character."""

import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import anyio
import anyio.to_thread

from agentflow.errors import CannotFork, InstanceGone, NotOffered, RuntimeFailure
from runtimes._machine import Button, Screen, Window
from runtimes._protocol import ExecResult
from runtimes.qemu._image import BootImage
from runtimes.qemu._process import Qemu
from runtimes.qemu._screen import ScreenReader, size_of, to_screen

_SHIFT: Final = "shift"

_PLAIN: Final = {
    " ": "spc", "'": "apostrophe", ",": "comma", "-": "minus", ".": "dot", "/": "slash", ";": "semicolon",
    "=": "equal", "[": "bracket_left", "\\": "backslash", "]": "bracket_right", "`": "grave_accent",
    "\n": "ret", "\r": "ret", "\t": "tab", "\b": "backspace", "\x1b": "esc", "\x7f": "delete",
    **{character: character for character in "abcdefghijklmnopqrstuvwxyz0123456789"},
}  # fmt: skip
"""Characters of a single key, and QEMU's name of that key."""

_SHIFTED: Final = dict(zip('~!@#$%^&*()_+{}|:"<>?', "`1234567890-=[]\\;',./", strict=True)) | {
    letter.upper(): letter for letter in "abcdefghijklmnopqrstuvwxyz"
}
"""Characters that need Shift, and the character of the same key without it."""

_SYMBOLS: Final = {
    "space": " ", "exclam": "!", "quotedbl": '"', "numbersign": "#", "dollar": "$", "percent": "%",
    "ampersand": "&", "apostrophe": "'", "quoteright": "'", "parenleft": "(", "parenright": ")", "asterisk": "*",
    "plus": "+", "comma": ",", "minus": "-", "period": ".", "slash": "/", "colon": ":", "semicolon": ";",
    "less": "<", "equal": "=", "greater": ">", "question": "?", "at": "@", "bracketleft": "[", "backslash": "\\",
    "bracketright": "]", "asciicircum": "^", "underscore": "_", "grave": "`", "quoteleft": "`", "braceleft": "{",
    "bar": "|", "braceright": "}", "asciitilde": "~",
}  # fmt: skip
"""X keysyms of characters."""

_NAMED: Final = {
    "Return": "ret", "Tab": "tab", "BackSpace": "backspace", "Escape": "esc", "Delete": "delete",
    "Insert": "insert", "Home": "home", "End": "end", "Page_Up": "pgup", "Prior": "pgup", "Page_Down": "pgdn",
    "Next": "pgdn", "Up": "up", "Down": "down", "Left": "left", "Right": "right", "Menu": "menu",
    "Print": "print", "Sys_Req": "sysrq", "Pause": "pause", "Caps_Lock": "caps_lock", "Num_Lock": "num_lock",
    "Scroll_Lock": "scroll_lock", "Shift_L": "shift", "Shift_R": "shift_r", "Control_L": "ctrl",
    "Control_R": "ctrl_r", "Alt_L": "alt", "Alt_R": "alt_r", "ISO_Level3_Shift": "alt_r", "Super_L": "meta_l",
    "Super_R": "meta_r", "Meta_L": "meta_l", "Meta_R": "meta_r", "KP_Enter": "kp_enter",
    "KP_Add": "kp_add", "KP_Subtract": "kp_subtract", "KP_Multiply": "kp_multiply", "KP_Divide": "kp_divide",
    "KP_Decimal": "kp_decimal", "KP_Separator": "kp_comma", "KP_Equal": "kp_equals",
    "XF86AudioMute": "audiomute", "XF86AudioLowerVolume": "volumedown", "XF86AudioRaiseVolume": "volumeup",
    **{f"KP_{digit}": f"kp_{digit}" for digit in range(10)},
    **{f"F{number}": f"f{number}" for number in range(1, 13)},
}  # fmt: skip
"""X keysyms of the other keys, and QEMU's names."""


def keys_of_character(character: str) -> tuple[str, ...] | None:
    """Return the keys that type a character, in pressing order; `None` if a US keyboard has none."""
    if character in _PLAIN:
        return (_PLAIN[character],)
    if character in _SHIFTED:
        return (_SHIFT, _PLAIN[_SHIFTED[character]])
    return None


def keys_of_name(name: str) -> tuple[str, ...]:
    """Return the keys of an X keysym, in pressing order.

    :raises ValueError: if there is no such key.
    """
    if name in _NAMED:
        return (_NAMED[name],)
    keys = keys_of_character(_SYMBOLS.get(name, name))
    if keys is None:
        raise ValueError(
            f"there is no key {name!r} on a US keyboard; use X's names: a, Return, Control_L, F5"
        )
    return keys


def keys_of_text(text: str) -> list[tuple[str, ...]]:
    """Return the keys that type a text.

    :raises ValueError: naming the first character that cannot be typed.
    """
    strokes: list[tuple[str, ...]] = []
    for character in text.replace("\r\n", "\n"):
        keys = keys_of_character(character)
        if keys is None:
            raise ValueError(f"{character!r} cannot be typed on a US keyboard; nothing was typed")
        strokes.append(keys)
    return strokes


_KEY_INTERVAL = 0.008
"""Seconds between keystrokes. Guest programs queue only a few, and a slow one would drop the rest."""
_KEYBOARD = "i /xb 0x64"
"""Monitor command that reads the state of the keyboard controller, which changes nothing."""
_UNTAKEN = re.compile(r"= 0x[0-9a-f]*[13579bdf]\s*$")
_TAKING_SECONDS = 30.0
_ABSOLUTE = 1 << 15
_DOOR_SECONDS = 60.0
_NO_DOOR = "this guest has no control shell: build one with scripts/make-guest"

Event = dict[str, Any]


def key_event(key: str, *, down: bool) -> Event:
    """Return the event of a key press or release."""
    return {"type": "key", "data": {"down": down, "key": {"type": "qcode", "data": key}}}


def button_event(button: str, *, down: bool) -> Event:
    """Return the event of a button press or release."""
    return {"type": "btn", "data": {"down": down, "button": button}}


class QemuMachine:
    """Virtual machine run by QEMU. See `runtimes.Machine`."""

    def __init__(
        self,
        name: str,
        qemu: Qemu,
        image: BootImage,
        *,
        fork: "Callable[[QemuMachine], Awaitable[QemuMachine]]",
        stop: "Callable[[QemuMachine], Awaitable[None]]",
    ) -> None:
        self._name = name
        self.qemu = qemu
        """Process that runs it."""
        self._image = image
        self._fork = fork
        self._stop = stop
        self._screen_reader = ScreenReader(qemu.qmp)
        self._size: tuple[int, int] | None = None
        self._hands = anyio.Lock()
        self.gone = False
        """True once it was stopped."""

    @property
    def id(self) -> str:
        """Name, unique in its runtime."""
        return self._name

    def _check(self) -> None:
        if self.gone or self.qemu.qmp.ended.is_set():
            raise InstanceGone("the machine has ended")

    async def _look(self) -> bytes:
        self._check()
        ppm = await self._screen_reader.look()
        self._size = size_of(ppm)
        return ppm

    async def screenshot(self) -> Screen:
        """Return the current screen."""
        ppm = await self._look()
        return await anyio.to_thread.run_sync(to_screen, ppm)

    async def _send(self, events: Iterable[Event]) -> None:
        self._check()
        await self.qemu.qmp.execute("input-send-event", events=list(events))

    async def _wait_keys_read(self) -> None:
        """Wait until the guest has read every keystroke: the keyboard controller drops what its queue cannot hold.

        :raises RuntimeFailure: if the guest reads none.
        """
        try:
            with anyio.fail_after(_TAKING_SECONDS):
                while await self._untaken():  # noqa: ASYNC110  # a guest does not tell when it takes one
                    await anyio.sleep(_KEY_INTERVAL / 4)
        except TimeoutError:
            raise RuntimeFailure(
                "the guest does not read keystrokes; it hangs, or has not booted yet"
            ) from None

    async def _untaken(self) -> bool:
        state = await self.qemu.qmp.execute("human-monitor-command", command_line=_KEYBOARD)
        return _UNTAKEN.search(str(state)) is not None

    async def move(self, x: int, y: int) -> None:
        """Move the pointer.

        :raises ValueError: if the position is not on the screen.
        """
        if self._size is None:
            await self._look()
        assert self._size is not None
        width, height = self._size
        if not (0 <= x < width and 0 <= y < height):
            raise ValueError(f"({x}, {y}) is not on the screen, which is {width} x {height}")
        axes = {"x": (2 * x + 1) * _ABSOLUTE // (2 * width), "y": (2 * y + 1) * _ABSOLUTE // (2 * height)}
        async with self._hands:
            await self._send({"type": "abs", "data": {"axis": name, "value": axes[name]}} for name in axes)

    async def button(self, button: Button, *, down: bool) -> None:
        """Press or release a button at the pointer."""
        async with self._hands:
            await self._send([button_event(button, down=down)])

    async def scroll(self, clicks: int, *, horizontal: bool = False) -> None:
        """Turn the wheel at the pointer: up and right are positive. Horizontal scrolling is the wheel with Shift held."""
        up = clicks < 0 if horizontal else clicks > 0
        wheel = "wheel-up" if up else "wheel-down"
        async with self._hands:
            if horizontal:
                await self._send([key_event("shift", down=True)])
            for _ in range(abs(clicks)):
                await self._send([button_event(wheel, down=True), button_event(wheel, down=False)])
                await anyio.sleep(_KEY_INTERVAL)
            if horizontal:
                await self._send([key_event("shift", down=False)])

    async def key(self, name: str, *, down: bool) -> None:
        """Press or release a key.

        :raises ValueError: if there is no such key.
        """
        keys = keys_of_name(name)
        async with self._hands:
            await self._send(key_event(key, down=down) for key in (keys if down else reversed(keys)))
            await anyio.sleep(_KEY_INTERVAL / 2)
            await self._wait_keys_read()

    async def type(self, text: str, *, interval: float = 0.0) -> None:
        """Type a text, waiting `interval` seconds between keys.

        :raises ValueError: naming the first character that cannot be typed; then nothing was typed.
        """
        strokes = keys_of_text(text)
        self._check()
        async with self._hands:
            for keys in strokes:
                # Shielded: cancellation must not leave a key pressed.
                with anyio.CancelScope(shield=True):
                    await self._send(key_event(key, down=True) for key in keys)
                    await self._send(key_event(key, down=False) for key in reversed(keys))
                await anyio.sleep(max(interval, _KEY_INTERVAL))
                await self._wait_keys_read()

    async def exec(self, argv: Sequence[str], *, timeout: float | None = None) -> ExecResult:
        """Run a command inside, as root.

        :raises NotOffered: if the guest has no control shell.
        """
        self._enter()
        return await self.qemu.door.run(argv, _DOOR_SECONDS if timeout is None else timeout)

    async def read(self, path: str) -> bytes:
        """Return the content of a file; a relative path starts in root's home.

        :raises NotOffered: if the guest has no control shell.
        """
        self._enter()
        return await self.qemu.door.read(path, _DOOR_SECONDS)

    def _enter(self) -> None:
        self._check()
        if not self._image.door:
            raise NotOffered(_NO_DOOR)

    async def windows(self) -> list[Window]:
        """Return the windows, topmost last.

        :raises NotOffered: if the guest has no control shell.
        """
        self._enter()
        if not self._image.windows:
            raise NotOffered(
                "this guest cannot list its windows: scripts/make-guest desktop builds one that can"
            )
        result = await self.exec(self._image.windows)
        if result.exit_code:
            raise RuntimeFailure(
                f"the guest failed to list its windows: {result.stderr.decode(errors='replace')[:200]}"
            )
        return _windows(result.stdout.decode(errors="replace"))

    async def accessibility(self) -> str:
        """Refuse: no guest of ours provides an accessibility tree.

        :raises NotOffered: always.
        """
        self._enter()
        raise NotOffered("this guest has no accessibility tree: use the desktop runtime")

    async def fork(self) -> "QemuMachine":
        """Return an independent copy of the running machine, which is paused meanwhile.

        :raises CannotFork: if it cannot be copied; the machine continues unharmed.
        """
        self._check()
        async with self._hands, self._screen_reader.lock, self.qemu.door.lock:
            self._check()
            try:
                return await self._fork(self)
            except InstanceGone:
                raise
            except (RuntimeFailure, OSError) as error:
                raise CannotFork(f"the machine cannot be copied: {error}") from error

    async def stop(self) -> None:
        """Kill it and release its resources. Idempotent."""
        with anyio.CancelScope(shield=True):
            if not self.gone:
                self.gone = True
                await self.qemu.end()
                self._screen_reader.close()
                with contextlib.suppress(OSError):
                    await self._stop(self)


def _windows(lines: str) -> list[Window]:
    windows: list[Window] = []
    for line in lines.splitlines():
        focused, x, y, width, height, application, title = (line.split("\t", 6) + [""] * 7)[:7]
        try:
            bounds = int(x), int(y), int(width), int(height)
        except ValueError:
            raise RuntimeFailure(f"the guest's list of windows is malformed: {line[:80]!r}") from None
        windows.append(Window(title, application, *bounds, focused=focused == "1"))
    return windows
