"""Answers of the fake model about tables: queries and programs that count, their questions, and other solutions."""

import json
import re
from collections.abc import Iterator

from agentflow.testing.endpoint._prompt import Prompt

_TABLE = re.compile(r"^(\S+) \(\d+ rows\)\n((?:  .*\n?)+)", re.MULTILINE)
_COLUMN = re.compile(
    r"  (\w+) (?:INT|INTEGER|BIGINT|REAL|DOUBLE|NUMERIC)\b(?!.*(?:primary key|->))", re.IGNORECASE
)
_SAMPLE = re.compile(r"^  (\[.*\])$", re.MULTILINE)
_MARKED = re.compile(r"How many rows of (\S+) have a value of (\w+) above ([\d.]+)\?")
_NOTE = re.compile(r"# (How many .*\?)$|/\* (How many .*\?) \*/", re.MULTILINE)


def answer_about_tables(prompt: Prompt) -> dict[str, object]:
    """Return solutions that count rows, the question of one, or another solution of a question."""
    match prompt.name:
        case "proposedsolutions":
            return {"solutions": [_solution(*wanted) for wanted in _wanted(_part(prompt.text, "tables"))]}
        case "taskinstruction":
            noted = _NOTE.search(_part(prompt.text, "solution"))
            return {"instruction": (noted[1] or noted[2]) if noted else "", "ordered": False}
        case _:
            found = _MARKED.search(_part(prompt.text, "instruction"))
            return {"solution": _other(*found.groups()) if found else ""}


def _part(text: str, tag: str) -> str:
    """Return the last text between these tags."""
    return text.rpartition(f"<{tag}>")[2].partition(f"</{tag}>")[0]


def _wanted(tables: str) -> Iterator[tuple[str, str, str]]:
    """Yield a table, a numeric column and a value of it."""
    for table in _TABLE.finditer(tables):
        names = re.findall(r"^  (\w+) ", table[2].partition("  sample rows:")[0], re.MULTILINE)
        rows = [json.loads(row) for row in _SAMPLE.findall(table[2])]
        for column in _COLUMN.findall(table[2]):
            for row in rows[:2]:
                if isinstance(row[names.index(column)], int | float):
                    yield table[1], column, str(row[names.index(column)])


def _solution(table: str, column: str, value: str) -> str:
    question = f"How many rows of {table} have a value of {column} above {value}?"
    if "/" not in table:
        return f'SELECT COUNT(*) FROM "{table}" WHERE "{column}" > {value} /* {question} */'
    return (
        f"# {question}\nimport csv\nrows = csv.DictReader(open({table!r}))\n"
        f"print(sum(float(row[{column!r}] or 0) > {value} for row in rows))"
    )


def _other(table: str, column: str, value: str) -> str:
    if "/" not in table:
        return f'SELECT SUM(CASE WHEN "{column}" > {value} THEN 1 ELSE 0 END) FROM "{table}"'
    return (
        f"import csv\ncount = 0\nfor row in csv.DictReader(open({table!r})):\n"
        f"    if float(row[{column!r}] or 0) > {value}:\n        count += 1\nprint(count)"
    )
