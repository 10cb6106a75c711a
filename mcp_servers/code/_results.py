"""What the code tools return."""

from pydantic import Field

from mcp_servers.core._call import Output

__all__ = [
    "Column",
    "Failure",
    "Installed",
    "Picture",
    "Problem",
    "Queried",
    "Ran",
    "Shown",
    "Table",
    "Variable",
    "Variables",
]


class Problem(Output):
    """Why a query failed."""

    type: str
    """The class of the exception."""
    message: str
    """What it says."""


class Failure(Problem):
    """The exception that ended the code."""

    traceback: str
    """Where it came from."""


class Column(Output):
    """One column of a table."""

    name: str
    """Its name."""
    dtype: str
    """Its type, in the words of the library that made the table."""


class Table(Output):
    """A table, or its first rows."""

    columns: list[Column]
    """Its columns, in order."""
    rows: list[list[object]]
    """Its first rows; each holds one value per column."""
    total_rows: int | None
    """How many rows it has; null where that was not counted."""
    total_columns: int
    """How many columns it has."""


class Picture(Output):
    """A plot or other picture; the picture itself is shown beside the data."""

    mime: str
    """Its type."""
    size: int
    """Bytes."""
    resource: str
    """The resource to read it from."""


class Shown(Output):
    """Other rich output."""

    mime: str
    """Its type: `text/html`, `text/markdown`, `text/latex`, …"""
    text: str
    """Its content; long content is cut in the middle."""


class Ran(Output):
    """Code that ran to its end, well or badly."""

    value: str | None
    """The value of the last expression; null if there is none."""
    stdout: str
    """What it printed; long output is cut in the middle."""
    stderr: str
    """What it printed to standard error."""
    error: Failure | None
    """The exception that ended it; null if it ended well."""
    tables: list[Table] = Field(default_factory=list[Table])
    """Data frames and other tables that it showed."""
    images: list[Picture] = Field(default_factory=list[Picture])
    """Plots and pictures that it showed."""
    displays: list[Shown] = Field(default_factory=list[Shown])
    """Other rich output that it showed."""
    state_lost: bool = False
    """The Python session has ended, in this call or before it: a fresh one goes on, files are kept."""
    note: str = ""
    """What else there is to know."""


class Queried(Output):
    """The answer to a query."""

    columns: list[Column] = Field(default_factory=list[Column])
    """The columns of the result."""
    rows: list[list[object]] = Field(default_factory=list[list[object]])
    """Its first rows."""
    total_rows: int | None = 0
    """How many rows it has; null: more than were asked for."""
    error: Problem | None = None
    """Why the query failed; null if it did not."""


class Variable(Output):
    """One variable of the session."""

    name: str
    """Its name."""
    type: str
    """Its class."""
    summary: str
    """A short description: a value, a size, a signature."""


class Variables(Output):
    """The variables of the session."""

    variables: list[Variable]
    """By name."""


class Installed(Output):
    """What was installed."""

    wheels: list[str]
    """The files that were installed, dependencies included."""
    log: str
    """What the installer said."""
