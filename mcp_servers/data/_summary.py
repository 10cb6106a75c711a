"""What was found in a folder, as a model reads it."""

from collections.abc import Iterator

from mcp_servers.data._results import ColumnProfile, FileProfile, Inspected, TableProfile

__all__ = ["summary"]


def summary(found: Inspected, limit: int) -> str:
    """The files with their columns, and how they may be joined, in at most so many characters."""
    text = "\n".join(_lines(found))
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n… {len(text) - limit} of {len(text)} characters left out: inspect one file"


def _lines(found: Inspected) -> Iterator[str]:
    yield f"{len(found.files)} data files in {found.folder}" + (f", {found.more} more" if found.more else "")
    for link in found.links:
        here, there = _place(link.file, link.sheet), _place(link.to_file, link.to_sheet)
        yield f"link: {here}.{link.column} -> {there}.{link.to_column} ({link.overlap:.0%})"
    for file in found.files:
        yield from _file(file)
    if found.others:
        yield f"other files: {', '.join(found.others)}"


def _file(file: FileProfile) -> Iterator[str]:
    if file.unreadable:
        yield f"\n{file.name} ({file.kind}, {file.size} bytes): can't be read: {file.unreadable}"
    for table in file.tables:
        yield (
            f"\n{_place(file.name, table.sheet)} ({file.kind}, {file.size} bytes): {table.row_count} rows"
            + (f"; {table.note}" if table.note else "")
        )
        yield from (f"  {_column(column, table)}" for column in table.columns)


def _column(column: ColumnProfile, table: TableProfile) -> str:
    told = [column.type]
    if column.nulls:
        told.append(f"{column.nulls} missing")
    if column.distinct is not None:
        told.append(
            f"{column.distinct} different" if column.distinct < table.profiled_rows else "all different"
        )
    if column.min is not None:
        told.append(f"{column.min} … {column.max}")
    if column.mean is not None:
        told.append(f"mean {column.mean:.6g}")
    if column.top:
        told.append("mostly " + ", ".join(f"{one.value} ({one.count})" for one in column.top))
    return f"{column.name}: {'; '.join(told)}"


def _place(file: str, sheet: str | None) -> str:
    return f"{file}[{sheet}]" if sheet else file
