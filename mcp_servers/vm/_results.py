"""What the vm tools return."""

from pydantic import Field

from mcp_servers.core._call import Output

__all__ = [
    "Clicked",
    "Done",
    "Dragged",
    "Evaluated",
    "Failed",
    "HotkeyPressed",
    "KeyPressed",
    "Measured",
    "Moved",
    "Point",
    "Pressed",
    "Scrolled",
    "Seen",
    "Shot",
    "Size",
    "Typed",
    "Waited",
]


class Point(Output):
    """A place on the screen."""

    x: int
    """Pixels from the left edge."""
    y: int
    """Pixels from the upper edge."""


class Size(Output):
    """The size of the screen."""

    width: int
    """Pixels from left to right."""
    height: int
    """Pixels from top to bottom."""


class Seen(Output):
    """What is there to see after an action, where the settings ask for it; a picture is shown beside the data."""

    accessibility_tree: str | None = None
    """What applications tell of their windows: `role "name" state … [x,y,width,height]`; null where nothing is told."""


class Shot(Seen):
    """A picture of the screen, which is shown beside the data."""

    size: Size
    """Its size."""


class Clicked(Seen):
    """A click."""

    clicked: Point
    """Where."""
    button: str
    """With which button."""


class Moved(Seen):
    """A move of the pointer."""

    position: Point
    """Where it is now."""


class Pressed(Seen):
    """A button of the pointer was pressed or released."""

    button: str
    """Which."""


class Dragged(Seen):
    """A move with the left button held."""

    start: Point
    """Where it was pressed."""
    end: Point
    """Where it was released."""


class Scrolled(Seen):
    """A turn of the wheel."""

    position: Point
    """Where the pointer is."""
    clicks: int
    """How far; positive is up."""


class Typed(Seen):
    """A typed text."""

    typed: str
    """The text."""
    length: int
    """Its characters."""


class KeyPressed(Seen):
    """A key was pressed or released."""

    key: str
    """Which, by the name that X gives it."""


class HotkeyPressed(Seen):
    """Keys were pressed together."""

    keys: list[str]
    """Which, in the order they were pressed."""


class Waited(Seen):
    """A wait."""

    waited: float
    """Seconds; at most, where it waited for a still screen."""
    still: bool | None = None
    """The screen was still at the end; null where that was not asked for."""


class Done(Output):
    """The task was called done."""

    done: bool = True
    """Always true."""


class Failed(Output):
    """The task was called impossible."""

    fail: bool = True
    """Always true."""
    reason: str | None = None
    """Why."""


class Measured(Output):
    """What one comparison found."""

    func: str
    """The comparison."""
    score: float
    """0 to 1."""
    result: str | None = None
    """What was found on the machine; long texts are cut, pictures described."""
    expected: str | None = None
    """What was expected."""
    detail: str = ""
    """What is amiss, where it is."""


class Evaluated(Output):
    """What an evaluation found."""

    score: float
    """0 to 1: with `conj: and` the least of the results, with `or` the greatest."""
    results: list[Measured] = Field(default_factory=list[Measured])
    """One for each comparison."""
    conj: str = "and"
    """How they are put together."""
    last_action_failed: bool = False
    """The last action was `vm_fail`."""
    details: str = ""
    """What else there is to know."""
