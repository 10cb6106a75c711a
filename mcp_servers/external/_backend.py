"""The mcp backend: tools of external servers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._backend import Backend
from mcp_servers.core._sessions import Session
from mcp_servers.core._tool import Tool
from mcp_servers.external._settings import ExternalSettings, MountSettings, servers_of

if TYPE_CHECKING:
    from mcp_servers.external._server_set import ServerSet, SessionServers


class ExternalBackend(Backend):
    """External MCP servers: each tool as `mcp:<server>.<tool>`, with its server's schema."""

    name = "mcp"
    description = "Tools of external MCP servers."
    settings_model = ExternalSettings
    reserved = frozenset(ExternalSettings.model_fields)
    discovers = True

    def __init__(self) -> None:
        self._servers: dict[str, MountSettings] = {}
        self._mounted: ServerSet | None = None

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools of the mounted servers."""
        return () if self._mounted is None else self._mounted.tools

    def check(self, settings: Mapping[str, object]) -> None:
        """Validate the settings."""
        super().check(settings)
        servers_of(ExternalSettings.model_validate(settings))

    def configure(self, settings: Mapping[str, object]) -> None:
        """Take the server's settings."""
        super().check(settings)
        self._servers = servers_of(ExternalSettings.model_validate(settings))

    async def warmup(self) -> None:
        """Start every server and list its tools.

        :raises ToolFailure: `unavailable` if a required server cannot be started.
        """
        if not self._servers or self._mounted is not None:
            return
        # Loads the SDK, which is not needed without mounts.
        from mcp_servers.external._server_set import ServerSet

        mounted = ServerSet(self._servers, self.start_instance)
        await mounted.open()
        self._mounted = mounted

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Prepare the session's own servers; each starts on first use."""
        if self._mounted is not None:
            session.put(self._mounted.of(session))

    async def fork(self, session: Session, forked: Session) -> None:
        """Prepare the copy's servers: those that keep only files are started again.

        :raises ToolFailure: `cannot_fork` if the session has used a server whose state cannot be copied.
        """
        servers = self._session_servers(session)
        if servers is None:
            return
        if servers.stateful:
            names = ", ".join(servers.stateful)
            message = f"mcp: the state of {names} cannot be copied; if it keeps none, set stateful: false."
            raise ToolFailure(ErrorKind.CANNOT_FORK, message)
        forked.put(await servers.copy(forked))

    async def cleanup(self, session: Session) -> None:
        """Stop the session's own servers."""
        servers = self._session_servers(session)
        if servers is not None:
            await servers.close()

    async def shutdown(self) -> None:
        """Stop every server."""
        mounted, self._mounted = self._mounted, None
        if mounted is not None:
            await mounted.close()

    def _session_servers(self, session: Session) -> "SessionServers | None":
        if self._mounted is None:
            return None
        from mcp_servers.external._server_set import SessionServers

        return session.get(SessionServers)
