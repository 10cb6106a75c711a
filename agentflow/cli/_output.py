"""Output of commands: exit statuses, text on stdout, and readers that close it."""

import os
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec

from agentflow._terminal import escape_controls

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


WIDTH = 110
"""Width of tables that are not printed on a terminal."""
UNLIMITED = 10_000
"""Width that no table of results reaches: their labels are never cut in files and pipes."""


class Exit(IntEnum):
    """Exit statuses of all commands."""

    DONE = 0
    """Finished."""
    FAILED = 1
    """An error; one line on stderr gives the reason."""
    REFUSED = 2
    """The settings or arguments can't be used; nothing was begun."""
    STOPPED = 3
    """Stopped early and cleanly (budget, model, disk, request); the same command resumes."""
    INTERRUPTED = 130
    """Ended cleanly by Ctrl-C, a signal or a closed terminal; the same command resumes."""


EXITS = """exit status:
  0    done
  1    failed; one line on stderr gives the reason
  2    the settings or arguments can't be used; nothing was begun
  3    stopped early (budget, model, journal, agentflow ctl stop); the same command resumes
  130  interrupted (Ctrl-C, SIGTERM, closed terminal or pipe); the same command resumes"""


def write_out(write: Callable[[], None]) -> bool:
    """Call a function that writes on stdout; return `False` if the reader has closed it."""
    try:
        write()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader is gone; prevent another attempt to flush the buffer at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


@contextmanager
def buffered_console(width: int = WIDTH) -> "Generator[Console]":
    """Yield a console whose output is written on stdout at the end of the block.

    :param width: width if stdout is no terminal.
    :raises BrokenPipeError: if the reader has closed it.
    """
    from rich.console import Console

    from agentflow.runs import PrintableData

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=width)
    console.push_render_hook(PrintableData())
    # Rich would exit the program on a broken pipe, so it does not write by itself.
    with console.capture() as captured:
        yield console
    sys.stdout.write(captured.get())


def text_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> "Table":
    """Return a table of plain texts; long ones continue on the next line."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def print_progress(line: str) -> None:
    """Print a line on stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def print_json(record: object) -> None:
    """Print a record on stdout as one line of JSON."""
    sys.stdout.write(escape_controls(msgspec.json.encode(record).decode()) + "\n")


def print_wide(*parts: object, width: int = WIDTH) -> None:
    """Print on stdout with rich.

    :param width: width if stdout is no terminal.
    :raises BrokenPipeError: if the reader has closed it.
    """
    with buffered_console(width) as console:
        for part in parts:
            console.print(part)
