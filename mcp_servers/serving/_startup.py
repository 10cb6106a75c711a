"""Start-up shared by a server and its workers: logging, and the tool table that the settings describe."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from agentflow.errors import ConfigurationError
from agentflow.telemetry import Level, configure_logging
from mcp_servers.core._failures import did_you_mean
from mcp_servers.core._registry import BACKENDS, load_backend
from mcp_servers.core._runtimes import RuntimeHost
from mcp_servers.core._sessions import new_handle
from mcp_servers.core._table import ToolTable
from mcp_servers.serving._settings import ServerSettings

T = TypeVar("T", bound=ToolTable)


@dataclass(frozen=True, slots=True)
class PreparedTable(Generic[T]):
    """A tool table and the backends to warm up."""

    table: T
    """The table."""
    warmup: list[str]
    """Names of the backends to warm up before the server is ready."""


def make_table(
    settings: ServerSettings,
    runtime: RuntimeHost,
    kind: type[T],
    handles: Callable[[], str] = new_handle,
) -> PreparedTable[T]:
    """Create the tool table that the settings describe.

    :raises ConfigurationError: if the settings are invalid.
    """
    names = settings.backend_names()
    if not names:
        raise ConfigurationError(f"name at least one backend to serve.{did_you_mean('', BACKENDS)}")
    for name in settings.warmup or ():
        if name not in names:
            raise ConfigurationError(f"warmup: {name!r} is not served.{did_you_mean(name, names)}")
    backends = {name: load_backend(name) for name in names}
    given = settings.backend_settings()
    for name, backend in backends.items():
        backend.check(given.get(name, {}))
    table = kind(
        backends.values(),
        runtime=runtime.get,
        spec=settings.sessions.spec(),
        settings={backend.name: given[name] for name, backend in backends.items() if name in given},
        limits=settings.table_limits(),
        handles=handles,
        archive=settings.sessions.files_kept(),
    )
    # Backends that discover their tools are warmed up before any client lists tools.
    discovering = [name for name in names if backends[name].discovers]
    warm = names if settings.warmup is None else dict.fromkeys([*settings.warmup, *discovering])
    return PreparedTable(table, [backends[name].name for name in warm])


def set_up_logging(level: Level) -> None:
    """Log our packages at the given level and libraries from WARNING on.

    Below that, libraries log connection names and whole messages.
    """
    configure_logging(Level.WARNING)
    for package in ("agentflow", "mcp_servers", "runtimes"):
        logging.getLogger(package).setLevel(level.name)
