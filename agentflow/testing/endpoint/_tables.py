"""Tables as the fake model sees them, and the queries and programs that it writes about them.

A solution carries its question in a comment; another solution of the same question is written in another way.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from agentflow.testing.endpoint._prompt import Prompt

_TASK_TABLE = re.compile(r"^(\S+) \(\d+ rows\)\n((?:  .*\n?)+)", re.MULTILINE)
_TASK_COLUMN = re.compile(r"^  (\w+) ([^,\n]*?)(, primary key)?(?: -> (\w+)\.(\w+))?$", re.MULTILINE)
_SCHEMA_TABLE = re.compile(r"^(\w+) \[\d+ rows\]: (.*)\n((?:  .*(?:\n|$))*)", re.MULTILINE)
_SCHEMA_COLUMN = re.compile(r"(?:^|, )(\w+) (\w+)")
_SCHEMA_REFERENCE = re.compile(r"(\w+) -> (\w+)\((\w+)\)")
_PROFILE = re.compile(r"^(\S+) \(\w+, [^()]*\): \d+ rows\n((?:  .*(?:\n|$))+)", re.MULTILINE)
_PROFILED_COLUMN = re.compile(r"^  (\w+): .*; ([\d.]+) … .*; mean ", re.MULTILINE)
_SAMPLE_ROW = re.compile(r"^  (\[.*\])$", re.MULTILINE)
_NUMERIC = re.compile(r"(?:INT|INTEGER|BIGINT|REAL|DOUBLE|NUMERIC|FLOAT)\b", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_ABOVE = re.compile(r"How many rows of (\S+) have a value of (\w+) above ([\d.]+)\?")
_EACH = re.compile(r"How many rows of (\w+) belong to each (\w+) of (\w+)\? Name it and the number\.")
_NOTE = re.compile(r"# (How many .*)$|/\* (How many .*) \*/", re.MULTILINE)
_SAMPLES = 2
_SEEN_ROWS = 3


class SeenTable(NamedTuple):
    """A table with a few of its rows."""

    name: str
    """Name, or the path of its file."""
    columns: Mapping[str, bool]
    """Names of the columns: whether each holds measures."""
    rows: Sequence[Sequence[object]]
    """Rows that were shown."""
    refers: Mapping[str, tuple[str, str]] = MappingProxyType({})
    """Tables and columns that columns refer to."""


def answer_about_tables(prompt: Prompt) -> dict[str, object]:
    """Return solutions about the tables in a prompt, the question of one, or another solution of a question."""
    tables = list(tables_in(_part(prompt.text, "tables")))
    match prompt.name:
        case "proposedsolutions":
            return {"solutions": list(aggregations(tables))}
        case "taskinstruction":
            noted = _NOTE.search(_part(prompt.text, "solution"))
            return {"instruction": (noted[1] or noted[2]) if noted else "", "ordered": False}
        case _:
            return {"solution": _solve_again(_part(prompt.text, "instruction"), tables)}


def tables_in(text: str) -> Iterator[SeenTable]:
    """Yield the tables that a schema or a list of tables shows."""
    for table in _TASK_TABLE.finditer(text):
        parsed_columns = _TASK_COLUMN.findall(table[2].partition("  sample rows:")[0])
        refers = {name: (other, column) for name, _, _, other, column in parsed_columns if other}
        columns = {
            name: bool(_NUMERIC.match(kind)) and not key and name not in refers
            for name, kind, key, *_ in parsed_columns
        }
        rows = [json.loads(row) for row in _SAMPLE_ROW.findall(table[2])]
        yield SeenTable(table[1], columns, rows, refers)
    for table in _SCHEMA_TABLE.finditer(text):
        described, _, keys = table[2].partition("; primary key ")
        refers = {name: (other, column) for name, other, column in _SCHEMA_REFERENCE.findall(table[2])}
        key = re.findall(r"\w+", keys.partition(";")[0])
        columns = {
            name: bool(_NUMERIC.match(kind)) and name not in key and name not in refers
            for name, kind in _SCHEMA_COLUMN.findall(described)
        }
        rows = [[_cell(cell) for cell in row.split(" | ")] for row in table[3].splitlines()]
        yield SeenTable(table[1], columns, rows, refers)


def profiled_tables(text: str) -> Iterator[SeenTable]:
    """Yield the data files of which a text lists the columns; the least values stand for a row."""
    for table in _PROFILE.finditer(text):
        least = {name: _cell(value) for name, value in _PROFILED_COLUMN.findall(table[2])}
        columns = {name: not name.endswith("id") for name in least}
        yield SeenTable(table[1], columns, [list(least.values())])


def table_of_csv(path: str, text: str) -> SeenTable | None:
    """Return the table of a CSV file of which a text shows the first lines; `None` if it shows none."""
    lines = [line for line in text.splitlines() if "," in line]
    head, *rows = list(csv.reader(lines[: _SEEN_ROWS + 1])) or [[]]
    if not rows or any(len(row) != len(head) for row in rows):
        return None
    cells = [[_cell(cell.strip()) for cell in row] for row in rows]
    columns = {
        name: isinstance(cell, int | float) and not name.endswith("id")
        for name, cell in zip(head, cells[0], strict=True)
    }
    return SeenTable(path, columns, cells)


def aggregations(tables: Sequence[SeenTable]) -> Iterator[str]:
    """Yield queries or programs that group, join and count rows, the richest first."""
    by_name = {table.name: table for table in tables}
    for table in tables:
        for column, (other, key) in table.refers.items():
            if other in by_name:
                words = (name for name in by_name[other].columns if _is_word(by_name[other], name))
                for word in words:
                    yield _joined(table.name, column, other, key, word)
    for table in tables:
        names = list(table.columns)
        for column in (name for name, measures in table.columns.items() if measures):
            for row in table.rows[:_SAMPLES]:
                value = row[names.index(column)]
                if isinstance(value, int | float):
                    yield _above(table.name, column, str(value))


def _is_word(table: SeenTable, column: str) -> bool:
    """Return true if a column has words that occur in several rows, as far as they were shown."""
    column_index = list(table.columns).index(column)
    shown = [row[column_index] for row in table.rows if len(row) > column_index]
    return bool(shown) and all(isinstance(cell, str) and not _NUMBER.search(cell) for cell in shown)


def _cell(text: str) -> object:
    return json.loads(text) if _NUMBER.fullmatch(text) else text


def _part(text: str, tag: str) -> str:
    """Return the last text between these tags."""
    return text.rpartition(f"<{tag}>")[2].partition(f"</{tag}>")[0]


def _joined(table: str, column: str, other: str, key: str, word: str) -> str:
    question = f"How many rows of {table} belong to each {word} of {other}? Name it and the number."
    return (
        f'SELECT o."{word}", COUNT(*) FROM "{table}" AS t JOIN "{other}" AS o ON t."{column}" = o."{key}" '
        f'GROUP BY o."{word}" /* {question} */'
    )


def _above(table: str, column: str, value: str) -> str:
    question = f"How many rows of {table.rpartition('/')[2]} have a value of {column} above {value}?"
    if "/" not in table:
        return f'SELECT COUNT(*) FROM "{table}" WHERE "{column}" > {value} /* {question} */'
    return (
        f"# {question}\nimport csv\nrows = csv.DictReader(open({table!r}))\n"
        f"print(sum(float(row[{column!r}] or 0) > {value} for row in rows))"
    )


def _solve_again(question: str, tables: Sequence[SeenTable]) -> str:
    if match := _EACH.search(question):
        name, word, other = match.groups()
        counted_table = next((table for table in tables if table.name == name), None)
        refers = counted_table.refers if counted_table else dict[str, tuple[str, str]]()
        for column, (target, key) in refers.items():
            if target == other:
                return (
                    f'WITH every AS (SELECT o."{word}" AS part FROM "{other}" AS o, "{name}" AS t '
                    f'WHERE t."{column}" = o."{key}") SELECT part, COUNT(*) FROM every GROUP BY part'
                )
    match = _ABOVE.search(question)
    if not match:
        return ""
    title, column, value = match.groups()
    table = next((table.name for table in tables if table.name.rpartition("/")[2] == title), title)
    if "/" not in table:
        return f'SELECT COUNT(CASE WHEN "{column}" > {value} THEN 1 END) FROM "{table}"'
    return (
        f"import csv\ncount = 0\nfor row in csv.DictReader(open({table!r})):\n"
        f"    if float(row[{column!r}] or 0) > {value}:\n        count += 1\nprint(count)"
    )
