"""Results of the data tools, and the text form of an inspection for a model."""

from collections.abc import Iterator
from typing import Literal, TypeAlias

from pydantic import Field

from mcp_servers.code._results import CodeResult
from mcp_servers.core._call import Output

Value: TypeAlias = str | int | float | bool | list[object] | dict[str, object] | None
"""A value of a table, as JSON."""


class Frequent(Output):
    """A value that occurs often."""

    value: Value
    """The value."""
    count: int
    """Number of occurrences."""


class ColumnProfile(Output):
    """Statistics of a column."""

    name: str
    """Name of the column."""
    type: str
    """DuckDB type."""
    nulls: int
    """Number of missing values."""
    distinct: int | None
    """Number of distinct values; null for nested values."""
    min: Value
    """Minimum."""
    max: Value
    """Maximum."""
    mean: float | None
    """Mean of numeric values."""
    top: list[Frequent]
    """Most frequent values; empty if all are distinct."""


class TableProfile(Output):
    """A table in a file."""

    sheet: str | None
    """Sheet of a workbook."""
    note: str
    """Note on how the file was read."""
    row_count: int
    """Number of rows."""
    profiled_rows: int
    """Number of rows, from the first, used for the statistics."""
    column_count: int
    """Number of columns."""
    columns: list[ColumnProfile]
    """Statistics of the columns, up to a limit."""
    sample: list[list[object]]
    """First rows."""


class FileProfile(Output):
    """A data file."""

    name: str
    """Path relative to the directory."""
    kind: Literal["csv", "parquet", "excel", "json", "other"]
    """File format."""
    size: int
    """Size in bytes."""
    unreadable: str | None = None
    """Reason if the file could not be read, else null."""
    tables: list[TableProfile] = Field(default_factory=list[TableProfile])
    """Tables: one, or the sheets of a workbook."""


class ColumnLink(Output):
    """A column that may refer to rows of another table."""

    file: str
    """File of the column."""
    sheet: str | None
    """Sheet of a workbook."""
    column: str
    """Name of the column."""
    to_file: str
    """Referred file."""
    to_sheet: str | None
    """Sheet of a workbook."""
    to_column: str
    """Referred column, whose values are all distinct."""
    overlap: float
    """Share of the values that occur in the referred column, from 0 to 1."""


class Inspected(Output):
    """Data files of a directory."""

    folder: str
    """Path in the session, for `data_run` and other tools."""
    files: list[FileProfile]
    """Data files, by name."""
    links: list[ColumnLink]
    """Columns by which they may be joined, the most likely first."""
    others: list[str]
    """Other files."""
    more: int
    """Number of data files that were not inspected."""


class SliceColumn(Output):
    """One column of a slice."""

    name: str
    """Name of the column."""
    type: str
    """DuckDB type."""


class Slice(Output):
    """Rows of a file."""

    file: str
    """Path of the file in the session."""
    sheet: str | None
    """Sheet of a workbook."""
    columns: list[SliceColumn]
    """Columns in order."""
    rows: list[list[object]]
    """Rows; dates, exact numbers and NaN are text, a blob is `x'…'`."""
    next_offset: int | None
    """The `offset` with which to continue; null at the end."""
    note: str
    """Note on how the file was read."""


class DataRan(CodeResult):
    """Result of code that ran, successfully or not."""

    returned: dict[str, object] = Field(default_factory=dict[str, object])
    """Requested variables; for a data frame `columns`, the first `rows` and `row_count`."""
    missing: list[str] = Field(default_factory=list[str])
    """Requested names that are not variables."""


def summary(inspected: Inspected, limit: int) -> str:
    """Format an inspection for a model, in at most `limit` characters."""
    text = "\n".join(_lines(inspected))
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n… {len(text) - limit} of {len(text)} characters left out: inspect one file"


def _lines(inspected: Inspected) -> Iterator[str]:
    yield f"{len(inspected.files)} data files in {inspected.folder}" + (
        f", {inspected.more} more" if inspected.more else ""
    )
    for link in inspected.links:
        here, there = _location(link.file, link.sheet), _location(link.to_file, link.to_sheet)
        yield f"link: {here}.{link.column} -> {there}.{link.to_column} ({link.overlap:.0%})"
    for file in inspected.files:
        yield from _file(file)
    if inspected.others:
        yield f"other files: {', '.join(inspected.others)}"


def _file(file: FileProfile) -> Iterator[str]:
    if file.unreadable:
        yield f"\n{file.name} ({file.kind}, {file.size} bytes): can't be read: {file.unreadable}"
    for table in file.tables:
        yield (
            f"\n{_location(file.name, table.sheet)} ({file.kind}, {file.size} bytes): {table.row_count} rows"
            + (f"; {table.note}" if table.note else "")
        )
        yield from (f"  {_column(column, table)}" for column in table.columns)


def _column(column: ColumnProfile, table: TableProfile) -> str:
    facts = [column.type]
    if column.nulls:
        facts.append(f"{column.nulls} missing")
    if column.distinct is not None:
        facts.append(
            f"{column.distinct} different" if column.distinct < table.profiled_rows else "all different"
        )
    if column.min is not None:
        facts.append(f"{column.min} … {column.max}")
    if column.mean is not None:
        facts.append(f"mean {column.mean:.6g}")
    if column.top:
        facts.append("mostly " + ", ".join(f"{entry.value} ({entry.count})" for entry in column.top))
    return f"{column.name}: {'; '.join(facts)}"


def _location(file: str, sheet: str | None) -> str:
    return f"{file}[{sheet}]" if sheet else file
