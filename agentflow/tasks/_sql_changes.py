"""Changes that turn a database into a near copy: other values, deleted and added rows, nulls and ties."""

import random
import re
from collections.abc import Iterator, Sequence
from typing import Final

from agentflow.tasks._sql_copies import SqlSchema
from agentflow.trace import TaskColumn, TaskTable, digest

COPIES: Final = 3
"""Number of perturbed copies."""

_SMALL: Final = 5
"""Tables of a small database."""
_MAX_BOUNDARIES: Final = 3
_COMPARED: Final = re.compile(
    r"(?:[<>=]\s*|\bBETWEEN\s+)(\d+(?:\.\d+)?)\b(?:\s+AND\s+(\d+(?:\.\d+)?)\b)?", re.IGNORECASE
)
_NUMERIC: Final = re.compile(r"int|real|floa|doub|num|dec|money", re.IGNORECASE)
_WHOLE: Final = re.compile(r"int", re.IGNORECASE)


def changed_tables(schema: SqlSchema, query: str) -> list[TaskTable]:
    """Return the tables to change for a query: all of a small database, else those that the query names.

    Queries on a small database share their copies.
    """
    if len(schema.tables) <= _SMALL:
        return list(schema.tables)
    return used_tables(schema, query)


def used_tables(schema: SqlSchema, query: str) -> list[TaskTable]:
    """Return the tables that a query names, in the order of the schema."""
    words = {word.lower() for word in re.findall(r"\w+", query)}
    return [table for table in schema.tables if set(re.findall(r"\w+", table.name.lower())) <= words]


def boundaries(query: str) -> list[str]:
    """Return the first numbers with which a query compares something.

    >>> boundaries("SELECT name FROM rivers WHERE length > 500 AND depth BETWEEN 2 AND 4.5 LIMIT 3")
    ['500', '2', '4.5']
    """
    numbers = [number for match in _COMPARED.finditer(query) for number in match.groups() if number]
    return list(dict.fromkeys(numbers))[:_MAX_BOUNDARIES]


def changes_of(
    schema: SqlSchema, tables: Sequence[TaskTable], number: int, bounds: Sequence[str] = ()
) -> list[list[str]]:
    """Return the changes of a perturbed copy, in order: each a statement and those to try if it is refused.

    Together the copies change the measures of every row. References stay valid; other constraints are left to the database,
    which refuses statements that violate them.

    :param number: number of the copy, from 0.
    :param bounds: numbers that a query compares with: some measures become one less, the same and one more.
    """
    chance = random.Random(digest([schema.database, [table.name for table in tables], number]))
    changes: list[list[str]] = []
    for table in tables:
        rows = _Rows(schema, table)
        changes += filter(None, _updates(rows, number, chance))
        changes += filter(None, _bounded(rows, number, bounds))
        changes += filter(None, ([*_deleted(rows, number)], [*_added(rows, number)]))
    return changes


class _Rows:
    """Rows of a table, as SQL expressions."""

    def __init__(self, schema: SqlSchema, table: TaskTable) -> None:
        self.schema = schema
        self.name = _quoted(table.name)
        self.table = table

    @property
    def free(self) -> list[TaskColumn]:
        """Columns that are part of no key."""
        return [
            column for column in self.table.columns if column.name not in self.table.key and not column.refers
        ]

    @property
    def measures(self) -> list[TaskColumn]:
        """Numeric columns that are part of no key."""
        return [column for column in self.free if _NUMERIC.search(column.type)]

    def share(self, parts: int, number: int) -> str:
        """Return the condition of every n-th row."""
        return f"abs({self.row_number(self.name)}) % {parts} = {number % parts}"

    def row_number(self, table: str) -> str:
        """Return a whole number that identifies a row, or at least spreads the rows."""
        types = {column.name: column.type for column in self.table.columns}
        key = self.table.key
        if len(key) == 1 and _WHOLE.search(types.get(key[0], "")):
            return f"{table}.{_quoted(key[0])}"
        if self.schema.engine in ("sqlite", "duckdb"):
            return f"{table}.rowid"
        text = " || ".join(f"{table}.{_quoted(column)}::text" for column in key) or f"{table}::text"
        return f"hashtext({text})::bigint"


def _updates(rows: _Rows, number: int, chance: random.Random) -> Iterator[list[str]]:
    """Change numbers by small amounts, move other values to another row, set some to null, and make ties."""
    steps = [
        f"{_quoted(measure.name)} = {_quoted(measure.name)} + {chance.randint(1, 9)}"
        for measure in rows.measures
    ]
    yield _update(rows.name, steps, rows.share(COPIES, number))
    moved = [
        column
        for column in rows.table.columns
        if column.name not in rows.table.key and column not in rows.measures
    ]
    other = f"{rows.name} AS other WHERE {rows.row_number('other')} > {rows.row_number(rows.name)}"
    order = f"ORDER BY {rows.row_number('other')} LIMIT 1"
    shifts = [
        f"{_quoted(changed.name)} = (SELECT other.{_quoted(changed.name)} FROM {other} {order})"
        for changed in moved
    ]
    exists = f"EXISTS (SELECT 1 FROM {other})"
    yield _update(rows.name, shifts, f"{rows.share(COPIES + 1, number)} AND {exists}")
    if rows.free:
        empty = chance.sample(rows.free, min(2, len(rows.free)))
        yield _update(
            rows.name, [f"{_quoted(changed.name)} = NULL" for changed in empty], rows.share(5, number + 1)
        )
    if rows.measures:
        column = _quoted(chance.choice(rows.measures).name)
        tie = f"{column} = (SELECT max({column}) FROM {rows.name})"
        yield _update(rows.name, [tie], rows.share(6, number + 2))


def _bounded(rows: _Rows, number: int, bounds: Sequence[str]) -> Iterator[list[str]]:
    """Move measures next to the bounds, so that `>` and `>=`, or 5 and 6, give different results."""
    for at, bound in enumerate(bounds):
        sets = [f"{_quoted(measure.name)} = {bound} + {number - 1}" for measure in rows.measures]
        yield _update(rows.name, sets, rows.share(2 + len(bounds), at))


def _update(table: str, sets: Sequence[str], where: str) -> list[str]:
    """Return one statement for all columns, then one for each."""
    if not sets:
        return []
    several = [f"UPDATE {table} SET {', '.join(sets)} WHERE {where}"] if len(sets) > 1 else []
    return [*several, *(f"UPDATE {table} SET {assignment} WHERE {where}" for assignment in sets)]


def _deleted(rows: _Rows, number: int) -> Iterator[str]:
    """Delete a few rows to which no other row refers."""
    unused = [
        f"NOT EXISTS (SELECT 1 FROM {_quoted(table.name)} AS child WHERE child.{_quoted(column.name)} = "
        f"{rows.name}.{_quoted(_target(column, rows.table))})"
        for table in rows.schema.tables
        for column in table.columns
        if column.refers.partition(".")[0].lower() == rows.table.name.lower() and _target(column, rows.table)
    ]
    yield f"DELETE FROM {rows.name} WHERE {' AND '.join([rows.share(7, number + 3), *unused])}"


def _target(column: TaskColumn, table: TaskTable) -> str:
    return column.refers.partition(".")[2] or (table.key[0] if len(table.key) == 1 else "")


def _added(rows: _Rows, number: int) -> Iterator[str]:
    """Add copies of a few rows, under new keys."""
    table = rows.table
    values = {column.name: _quoted(column.name) for column in table.columns}
    if table.key:
        types = {column.name: column.type for column in table.columns}
        if len(table.key) != 1 or not _WHOLE.search(types.get(table.key[0], "")):
            return
        key = _quoted(table.key[0])
        values[table.key[0]] = f"{key} + (SELECT max({key}) FROM {rows.name})"
    names = ", ".join(map(_quoted, values))
    yield (
        f"INSERT INTO {rows.name} ({names}) SELECT {', '.join(values.values())} FROM {rows.name} "
        f"WHERE {rows.share(4, number + 1)}"
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
