"""Machine contract: a screen, a pointer and a keyboard, and inspection of the inside for evaluators.

A machine is a virtual machine (`runtimes.qemu`) or a desktop in a process instance (`runtimes.desktop`). Screen, pointer
and keyboard need nothing inside the machine. Inspection (files, programs, windows, accessibility tree) is for
evaluators, never for the agent; a machine without support for it raises `NotOffered`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from runtimes._protocol import Capabilities, ExecResult

Button = Literal["left", "middle", "right"]
"""Buttons of the pointer."""


@dataclass(frozen=True, slots=True)
class Screen:
    """Screenshot."""

    png: bytes
    """Image as PNG."""
    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""


@dataclass(frozen=True, slots=True)
class Window:
    """Window on the screen."""

    title: str
    """Title."""
    application: str
    """Window class of its program."""
    x: int
    """Left edge in pixels."""
    y: int
    """Top edge in pixels."""
    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""
    focused: bool
    """It has the keyboard focus."""


class Machine(Protocol):
    """Machine with a screen. Every method raises `InstanceGone` after the end.

    Positions are pixels from the upper left corner. Keys are named by X keysyms (`a`, `Return`, `Control_L`, `F5`).
    Example::
        await machine.move(640, 400)
        await machine.button("left", down=True)
        await machine.button("left", down=False)
        await machine.type("hello")
    """

    @property
    def id(self) -> str:
        """Name, unique in its runtime."""
        ...

    async def screenshot(self) -> Screen:
        """Take a screenshot."""
        ...

    async def move(self, x: int, y: int) -> None:
        """Move the pointer."""
        ...

    async def button(self, button: Button, *, down: bool) -> None:
        """Press or release a button at the pointer."""
        ...

    async def scroll(self, clicks: int, *, horizontal: bool = False) -> None:
        """Turn the wheel at the pointer: up and right are positive."""
        ...

    async def key(self, name: str, *, down: bool) -> None:
        """Press or release a key.

        :raises ValueError: if there is no such key.
        """
        ...

    async def type(self, text: str, *, interval: float = 0.0) -> None:
        """Type a text, waiting `interval` seconds between keys.

        :raises ValueError: naming the first character that cannot be typed; then nothing was typed.
        """
        ...

    async def exec(self, argv: Sequence[str], *, timeout: float | None = None) -> ExecResult:
        """Run a command inside.

        :raises NotOffered: if the machine has no support for inspection.
        """
        ...

    async def read(self, path: str) -> bytes:
        """Return the content of a file inside.

        :raises NotOffered: if the machine has no support for inspection.
        """
        ...

    async def windows(self) -> list[Window]:
        """Return the windows, topmost last.

        :raises NotOffered: if the machine has no support for inspection.
        """
        ...

    async def accessibility(self) -> str:
        """Return the accessibility tree of the screen, as indented lines `role "name" state … [x,y,w,h]`.

        :raises NotOffered: if the machine provides none.
        """
        ...

    async def fork(self) -> "Machine":
        """Return an independent copy of the running machine.

        :raises CannotFork: if it cannot be copied; the machine continues unharmed.
        """
        ...

    async def stop(self) -> None:
        """Stop it and release its resources. Idempotent."""
        ...


class MachineRuntime(Protocol):
    """Factory of machines. An async context manager: leaving it stops all of them."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities on this machine."""
        ...

    async def start(self) -> Machine:
        """Start a machine in the initial state of a session.

        :raises IsolationUnavailable: if this machine lacks the isolation or a program.
        """
        ...
