"""Results of queries: comparison, and queries that make a typical mistake."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any, Final, TypeAlias

from agentflow.tasks._sql_copies import SqlResult

Json: TypeAlias = Any
"""A JSON value."""

_MAX_COLUMNS: Final = 6
"""Maximum columns of a result whose order is ignored."""

_SWAPS: Final = (
    ("flipped_order", re.compile(r"\bDESC\b", re.IGNORECASE), "ASC"),
    ("flipped_order", re.compile(r"(?<=\S)(?=\s+LIMIT\s+\d+\s*;?\s*$)", re.IGNORECASE), " DESC"),
    ("other_aggregate", re.compile(r"\bSUM\s*\(", re.IGNORECASE), "AVG("),
    ("other_aggregate", re.compile(r"\bAVG\s*\(", re.IGNORECASE), "SUM("),
    ("other_aggregate", re.compile(r"\bMAX\s*\(", re.IGNORECASE), "MIN("),
    ("other_aggregate", re.compile(r"\bMIN\s*\(", re.IGNORECASE), "MAX("),
    ("not_distinct", re.compile(r"\bDISTINCT\s+", re.IGNORECASE), ""),
    ("flipped_comparison", re.compile(r"(?<![<>!=])>=?(?![=>])"), "<"),
    ("flipped_comparison", re.compile(r"(?<![<>!=])<(?![=>])"), ">"),
    ("negated", re.compile(r"(?<![<>!])=(?!=)(?=\s*(?:'|\d))"), "<>"),
    ("off_by_one", re.compile(r"(?<=LIMIT )\d+", re.IGNORECASE), "+1"),
    ("lost_condition", re.compile(r"\bAND\s+[^()]*?(?=\s+(?:GROUP|ORDER|HAVING|LIMIT)\b|\s*;?\s*$)", re.IGNORECASE), ""),
    ("lost_condition", re.compile(r"\bWHERE\s+[^()]*?(?=\s+(?:GROUP|ORDER|HAVING|LIMIT)\b|\s*;?\s*$)", re.IGNORECASE), ""),
    ("lost_condition", re.compile(r"\bHAVING\s+.*?(?=\s+(?:ORDER|LIMIT)\b|\s*;?\s*$)", re.IGNORECASE | re.DOTALL), ""),
    ("bound_included", re.compile(r"(?<![<>!=])>(?![=>])"), ">="),
    ("bound_included", re.compile(r"(?<![<>!=])<(?![=>])"), "<="),
    ("wrong_count", re.compile(r"\bCOUNT\s*\(\s*\*\s*\)", re.IGNORECASE), "COUNT(*) + 1"),
    ("wrong_join", re.compile(r"\b(?:INNER\s+)?JOIN\b", re.IGNORECASE), "LEFT JOIN"),
)  # fmt: skip


def same_rows(result: Sequence[Sequence[Json]], other: Sequence[Sequence[Json]], *, ordered: bool) -> bool:
    """Tell whether two results have the same rows; the order of columns counts only in wide results.

    Numbers are equal if they agree in nine significant digits.
    """
    if len(result) != len(other):
        return False
    if not result:
        return True
    width = len(result[0])
    if any(len(row) != width for row in (*result, *other)):
        return False
    rows = [tuple(map(_cell, row)) for row in result]
    others = [tuple(map(_cell, row)) for row in other]
    if _equal(rows, others, ordered):
        return True
    if not 1 < width <= _MAX_COLUMNS:
        return False
    return any(
        _equal(rows, [tuple(row[at] for at in order) for row in others], ordered)
        for order in _assignments(rows, others, width)
    )


def _assignments(
    rows: list[tuple[str, ...]], others: list[tuple[str, ...]], width: int
) -> Iterator[tuple[int, ...]]:
    """Yield the orders of columns in which each column has the same values."""
    columns = [Counter(row[at] for row in rows) for at in range(width)]
    theirs = [Counter(row[at] for row in others) for at in range(width)]
    fits = [[at for at in range(width) if theirs[at] == column] for column in columns]
    if all(fits):
        yield from (
            order
            for order in permutations(range(width))
            if all(column_index in fits[at] for at, column_index in enumerate(order))
        )


def _equal(rows: list[tuple[str, ...]], others: list[tuple[str, ...]], ordered: bool) -> bool:
    return rows == others if ordered else Counter(rows) == Counter(others)


def _cell(value: Json) -> str:
    """Return a comparable text of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return f"number {int(value)}"
        case int() | float():
            return (
                f"number {float(f'{value:.9g}'):.9g}".replace("-0", "0")
                if value == 0
                else f"number {value:.9g}"
            )
        case str():
            return f"text {value.strip()}"
        case _:
            return f"other {value}"


def mistakes_of(query: str) -> list[tuple[str, str]]:
    """Return queries that differ from this one by a typical mistake, with its name."""
    mistakes: dict[str, str] = {}
    for name, pattern, instead in _SWAPS:
        for match in pattern.finditer(query):
            new = str(int(match[0]) + 1) if instead == "+1" else instead
            changed = f"{query[: match.start()]}{new}{query[match.end() :]}"
            if changed != query and changed not in mistakes:
                mistakes[changed] = name
    return [(name, changed) for changed, name in mistakes.items()]


def constant_query(result: SqlResult) -> str:
    """Return a query that returns this result whatever the database holds."""
    rows = [", ".join(map(_literal, row)) for row in result.rows]
    return " UNION ALL ".join(f"SELECT {row}" for row in rows)


def _literal(value: Json) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int() | float():
            return repr(value)
        case _:
            return "'" + str(value).replace("'", "''") + "'"
