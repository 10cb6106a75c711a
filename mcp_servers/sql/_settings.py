"""Settings of the sql backend."""

from pathlib import Path
from typing import Self

from pydantic import AliasChoices, Field, SecretStr, model_validator

from agentflow.settings import Section

__all__ = ["SqlSettings"]

MIB = 1024 * 1024


class SqlSettings(Section):
    """Settings of the sql backend. They are the server's own: all sessions see the same databases."""

    databases: dict[str, SecretStr] = Field(
        default_factory=dict[str, SecretStr], validation_alias=AliasChoices("databases", "db_paths")
    )
    """The databases by id: a SQLite or DuckDB file, or an address (`sqlite:///…`, `duckdb:///…`, `postgresql://…`);
    also called `db_paths`."""
    connection_string: SecretStr | None = None
    """One database, where there is only one; its id is its name."""
    databases_dir: Path | None = None
    """A folder whose SQLite and DuckDB files are databases too, at any depth; a file's id is its name without the ending."""
    writable: bool = False
    """Each session may change a copy of its own; the databases themselves are never changed."""
    superuser: bool = False
    """Allow a Postgres role that may run programs and read files on its server."""
    rows: int = Field(default=100, ge=1)
    """How many rows `sql_execute` returns unless it is asked for another number."""
    result_bytes: int = Field(default=MIB // 4, ge=1_000)
    """The size of the rows of one result."""
    timeout: float = Field(default=30.0, gt=0)
    """Seconds after which a query is stopped, unless the call names fewer."""
    memory_bytes: int = Field(default=512 * MIB, ge=32 * MIB)
    """Memory for one query."""
    copy_bytes: int = Field(default=1024 * MIB, ge=MIB)
    """The largest file that a session's copy may become."""
    workers: int = Field(default=8, ge=1)
    """Queries that run at once, each in a process; others wait."""

    @model_validator(mode="after")
    def _has_names(self) -> Self:
        if any(not name.strip() for name in self.databases):
            raise ValueError("databases: an id can't be empty")
        return self
