"""The configured databases: resolution of files and addresses to an engine and its target."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from agentflow.errors import ConfigurationError
from mcp_servers.core._failures import did_you_mean
from mcp_servers.sql._settings import SqlSettings

EngineName: TypeAlias = Literal["sqlite", "duckdb", "postgres"]
"""Database engines."""

SUFFIXES: Final = (".db", ".sqlite", ".sqlite3", ".duckdb", ".ddb")
_DIALECTS: Final[dict[str, EngineName]] = {
    "duckdb": "duckdb",
    "postgres": "postgres",
    "postgresql": "postgres",
    "sqlite": "sqlite",
}
_SQLITE_MAGIC: Final = b"SQLite format 3\0"
_DUCKDB_MAGIC: Final = b"DUCK"


@dataclass(frozen=True, slots=True)
class DatabaseSource:
    """A configured database."""

    id: str
    """Id of the database."""
    engine: EngineName
    """Engine that opens it."""
    target: str
    """Path, or address including the password."""


def databases_of(settings: SqlSettings) -> dict[str, DatabaseSource]:
    """Return the databases by id.

    :raises ConfigurationError: naming the id, if a file is missing or an address is invalid.
    """
    targets = {name: address.get_secret_value() for name, address in settings.databases.items()}
    sources = {name: _database(name, target) for name, target in targets.items()}
    if settings.connection_string is not None:
        only = _database("", settings.connection_string.get_secret_value())
        name = Path(only.target.partition("?")[0]).stem or "database"
        sources.setdefault(name, DatabaseSource(name, only.engine, only.target))
    if settings.databases_dir is not None:
        for path in _files(settings.databases_dir):
            sources.setdefault(path.stem, _file(path.stem, path))
    return sources


def _database(name: str, target: str) -> DatabaseSource:
    return _address(name, target) if "://" in target else _file(name, Path(target))


def _address(name: str, target: str) -> DatabaseSource:
    from sqlalchemy.engine import make_url  # heavy, and most databases are named by a path
    from sqlalchemy.exc import ArgumentError

    where = _where(name)
    try:
        url = make_url(target)
    except (ArgumentError, ValueError):
        raise ConfigurationError(f"{where}: the address can't be read: write scheme://…") from None
    scheme = url.get_backend_name()
    engine = _DIALECTS.get(scheme)
    if engine is None:
        raise ConfigurationError(f"{where}: no engine for {scheme}://.{did_you_mean(scheme, _DIALECTS)}")
    if engine != "postgres":
        if not url.database or url.database == ":memory:":
            raise ConfigurationError(f"{where}: name a file, as in {scheme}:///data/example.db")
        return DatabaseSource(name, engine, str(_existing(name, Path(url.database))))
    plain = url.set(drivername="postgresql")
    return DatabaseSource(name, engine, plain.render_as_string(hide_password=False))


def _file(name: str, path: Path) -> DatabaseSource:
    path = _existing(name, path)
    with path.open("rb") as file:
        head = file.read(16)
    if head[8:12] == _DUCKDB_MAGIC or (not head and path.suffix in (".duckdb", ".ddb")):
        return DatabaseSource(name, "duckdb", str(path))
    if head == _SQLITE_MAGIC or not head:
        return DatabaseSource(name, "sqlite", str(path))
    raise ConfigurationError(f"{_where(name)}: {path} is neither a SQLite nor a DuckDB file")


def _existing(name: str, path: Path) -> Path:
    path = path.expanduser().absolute()
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise ConfigurationError(f"{_where(name)}: {path}: {error.strerror or error}") from None


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ConfigurationError(f"sql.databases_dir: there is no folder {folder}")
    return sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())


def _where(name: str) -> str:
    return f"sql.databases.{name}" if name else "sql.connection_string"
