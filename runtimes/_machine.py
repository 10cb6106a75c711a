"""What a machine promises: a screen to look at, a pointer and a keyboard to act with, and a way to look inside.

To who uses one it is the same whether it is a whole computer (`runtimes.qemu`) or a desktop in a process instance
(`runtimes.desktop`). Looking and acting need nothing inside the machine. Looking *inside* (files, programs,
windows, the accessibility tree) is for whoever judges what was done, never for the agent; a machine that was not built for
it refuses with `NotOffered`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from runtimes._protocol import Capabilities, ExecResult

__all__ = [
    "Button",
    "Machine",
    "MachineRuntime",
    "Screen",
    "Window",
]

Button = Literal["left", "middle", "right"]
"""The buttons of the pointer."""


@dataclass(frozen=True, slots=True)
class Screen:
    """What is on the screen at one instant."""

    png: bytes
    """The picture."""
    width: int
    """Pixels from left to right."""
    height: int
    """Pixels from top to bottom."""


@dataclass(frozen=True, slots=True)
class Window:
    """One window on the screen."""

    title: str
    """What stands in its bar."""
    application: str
    """The class of the program that owns it."""
    x: int
    """Its left edge."""
    y: int
    """Its upper edge."""
    width: int
    """Its width."""
    height: int
    """Its height."""
    focused: bool
    """It has the keyboard."""


class Machine(Protocol):
    """One machine. Every method raises `InstanceGone` after the end.

    Positions are pixels from the upper left corner. Keys go by the names of X's keysyms (`a`, `Return`, `Control_L`, `F5`).
    """

    @property
    def id(self) -> str:
        """A name that is unique in its runtime."""
        ...

    async def screenshot(self) -> Screen:
        """What is on the screen now."""
        ...

    async def move(self, x: int, y: int) -> None:
        """Put the pointer there."""
        ...

    async def button(self, button: Button, *, down: bool) -> None:
        """Press or release a button where the pointer is."""
        ...

    async def scroll(self, clicks: int, *, horizontal: bool = False) -> None:
        """Turn the wheel where the pointer is: up and right are positive."""
        ...

    async def key(self, name: str, *, down: bool) -> None:
        """Press or release a key.

        :raises ValueError: if there is no such key.
        """
        ...

    async def type(self, text: str, *, interval: float = 0.0) -> None:
        """Type a text, waiting `interval` seconds between keys.

        :raises ValueError: naming the first character that can't be typed; then nothing was typed.
        """
        ...

    async def exec(self, argv: Sequence[str], *, timeout: float | None = None) -> ExecResult:
        """Run a command inside.

        :raises NotOffered: if there is no way in.
        """
        ...

    async def read(self, path: str) -> bytes:
        """Bytes of a file inside.

        :raises NotOffered: if there is no way in.
        """
        ...

    async def windows(self) -> list[Window]:
        """The windows, the uppermost last.

        :raises NotOffered: if there is no way in.
        """
        ...

    async def accessibility(self) -> str:
        """The accessibility tree of what is on the screen, as indented lines `role "name" state … [x,y,w,h]`.

        :raises NotOffered: if there is no way in, or nothing that tells.
        """
        ...

    async def fork(self) -> "Machine":
        """An independent copy of the running machine.

        :raises CannotFork: if it can't be copied; the machine goes on unharmed.
        """
        ...

    async def stop(self) -> None:
        """End it and all that it holds. Fine if it has ended."""
        ...


class MachineRuntime(Protocol):
    """A place where machines are made. An async context manager: leaving it ends all of them."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can do here."""
        ...

    async def start(self) -> Machine:
        """A new machine in the state that every session begins with.

        :raises IsolationUnavailable: if its isolation, or a part it needs, can't be had on this machine.
        """
        ...
