"""Settings of the sql backend."""

from pathlib import Path
from typing import Self

from pydantic import AliasChoices, Field, SecretStr, model_validator

from agentflow.settings import Section

MIB = 1024 * 1024


class SqlSettings(Section):
    """Settings of the sql backend. A client cannot override them: all sessions have the same databases."""

    databases: dict[str, SecretStr] = Field(
        default_factory=dict[str, SecretStr], validation_alias=AliasChoices("databases", "db_paths")
    )
    """Databases by id: a SQLite or DuckDB file, or an address (`sqlite:///…`, `duckdb:///…`, `postgresql://…`);
    also called `db_paths`."""
    connection_string: SecretStr | None = None
    """Address of a single database; its id is its name."""
    databases_dir: Path | None = None
    """Directory whose SQLite and DuckDB files are added recursively; a file's id is its name without the suffix."""
    writable: bool = False
    """Allow each session to change its own copy; the databases themselves are never changed."""
    superuser: bool = False
    """Accept a Postgres role that may run programs and read files on its server."""
    rows: int = Field(default=100, ge=1)
    """Default number of rows that `sql_execute` returns."""
    result_bytes: int = Field(default=MIB // 4, ge=1_000)
    """Size limit of the rows of one result."""
    timeout: float = Field(default=30.0, gt=0)
    """Time limit of a query in seconds; a call may set a shorter one."""
    memory_bytes: int = Field(default=512 * MIB, ge=32 * MIB)
    """Memory limit of one query."""
    copy_bytes: int = Field(default=1024 * MIB, ge=MIB)
    """Size limit of a session's copy."""
    workers: int = Field(default=8, ge=1)
    """Most queries that run at once, each in its own process; others wait."""

    @model_validator(mode="after")
    def _has_names(self) -> Self:
        if any(not name.strip() for name in self.databases):
            raise ValueError("databases: an id can't be empty")
        return self
