"""Results of the vm tools."""

from pydantic import Field

from mcp_servers.core._call import Output


class Point(Output):
    """Position on the screen."""

    x: int
    """Pixels from the left edge."""
    y: int
    """Pixels from the upper edge."""


class Size(Output):
    """Size of the screen."""

    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""


class ScreenState(Output):
    """Screen state after an action, if the settings ask for it; a picture is shown beside the data."""

    accessibility_tree: str | None = None
    """Accessibility tree: lines `role "name" state … [x,y,width,height]`; null if the applications provide none."""


class MachineScreenshot(ScreenState):
    """Screenshot, shown beside the data."""

    size: Size
    """Size of the screenshot."""


class Clicked(ScreenState):
    """Click."""

    clicked: Point
    """Position of the click."""
    button: str
    """Button of the click."""


class PointerMoved(ScreenState):
    """Move of the pointer."""

    position: Point
    """New position."""


class Pressed(ScreenState):
    """Press or release of a pointer button."""

    button: str
    """Name of the button."""


class Dragged(ScreenState):
    """Drag with the left button."""

    start: Point
    """Position of the press."""
    end: Point
    """Position of the release."""


class Scrolled(ScreenState):
    """Turn of the wheel."""

    position: Point
    """Position of the pointer."""
    clicks: int
    """Number of clicks; positive is up."""


class Typed(ScreenState):
    """Typed text."""

    typed: str
    """Text."""
    length: int
    """Number of characters."""


class KeyPressed(ScreenState):
    """Press or release of a key."""

    key: str
    """X keysym of the key."""


class HotkeyPressed(ScreenState):
    """Key combination."""

    keys: list[str]
    """Keys in pressing order."""


class Waited(ScreenState):
    """Wait."""

    waited: float
    """Seconds; the maximum if it waited for an unchanging screen."""
    still: bool | None = None
    """The screen was unchanging at the end; null if that was not requested."""


class TaskDone(Output):
    """Task reported as done."""

    done: bool = True
    """Always true."""


class TaskFailed(Output):
    """Task reported as impossible."""

    fail: bool = True
    """Always true."""
    reason: str | None = None
    """Reason."""


class ComparisonResult(Output):
    """Result of one comparison."""

    func: str
    """Name of the comparison."""
    score: float
    """Score from 0 to 1."""
    result: str | None = None
    """Value found on the machine; long texts are shortened, pictures described."""
    expected: str | None = None
    """Expected value."""
    detail: str = ""
    """Description of the difference."""


class EvaluationResult(Output):
    """Result of an evaluation."""

    score: float
    """Score from 0 to 1: with `conj: and` the minimum of the results, with `or` the maximum."""
    results: list[ComparisonResult] = Field(default_factory=list[ComparisonResult])
    """One entry for each comparison."""
    conj: str = "and"
    """Combination of the comparisons."""
    last_action_failed: bool = False
    """The last action was `vm_fail`."""
    details: str = ""
    """Further details."""
