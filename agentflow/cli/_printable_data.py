"""Output with rich whose data can't control the terminal. It is imported where something is printed, because rich is heavy."""

from collections.abc import Generator

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.segment import Segment

from agentflow._terminal import printable


class PrintableData(RenderHook):
    """Hook of a console that removes control characters from all texts printed on it; rich's own styles stay."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Wrap everything that is about to be printed."""
        return [Printable(part) for part in renderables]


class Printable:
    """Something to print, without control characters in its texts."""

    def __init__(self, part: RenderableType) -> None:
        self._part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Generator[Segment]:
        for segment in console.render(self._part, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
