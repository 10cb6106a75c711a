"""SQL over the session's files and data frames, by DuckDB. Runs inside a session."""

import re
from collections.abc import Iterator, Mapping

from runtimes.process.inside._tables import Foreign, build_table, is_tabular

__all__ = ["run_sql"]

BATCH = 1024
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "autoinstall_known_extensions": False,
}


def run_sql(query: str, rows: int, namespace: Mapping[str, object]) -> dict[str, object]:
    """The result of a query as a table of at most `rows` rows.

    Files are named by their path (`FROM 'sales.csv'`), data frames and Arrow tables by their variable. Each
    call has a database of its own in memory, which a query can leave only through files of the session.
    """
    import duckdb

    # One thread, and no connection kept: a session with live threads could not be forked.
    with duckdb.connect(":memory:", config=dict(_CONFIG)) as connection:
        _register(connection, query, namespace)
        connection.execute(query)
        columns = [(str(column[0]), str(column[1])) for column in connection.description or ()]
        return build_table(columns, _fetched(connection), rows, None)


def _register(connection: Foreign, query: str, namespace: Mapping[str, object]) -> None:
    for name in set(re.findall(r"\w+", query)):
        value: Foreign = namespace.get(name)
        if is_tabular(value):
            if type(value).__name__ == "Series":
                value = value.to_frame(value.name or "value")
            elif type(value).__name__ == "DuckDBPyRelation":
                value = value.to_arrow_table()
            connection.register(name, value)


def _fetched(connection: Foreign) -> Iterator[tuple[object, ...]]:
    while batch := connection.fetchmany(BATCH):
        yield from batch
