"""Machine of a session: starting it, actions on it, their results, and key names."""

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final, TypeVar

import anyio
import anyio.to_thread
from pydantic import ValidationError

from agentflow.actors import Hosted
from agentflow.errors import ErrorKind, NotOffered, ToolFailure
from mcp_servers.core._call import CallContext, Image
from mcp_servers.core._failures import did_you_mean
from mcp_servers.core._sessions import Session
from mcp_servers.vm._results import MachineScreenshot, ScreenState, Size
from mcp_servers.vm._settings import VmSettings
from mcp_servers.vm._steps import wait_unchanging
from runtimes import Button, Machine, MachineRuntime, Screen
from runtimes.desktop import DesktopOptions

S = TypeVar("S", bound=ScreenState)

_SIZE = (1280, 800)
_DRAG_POINTS = 8
"""Intermediate points of a drag: programs start a drag only when the pointer moves."""
CLICK_SPACING_SECONDS = 0.5
"""Minimum time between two clicks of separate calls, in seconds. Programs treat quicker ones as a double-click, some even at
different positions, so a quick replay would be a different action.
"""


class MachineFactory:
    """Factory of a machine for each session: a desktop in its sandbox, or a virtual machine beside it."""

    def __init__(self) -> None:
        self._runtime: MachineRuntime | None = None
        self._host: Hosted[MachineRuntime] | None = None
        self._lock = anyio.Lock()

    async def start(self, session: Session, settings: VmSettings) -> Machine:
        """Start the session's machine.

        :raises IsolationUnavailable: if a program or package is missing; the message names it.
        :raises ToolFailure: `bad_arguments`, if its options are invalid.
        """
        if settings.machine == "qemu":
            return await (await self._started_runtime(settings)).start()
        from runtimes.desktop import open_desktop  # imported on first use

        width, height = settings.screen_size or _SIZE
        options = DesktopOptions(
            width=width,
            height=height,
            dpi=settings.desktop.dpi,
            accessibility=settings.desktop.accessibility,
            panel=settings.desktop.panel,
        )
        return await open_desktop(await session.instance(), options)

    async def close(self) -> None:
        """Stop the virtual machines' runtime."""
        if self._host is not None:
            await self._host.close()

    async def _started_runtime(self, settings: VmSettings) -> MachineRuntime:
        async with self._lock:
            if self._runtime is None:
                runtime = await anyio.to_thread.run_sync(_qemu, settings)
                host = Hosted(lambda: runtime)
                self._runtime = await host.open()
                self._host = host
            return self._runtime


def _qemu(settings: VmSettings) -> MachineRuntime:
    try:
        from runtimes.qemu import QemuRuntime, QemuSettings
    except ModuleNotFoundError as error:
        message = f"vm: machine `qemu` is not installed: {error}. Use `machine: desktop`."
        raise ToolFailure(ErrorKind.UNAVAILABLE, message) from None
    options = dict(settings.qemu)
    if settings.screen_size is not None:
        options.setdefault("screen_size", settings.screen_size)
    try:
        return QemuRuntime(QemuSettings.model_validate(options))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        hint = did_you_mean(name, QemuSettings.model_fields) if first["type"] == "extra_forbidden" else ""
        message = f"settings of vm: qemu.{name}: {first['msg']}.{hint}"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message) from None


@dataclass(slots=True)
class SessionMachine:
    """Machine of a session."""

    machine: Machine
    """Machine."""
    settings: VmSettings
    """Settings of the session."""
    width: int
    """Screen width in pixels."""
    height: int
    """Screen height in pixels."""
    failed: bool = False
    """The last action was `vm_fail`."""
    pointer: tuple[int, int] = (0, 0)
    """Last known position of the pointer."""
    clicked: float = -inf
    """Time of the last click or drag."""

    @classmethod
    async def on(cls, machine: Machine, settings: VmSettings) -> "SessionMachine":
        """Create it for a machine that shows its screen."""
        screen = await machine.screenshot()
        acting = cls(machine, settings, screen.width, screen.height)
        # The pointer's position is unknown at first, so it is moved to a known one.
        await acting.move(screen.width // 2, screen.height // 2)
        return acting

    async def fork(self) -> "SessionMachine":
        """Return the state for a copy of the machine.

        :raises CannotFork: if it cannot be copied.
        """
        return replace(self, machine=await self.machine.fork())

    def begin(self, tool: str, *points: tuple[int, int]) -> "SessionMachine":
        """Check that an action is allowed and on the screen, record it as the last one, and return the machine.

        :raises ToolFailure: `denied` or `bad_arguments`.
        """
        allowed = self.settings.allow_actions
        verb = tool.removeprefix("vm_")
        if allowed is not None and verb not in allowed:
            hint = f"Allowed: {', '.join(sorted(allowed)) or 'none'}."
            raise ToolFailure(ErrorKind.DENIED, f"{tool}: this action is not allowed here. {hint}")
        for x, y in points:
            if not (0 <= x < self.width and 0 <= y < self.height):
                where = f"x 0 to {self.width - 1}, y 0 to {self.height - 1}"
                raise ToolFailure(
                    ErrorKind.BAD_ARGUMENTS, f"{tool}: ({x}, {y}) is not on the screen: {where}."
                )
        self.failed = False
        return self

    async def move(self, x: int, y: int) -> None:
        """Move the pointer."""
        await self.machine.move(x, y)
        self.pointer = (x, y)

    async def click(self, button: Button, times: int) -> None:
        """Click at the pointer."""
        await self._wait_apart()
        for _ in range(times):
            await self.machine.button(button, down=True)
            await self.machine.button(button, down=False)
        self.clicked = anyio.current_time()

    async def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Press at one position, move, release at another."""
        await self.move(*start)
        await self._wait_apart()
        await self.machine.button("left", down=True)
        for step in range(1, _DRAG_POINTS + 1):
            await self.move(
                start[0] + (end[0] - start[0]) * step // _DRAG_POINTS,
                start[1] + (end[1] - start[1]) * step // _DRAG_POINTS,
            )
        await self.machine.button("left", down=False)
        self.clicked = anyio.current_time()

    async def _wait_apart(self) -> None:
        """Wait until a click cannot be part of the last call's."""
        await anyio.sleep_until(self.clicked + CLICK_SPACING_SECONDS)

    async def key(self, tool: str, name: str, *, down: bool) -> str:
        """Press or release a key, named by its X keysym.

        :raises ToolFailure: `bad_arguments`, if there is no such key.
        """
        symbol = keysym(tool, name)
        try:
            await self.machine.key(symbol, down=down)
        except ValueError:
            message = f"{tool}: this machine has no key {name!r}."
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message) from None
        return symbol

    async def press_together(self, tool: str, names: Sequence[str]) -> list[str]:
        """Press keys in order, then release them in reverse."""
        symbols = [keysym(tool, name) for name in names]
        pressed: list[str] = []
        try:
            for symbol, name in zip(symbols, names, strict=True):
                await self.key(tool, name, down=True)
                pressed.append(symbol)
        finally:
            with anyio.CancelScope(shield=True):
                for symbol in reversed(pressed):
                    await self.machine.key(symbol, down=False)
        return symbols

    async def tell(self, kind: type[S], context: CallContext, **fields: object) -> S:
        """Return the result of an action, with the screenshot or tree that the settings add."""
        if self.settings.screenshot == "after":
            screen = await self.machine.screenshot()
            with anyio.move_on_after(self.settings.settle_seconds):
                screen = await wait_unchanging(self.machine)
            self._show(screen, context)
        tree = await self._tree() if self.settings.accessibility == "after" else None
        return kind(accessibility_tree=tree, **fields)

    async def shot(self, context: CallContext) -> MachineScreenshot:
        """Take a screenshot."""
        screen = await self.machine.screenshot()
        self._show(screen, context)
        tree = None if self.settings.accessibility == "never" else await self._tree()
        return MachineScreenshot(size=Size(width=screen.width, height=screen.height), accessibility_tree=tree)

    def _show(self, screen: Screen, context: CallContext) -> None:
        self.width, self.height = screen.width, screen.height
        context.show(Image(screen.png))

    async def _tree(self) -> str | None:
        try:
            return await self.machine.accessibility()
        except NotOffered:
            return None


_ALIASES: Final = {
    "Alt_L": "alt altleft option",
    "Alt_R": "altright",
    "BackSpace": "backspace",
    "Caps_Lock": "capslock",
    "Control_L": "ctrl control ctrlleft",
    "Control_R": "ctrlright",
    "Delete": "del delete",
    "Down": "down",
    "End": "end",
    "Escape": "esc escape",
    "Home": "home",
    "Insert": "insert",
    "KP_Add": "add",
    "KP_Decimal": "decimal",
    "KP_Divide": "divide",
    "KP_Multiply": "multiply",
    "KP_Subtract": "subtract",
    "Left": "left",
    "Menu": "apps menu",
    "Num_Lock": "numlock",
    "Page_Down": "pagedown pgdn",
    "Page_Up": "pageup pgup",
    "Pause": "pause",
    "Print": "printscreen prntscrn prtsc",
    "Return": "enter return",
    "Right": "right",
    "Scroll_Lock": "scrolllock",
    "Shift_L": "shift shiftleft",
    "Shift_R": "shiftright",
    "Super_L": "cmd command meta super win winleft",
    "Super_R": "winright",
    "Tab": "tab",
    "Up": "up",
    "space": "space spacebar",
}
"""pyautogui's names of each X keysym."""
_NAMES: Final = {name: symbol for symbol, names in _ALIASES.items() for name in names.split()} | {
    **{f"f{number}": f"F{number}" for number in range(1, 25)},
    **{f"num{digit}": f"KP_{digit}" for digit in range(10)},
}
"""pyautogui's names, in lower case -> X keysyms."""
_PUNCTUATION: Final = """
space exclam quotedbl numbersign dollar percent ampersand apostrophe parenleft parenright asterisk plus comma minus period
slash colon semicolon less equal greater question at bracketleft backslash bracketright asciicircum underscore grave
braceleft bar braceright asciitilde
"""
"""X keysyms of the space and of `string.punctuation`, in this order."""
_CHARACTERS: Final = {
    **dict(zip(" " + string.punctuation, _PUNCTUATION.split(), strict=True)),
    "\n": "Return",
    "\r": "Return",
    "\t": "Tab",
}
_X: Final = {
    *_NAMES.values(),
    *_CHARACTERS.values(),
    "KP_Enter",
    "ISO_Left_Tab",
    "Hyper_L",
    "Meta_L",
    "Meta_R",
}


def keysym(tool: str, name: str) -> str:
    """Return the X keysym of a key.

    :raises ToolFailure: `bad_arguments`, naming the nearest valid one.
    """
    if len(name) == 1:
        return _CHARACTERS.get(name, name)
    if name in _X:
        return name
    keysym_name = _NAMES.get(name.lower().replace("_", "").replace(" ", ""))
    if keysym_name is not None:
        return keysym_name
    hint = (
        did_you_mean(name, _NAMES) or did_you_mean(name, _X) or " Known: enter, ctrl, pgdn, f5, a, Return, …"
    )
    if "+" in name:
        hint = " For several keys at once use vm_hotkey with a list."
    raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{tool}: no key {name!r}.{hint}")
