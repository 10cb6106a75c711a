"""The mcp backend: the tools of external servers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._backend import Backend
from mcp_servers.core._running import check_settings
from mcp_servers.core._session import Session
from mcp_servers.core._tool import Tool
from mcp_servers.external._servers import servers_of
from mcp_servers.external._settings import ExternalSettings, MountSettings

if TYPE_CHECKING:
    from mcp_servers.external._mounted import Mounted, OwnServers

__all__ = ["ExternalBackend"]


class ExternalBackend(Backend):
    """External MCP servers: each tool as `mcp:<server>.<tool>`, with the schema that its server gives."""

    name = "mcp"
    description = "Tools of external MCP servers."
    reserved = frozenset(ExternalSettings.model_fields)
    discovers = True

    def __init__(self) -> None:
        self._servers: dict[str, MountSettings] = {}
        self._mounted: Mounted | None = None

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools of the servers that were mounted."""
        return () if self._mounted is None else self._mounted.tools

    def check(self, settings: Mapping[str, object]) -> None:
        """Refuse settings that can't be used."""
        check_settings(ExternalSettings, self.name, settings)
        servers_of(ExternalSettings.model_validate(settings))

    def configure(self, settings: Mapping[str, object]) -> None:
        """Take the server's settings."""
        check_settings(ExternalSettings, self.name, settings)
        self._servers = servers_of(ExternalSettings.model_validate(settings))

    async def warmup(self) -> None:
        """Start every server and learn its tools.

        :raises ToolFailure: `unavailable`, if one that is required can't be started.
        """
        if not self._servers or self._mounted is not None:
            return
        from mcp_servers.external._mounted import Mounted  # loads the SDK, which who mounts nothing need not

        mounted = Mounted(self._servers, self.start_instance)
        await mounted.open()
        self._mounted = mounted

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Be ready to start the session's own servers, each at its first use."""
        if self._mounted is not None:
            session.put(self._mounted.of(session))

    async def fork(self, session: Session, forked: Session) -> None:
        """Servers that keep nothing but files start anew in the copy.

        :raises ToolFailure: `cannot_fork`, if the session has used a server whose state can't be copied.
        """
        own = self._own(session)
        if own is None:
            return
        if own.stateful:
            names = ", ".join(own.stateful)
            message = f"mcp: the state of {names} can't be copied; if it keeps none, set stateful: false."
            raise ToolFailure(ErrorKind.CANNOT_FORK, message)
        forked.put(await own.copy(forked))

    async def cleanup(self, session: Session) -> None:
        """End the session's own servers."""
        own = self._own(session)
        if own is not None:
            await own.close()

    async def shutdown(self) -> None:
        """End every server."""
        mounted, self._mounted = self._mounted, None
        if mounted is not None:
            await mounted.close()

    def _own(self, session: Session) -> "OwnServers | None":
        if self._mounted is None:
            return None
        from mcp_servers.external._mounted import OwnServers

        return session.get(OwnServers)
