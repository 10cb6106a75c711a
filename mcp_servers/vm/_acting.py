"""One session's machine: acting on it, and what results show of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

import anyio

from agentflow.errors import ErrorKind, NotOffered, ToolFailure
from mcp_servers.core._call import CallContext, Image
from mcp_servers.vm._keys import keysym
from mcp_servers.vm._results import Seen, Shot, Size
from mcp_servers.vm._settings import VmSettings
from mcp_servers.vm._still import until_still
from runtimes import Button, Machine, Screen

__all__ = ["Acting"]

S = TypeVar("S", bound=Seen)

_STEPS = 8
"""Places that a drag passes on its way: programs begin a drag only when the pointer moves."""
APART_SECONDS = 0.5
"""So far apart, clicks are two. Programs take quicker ones for a double-click, some of them wherever the second one is; so
two calls would be another action when they are done again more quickly."""


@dataclass(slots=True)
class Acting:
    """A session's machine."""

    machine: Machine
    """The machine."""
    settings: VmSettings
    """The session's settings."""
    width: int
    """Pixels from left to right."""
    height: int
    """Pixels from top to bottom."""
    failed: bool = False
    """The last action was `vm_fail`."""
    pointer: tuple[int, int] = (0, 0)
    """Where the pointer was put last."""
    clicked: float = -inf
    """When a call had clicked or dragged last."""

    @classmethod
    async def on(cls, machine: Machine, settings: VmSettings) -> "Acting":
        """Begin to act on a machine: it must show its screen."""
        screen = await machine.screenshot()
        acting = cls(machine, settings, screen.width, screen.height)
        # Nobody says where a pointer is: it is put somewhere, so that it is known.
        await acting.move(screen.width // 2, screen.height // 2)
        return acting

    async def fork(self) -> "Acting":
        """The same for a copy of the machine.

        :raises CannotFork: if it can't be copied.
        """
        return replace(self, machine=await self.machine.fork())

    def begin(self, tool: str, *points: tuple[int, int]) -> None:
        """Check that an action may be done, and that it is on the screen; it is then the last one.

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
        """Put the pointer there."""
        await self.machine.move(x, y)
        self.pointer = (x, y)

    async def click(self, button: Button, times: int) -> None:
        """Click where the pointer is."""
        await self._apart()
        for _ in range(times):
            await self.machine.button(button, down=True)
            await self.machine.button(button, down=False)
        self.clicked = anyio.current_time()

    async def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Press at one place, move, release at another."""
        await self.move(*start)
        await self._apart()
        await self.machine.button("left", down=True)
        for step in range(1, _STEPS + 1):
            await self.move(
                start[0] + (end[0] - start[0]) * step // _STEPS,
                start[1] + (end[1] - start[1]) * step // _STEPS,
            )
        await self.machine.button("left", down=False)
        self.clicked = anyio.current_time()

    async def _apart(self) -> None:
        """Wait until a click is no part of the last call's."""
        await anyio.sleep_until(self.clicked + APART_SECONDS)

    async def key(self, tool: str, name: str, *, down: bool) -> str:
        """Press or release a key; its name for X.

        :raises ToolFailure: `bad_arguments`, if there is none.
        """
        symbol = keysym(tool, name)
        try:
            await self.machine.key(symbol, down=down)
        except ValueError:
            message = f"{tool}: this machine has no key {name!r}."
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message) from None
        return symbol

    async def together(self, tool: str, names: Sequence[str]) -> list[str]:
        """Press keys one after the other, then release them in reverse."""
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
        """The result of an action, with what the settings ask to be seen after it."""
        if self.settings.screenshot == "after":
            screen = await self.machine.screenshot()
            with anyio.move_on_after(self.settings.settle_seconds):
                screen = await until_still(self.machine)
            self._show(screen, context)
        tree = await self._tree() if self.settings.accessibility == "after" else None
        return kind(accessibility_tree=tree, **fields)

    async def shot(self, context: CallContext) -> Shot:
        """The screen now."""
        screen = await self.machine.screenshot()
        self._show(screen, context)
        tree = None if self.settings.accessibility == "never" else await self._tree()
        return Shot(size=Size(width=screen.width, height=screen.height), accessibility_tree=tree)

    def _show(self, screen: Screen, context: CallContext) -> None:
        self.width, self.height = screen.width, screen.height
        context.show(Image(screen.png))

    async def _tree(self) -> str | None:
        try:
            return await self.machine.accessibility()
        except NotOffered:
            return None
