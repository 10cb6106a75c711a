"""Results of the code tools."""

from pydantic import Field

from mcp_servers.core._call import Output


class QueryError(Output):
    """The error of a failed query."""

    type: str
    """Class of the exception."""
    message: str
    """Message of the exception."""


class CodeError(QueryError):
    """The exception that ended the code."""

    traceback: str
    """The traceback."""


class TableColumn(Output):
    """One column of a table."""

    name: str
    """Name of the column."""
    dtype: str
    """Type, as named by the library that made the table."""


class DisplayedTable(Output):
    """A table, or its first rows."""

    columns: list[TableColumn]
    """Columns, in order."""
    rows: list[list[object]]
    """First rows, each with one value per column."""
    total_rows: int | None
    """Number of rows; null if not counted."""
    total_columns: int
    """Number of columns."""


class ShownImage(Output):
    """A plot or other image; the image itself is shown beside the data."""

    mime: str
    """MIME type."""
    size: int
    """Size in bytes."""
    resource: str
    """URI of the resource."""


class RichOutput(Output):
    """Other rich output."""

    mime: str
    """MIME type: `text/html`, `text/markdown`, `text/latex`, …"""
    text: str
    """Content; truncated in the middle if long."""


class CodeResult(Output):
    """Code that ran to its end, successfully or not."""

    value: str | None
    """Value of the last expression; null if there is none."""
    stdout: str
    """Standard output; truncated in the middle if long."""
    stderr: str
    """Standard error."""
    error: CodeError | None
    """The exception that ended the code; null if there was none."""
    tables: list[DisplayedTable] = Field(default_factory=list[DisplayedTable])
    """Data frames and other tables that were displayed."""
    images: list[ShownImage] = Field(default_factory=list[ShownImage])
    """Plots and images that were displayed."""
    displays: list[RichOutput] = Field(default_factory=list[RichOutput])
    """Other rich output."""
    state_lost: bool = False
    """The Python session has ended, in this call or before it; a new one takes over, and files are kept."""
    note: str = ""
    """Further information."""


class CodeQueryResult(Output):
    """Result of a query."""

    columns: list[TableColumn] = Field(default_factory=list[TableColumn])
    """Columns of the result."""
    rows: list[list[object]] = Field(default_factory=list[list[object]])
    """First rows."""
    total_rows: int | None = 0
    """Number of rows; null if there are more than were asked for."""
    error: QueryError | None = None
    """The error if the query failed, else null."""


class Variable(Output):
    """One variable of the session."""

    name: str
    """Name of the variable."""
    type: str
    """Class of the value."""
    summary: str
    """A short description: a value, a size, a signature."""


class VariableList(Output):
    """The variables of the session."""

    variables: list[Variable]
    """Variables in the order of their names."""


class InstallResult(Output):
    """Installed packages."""

    wheels: list[str]
    """Installed wheel files, including dependencies."""
    log: str
    """Output of the installer."""
