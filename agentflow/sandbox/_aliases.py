"""Aliases of tools, backends and arguments."""

from collections.abc import Collection, Mapping
from typing import Final

BACKEND_ALIASES: Final[Mapping[str, str]] = {
    "database": "sql",
    "doc": "document",
    "ds": "data",
    "filesystem": "files",
    "knowledge_base": "rag",
    "text2sql": "sql",
}
"""Alias of a backend -> its name. `web`, `document` and the rest have no alias."""

TOOL_ALIASES: Final[Mapping[str, str]] = {
    "browse_url": "web:visit",
    "ds_inspect_data": "data:inspect",
    "ds_read_csv": "data:read",
    "ds_run_python": "data:run",
    "execute_sql": "sql:execute",
    "get_table_schema": "sql:schema",
    "google_search": "web:search",
    "python_execute": "code:run",
    "read_document": "document:read",
    "read_file": "files:read",
    "retrieval": "rag:search",
    "search_document": "document:search",
    "text2sql_get_schema": "sql:schema",
    "wikipedia_search": "web:wikipedia",
}
"""Alias of a tool, with underscores only -> `backend:verb`; only where more than the backend differs."""

ARGUMENT_ALIASES: Final[Mapping[str, str]] = {
    "csv_file": "file",
    "db_id": "database",
    "key_words": "query",
    "max_image_num": "max_images",
    "max_rows": "rows",
    "max_search_results": "max_results",
    "max_text_token": "max_tokens",
    "seed_path": "folder",
    "table_names": "tables",
}
"""Alias of an argument -> its name, for tools that have an argument of that name and none called like the alias."""


def argument_of(name: str, known: Collection[str]) -> str | None:
    """Return the argument that a name means for a tool: the name itself, the target of the alias, or `None`.

    >>> argument_of("key_words", ["query"])
    'query'
    """
    if name in known:
        return name
    own = ARGUMENT_ALIASES.get(name)
    return own if own in known else None


def canonical_backend(name: str) -> str:
    """Return the backend that a name means."""
    return BACKEND_ALIASES.get(name, name)
