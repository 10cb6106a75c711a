"""The one table of other names: what the documentation calls a tool or a backend, and what it is here."""

from collections.abc import Mapping
from typing import Final

__all__ = ["BACKEND_ALIASES", "TOOL_ALIASES", "canonical_backend"]

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


def canonical_backend(name: str) -> str:
    """The backend that this name means: itself, unless it is an alias."""
    return BACKEND_ALIASES.get(name, name)
