"""What the data tools return."""

from typing import Literal, TypeAlias

from pydantic import Field

from mcp_servers.code._results import CodeResult
from mcp_servers.core._call import Output

__all__ = [
    "Column",
    "ColumnProfile",
    "DataRan",
    "FileProfile",
    "Frequent",
    "Inspected",
    "Link",
    "Slice",
    "TableProfile",
]


Value: TypeAlias = str | int | float | bool | list[object] | dict[str, object] | None
"""A value of a table, as JSON."""


class Frequent(Output):
    """A value that occurs often."""

    value: Value
    """The value."""
    count: int
    """How often it occurs."""


class ColumnProfile(Output):
    """What a column holds."""

    name: str
    """Its name."""
    type: str
    """Its type, in DuckDB's words."""
    nulls: int
    """How many values are missing."""
    distinct: int | None
    """How many different values there are; null for nested values."""
    min: Value
    """The least value."""
    max: Value
    """The greatest value."""
    mean: float | None
    """The mean of numbers."""
    top: list[Frequent]
    """The most frequent values; none where all are different."""


class TableProfile(Output):
    """A table in a file."""

    sheet: str | None
    """Its sheet, in a workbook."""
    note: str
    """What was done to read it."""
    row_count: int
    """How many rows it has."""
    profiled_rows: int
    """How many of them, from the first, the columns tell about."""
    column_count: int
    """How many columns it has."""
    columns: list[ColumnProfile]
    """What they hold; of very many the first ones."""
    sample: list[list[object]]
    """Its first rows."""


class FileProfile(Output):
    """A data file."""

    name: str
    """Its path below the folder."""
    kind: Literal["csv", "parquet", "excel", "json", "other"]
    """What it is."""
    size: int
    """Bytes."""
    unreadable: str | None = None
    """Why nothing could be read; null if it could."""
    tables: list[TableProfile] = Field(default_factory=list[TableProfile])
    """Its tables: one, or the sheets of a workbook."""


class Link(Output):
    """A column that may name rows of another table."""

    file: str
    """The file of the column."""
    sheet: str | None
    """Its sheet, in a workbook."""
    column: str
    """The column."""
    to_file: str
    """The other file."""
    to_sheet: str | None
    """Its sheet, in a workbook."""
    to_column: str
    """The column there, whose values are all different."""
    overlap: float
    """The share of the values here that are found there, from 0 to 1."""


class Inspected(Output):
    """What there is of data."""

    folder: str
    """Where it lies in the session: what `data_run` and the other tools open it by."""
    files: list[FileProfile]
    """The data files, by name."""
    links: list[Link]
    """How they may be joined, the surest first."""
    others: list[str]
    """Other files that lie there."""
    more: int
    """How many data files were not looked into."""


class Column(Output):
    """One column of a slice."""

    name: str
    """Its name."""
    type: str
    """Its type, in DuckDB's words."""


class Slice(Output):
    """Rows of a file."""

    file: str
    """The file, as it is called in the session."""
    sheet: str | None
    """The sheet, in a workbook."""
    columns: list[Column]
    """The columns, in order."""
    rows: list[list[object]]
    """The rows; dates, exact numbers and NaN are text, a blob is `x'…'`."""
    next_offset: int | None
    """Where to go on; null at the end."""
    note: str
    """What was done to read it."""


class DataRan(CodeResult):
    """Code that ran to its end, well or badly."""

    returned: dict[str, object] = Field(default_factory=dict[str, object])
    """The variables that were asked for; of a data frame `columns`, the first `rows` and `row_count`."""
    missing: list[str] = Field(default_factory=list[str])
    """Names that were asked for and are no variables."""
