"""The one table of other names: what the documentation calls a tool or a backend, and what it is here."""

from collections.abc import Collection, Mapping
from typing import Final

__all__ = ["ARGUMENT_ALIASES", "BACKEND_ALIASES", "TOOL_ALIASES", "argument_of", "canonical_backend"]

BACKEND_ALIASES: Final[Mapping[str, str]] = {
    "database": "sql",
    "doc": "document",
    "ds": "data",
    "filesystem": "files",
    "knowledge_base": "rag",
    "text2sql": "sql",
}
"""Other name of a backend -> its name. `web`, `document` and the rest are called the same everywhere."""

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
"""Other name of a tool, written with underscores only -> `backend:verb`; where not only the backend is called otherwise."""

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
"""Other name of a tool's argument -> its name, where the tool has an argument of that name and none of the other."""


def argument_of(name: str, known: Collection[str]) -> str | None:
    """The argument that this name means, of those that a tool takes: itself, the one it is an alias of, or none."""
    if name in known:
        return name
    own = ARGUMENT_ALIASES.get(name)
    return own if own in known else None


def canonical_backend(name: str) -> str:
    """The backend that this name means: itself, unless it is an alias."""
    return BACKEND_ALIASES.get(name, name)
