"""Links between tables: columns whose values are found among the keys of another table."""

import re
from collections.abc import Iterator
from typing import TypedDict

from mcp_servers.data.inside._profile import ColumnFacts, TableFacts

Named = tuple[str, TableFacts]
"""A table, and the name of its file."""
LEAST_OVERLAP = 0.8
FEWEST_VALUES = 5
"""Minimum number of common values of columns with different names, because small numbers match by chance."""
MOST_LINKS = 50


class FoundLink(TypedDict):
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
    """Share of the values that occur in the referred column."""


def links(tables: list[Named]) -> list[FoundLink]:
    """Return the most likely links, best first."""
    found = sorted(_links(tables), key=lambda link: (-link["overlap"], link["file"], link["column"]))
    return found[:MOST_LINKS]


def _links(tables: list[Named]) -> Iterator[FoundLink]:
    keys = [
        (file, table, column, frozenset(column["values"]))
        for file, table in tables
        for column in table["columns"]
        if column["unique"]
    ]
    for file, table in tables:
        for column in table["columns"]:
            for other_file, other, key, values in keys:
                if other is table or not column["values"]:
                    continue
                overlap = sum(value in values for value in column["values"]) / len(column["values"])
                alike = _alike(column["name"], key["name"], other["sheet"] or other_file)
                if overlap >= LEAST_OVERLAP and (alike or _telling(column, key)):
                    yield {
                        "file": file,
                        "sheet": table["sheet"],
                        "column": column["name"],
                        "to_file": other_file,
                        "to_sheet": other["sheet"],
                        "to_column": key["name"],
                        "overlap": round(overlap, 3),
                    }


def _alike(name: str, key: str, table: str) -> bool:
    here, there = _plain(name), _plain(key)
    stem = _plain(re.split(r"[./\\]", table.rpartition("/")[2])[0])
    # `customer_id`, `customer` or `customers_id` of a table `customers` with the key `id`.
    return here == there or here in {
        form + end for form in (stem, stem.removesuffix("s")) for end in ("", there, "id")
    }


def _telling(column: ColumnFacts, key: ColumnFacts) -> bool:
    texts = column["type"] == key["type"] == "VARCHAR"
    return texts and len(column["values"]) >= FEWEST_VALUES


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())
