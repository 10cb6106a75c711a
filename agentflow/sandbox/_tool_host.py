"""Interface between a sandbox and its tools, in this process or on a server."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from agentflow.errors import ToolFailure
from agentflow.sandbox._names import Names
from mcp_servers import Tool, ToolError, ToolResult
from mcp_servers.core import ProgressSink


def failed(failure: ToolFailure) -> ToolResult:
    """Return a failure as the result of a call."""
    return ToolResult(False, failure.data, ToolError(failure.kind, failure.message))


class ToolHost(ABC):
    """Access to a tool table. A sandbox and its forks share one host; the last of them closes it."""

    def __init__(self) -> None:
        self._holders = 0

    @property
    @abstractmethod
    def names(self) -> Names:
        """The tools, by all their names; known once the host is open."""

    def names_for(self, wanted: Iterable[str]) -> Names:
        """Return the names, after loading the tools that these names and patterns may mean.

        :raises ToolFailure: `unavailable`, if they can't be loaded.
        """
        return self.names

    @abstractmethod
    async def open(self) -> None:
        """Prepare for calls. Does nothing if it is open."""

    @abstractmethod
    async def close(self) -> None:
        """Release all resources."""

    @abstractmethod
    async def warmup(self, backends: Iterable[str]) -> None:
        """Start backends that have not started.

        :raises ToolFailure: if there is no such backend, or it can't be started.
        """

    @abstractmethod
    async def call(
        self,
        tool: Tool,
        arguments: Mapping[str, object],
        *,
        session: str | None,
        timeout: float | None,
        progress: ProgressSink | None,
    ) -> ToolResult:
        """Call a tool, once. Never raises for a failed call."""

    @abstractmethod
    async def read(self, uri: str) -> bytes:
        """Return the target of a result's link.

        :raises ToolFailure: `not_found`.
        """

    def hold(self) -> None:
        """Register one more sandbox."""
        self._holders += 1

    async def release(self) -> None:
        """Unregister a sandbox; the last one closes the host."""
        self._holders -= 1
        if self._holders == 0:
            await self.close()
