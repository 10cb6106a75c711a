"""Actions on one session's machine, and their results."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

import anyio

from agentflow.errors import ErrorKind, NotOffered, ToolFailure
from mcp_servers.core._call import CallContext, Image
from mcp_servers.vm._keys import keysym
from mcp_servers.vm._results import MachineScreenshot, ScreenState, Size
from mcp_servers.vm._screen_change import wait_unchanging
from mcp_servers.vm._settings import VmSettings
from runtimes import Button, Machine, Screen

S = TypeVar("S", bound=ScreenState)

_STEPS = 8
"""Intermediate points of a drag: programs start a drag only when the pointer moves."""
CLICK_SPACING_SECONDS = 0.5
"""Minimum time between two clicks of separate calls, in seconds. Programs treat quicker ones as a double-click, some even at
different positions, so a quick replay would be a different action.
"""


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

    def begin(self, tool: str, *points: tuple[int, int]) -> None:
        """Check that an action is allowed and on the screen, and record it as the last one.

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
        for step in range(1, _STEPS + 1):
            await self.move(
                start[0] + (end[0] - start[0]) * step // _STEPS,
                start[1] + (end[1] - start[1]) * step // _STEPS,
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
