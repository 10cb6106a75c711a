"""Progress on a terminal or in a notebook. It is imported where something is shown, because rich is heavy."""

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import StringIO
from typing import Protocol, TypeAlias

import anyio
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from agentflow._terminal import printable
from agentflow.runs._progress import RunStatus
from agentflow.runs._report_texts import failures_text, one_line, speed_text, usage_text

FRAME_SECONDS = 0.25
"""Interval at which progress is read and shown."""
_BAR_WIDTH = 40
_ROW_BAR_WIDTH = 16
_NOTEBOOK_WIDTH = 100
_SHOWN_NOTES = 4
_NOTE_CHARS = 200
_ROW_CHARS = 400
_HTML = '<pre style="white-space:pre-wrap;line-height:normal;margin:0">{code}</pre>'


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


class ProgressScreen(Protocol):
    """Part of a terminal or a notebook in which progress is shown."""

    def show(self, part: RenderableType) -> None:
        """Replace its content."""
        ...

    def keep(self, part: RenderableType) -> None:
        """Set the content that stays at the end; without any, a terminal is left as it was."""
        ...


@contextmanager
def open_screen() -> Generator[ProgressScreen | None]:
    """Yield a screen if this process has one: a notebook, or a terminal on stderr; else `None`.

    See docs/supervisor.md.
    """
    shell = _shell()
    # Only a shell with a kernel has a notebook; IPython on a terminal has none.
    if getattr(shell, "kernel", None) is not None:
        yield _Notebook()
    elif on_terminal():
        with open_terminal() as screen:
            yield screen
    else:
        yield None


def on_terminal() -> bool:
    """Return true if stderr is a terminal.

    See docs/supervisor.md.
    """
    # A program without a console has no stderr, and a closed one can't be asked.
    try:
        return sys.stderr is not None and sys.stderr.isatty()  # pyright: ignore[reportUnnecessaryComparison]
    except ValueError:
        return False


@contextmanager
def open_terminal() -> Generator[ProgressScreen]:
    """Yield the terminal on stderr as a screen; lines of other code are printed above it.

    See docs/supervisor.md.
    """
    console = Console(stderr=True, highlight=False, markup=False)
    live = Live(console=console, auto_refresh=False, transient=True)
    screen = _Terminal(console, live)
    try:
        with live:
            yield screen
    finally:
        if screen.last is not None:
            console.print(Printable(screen.last))


class _Terminal:
    def __init__(self, console: Console, live: Live) -> None:
        self.last: RenderableType | None = None
        self._console = console
        self._live = live
        self._shown: tuple[int, list[Segment]] = 0, []

    def show(self, part: RenderableType) -> None:
        # A frame that looks like the one before is not written again: it would flicker, and fill the log of a session.
        width, height = self._console.size
        lines = self._console.render_lines(Printable(part), pad=False)
        if len(lines) > height:
            # Lines that have left the terminal could not be replaced.
            lines = [*lines[: height - 1], [Segment("…")]]
        frame = [segment for line in lines for segment in (Segment.line(), *line)][1:]
        if (width, frame) != self._shown:
            self._shown = width, frame
            self._live.update(Segments(frame), refresh=True)

    def keep(self, part: RenderableType) -> None:
        self.last = part


class _DisplayHandle(Protocol):
    """Output of a notebook cell."""

    def update(self, bundle: Mapping[str, str], *, raw: bool) -> None: ...


class _Notebook:
    """An output of the current cell, replaced in place."""

    def __init__(self) -> None:
        display: Callable[..., _DisplayHandle] = import_module("IPython.display").display
        self._handle = display(_bundle(""), raw=True, display_id=True)

    def show(self, part: RenderableType) -> None:
        self._handle.update(_bundle(part), raw=True)

    def keep(self, part: RenderableType) -> None:
        self.show(part)


def _shell() -> object | None:
    """Return the IPython shell of this process, if there is one; nothing is imported for it."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def _bundle(part: RenderableType) -> dict[str, str]:
    """Return something to print as HTML and as text."""
    console = Console(
        file=StringIO(), record=True, width=_NOTEBOOK_WIDTH, highlight=False, markup=False,
        force_terminal=False, force_jupyter=False,
    )  # fmt: skip
    console.print(Printable(part))
    html = console.export_html(inline_styles=True, code_format=_HTML, clear=False)
    return {"text/html": html, "text/plain": console.export_text()}


def run_table(status: RunStatus, notes: Sequence[str] = (), **rows: str) -> Table:
    """Return a table of a progress bar, the given rows, the consumption, and notes about the input.

    See docs/supervisor.md.
    """
    failed = f", {status.calls_failed} failed" if status.calls_failed else ""
    all_rows = {
        **rows,
        "speed": speed_text(status.rate, status.remaining),
        "model": f"{status.calls_in_flight} calls in flight{failed}, {usage_text(status.tokens, status.cost)}",
        "failures": failures_text(status.failures),
    }
    table = progress_table(status.phase.value, status.seeds, status.done, **all_rows)
    for note in notes[:_SHOWN_NOTES]:
        table.add_row("input", Text(one_line(note, _NOTE_CHARS)))
    return table


BarRow: TypeAlias = tuple[float, float, str]
"""Row with a bar of its own: the finished part, all of it, and a text."""


def progress_table(phase: str, total: int, done: int, **rows: str | BarRow) -> Table:
    """Return a table of a progress bar and the given rows.

    See docs/supervisor.md.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(phase, _bar(done, total, _BAR_WIDTH))
    for name, row in rows.items():
        if isinstance(row, str):
            table.add_row(name, Text(one_line(row, _ROW_CHARS)))
        else:
            cell = Table.grid(padding=(0, 1))
            cell.add_row(_bar(row[0], row[1], _ROW_BAR_WIDTH), Text(one_line(row[2], _ROW_CHARS)))
            table.add_row(name, cell)
    return table


def _bar(done: float, total: float, width: int) -> Constrain:
    return Constrain(ProgressBar(total=total or 1, completed=done), width)


async def show_progress(screen: ProgressScreen, render: Callable[[], RenderableType]) -> None:
    """Show the current progress until it is cancelled, and then once more: a short run ends before its second frame.

    See docs/supervisor.md.
    """
    try:
        while True:
            screen.show(render())
            await anyio.sleep(FRAME_SECONDS)
    except anyio.get_cancelled_exc_class():
        screen.show(render())
        raise
