"""What a sandbox asks of the place where its tools are, whether that is this process or a server."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from agentflow.errors import ToolFailure
from agentflow.sandbox._names import Names
from mcp_servers import Tool, ToolError, ToolResult
from mcp_servers.core import ProgressSink

__all__ = ["Door", "failed"]


def failed(failure: ToolFailure) -> ToolResult:
    """The failure as the result of a call."""
    return ToolResult(False, failure.data, ToolError(failure.kind, failure.message))


class Door(ABC):
    """The way to a tool table. A sandbox and its forks share one; it closes when the last of them lets go."""

    def __init__(self) -> None:
        self._holders = 0

    @property
    @abstractmethod
    def names(self) -> Names:
        """The tools behind it, by all their names. Known once it is open."""

    def names_for(self, wanted: Iterable[str]) -> Names:
        """The names, those among them that these names and patterns may mean.

        :raises ToolFailure: `unavailable`, if what they mean can't be loaded.
        """
        return self.names

    @abstractmethod
    async def open(self) -> None:
        """Get ready for calls. Fine if it is."""

    @abstractmethod
    async def close(self) -> None:
        """Give everything back."""

    @abstractmethod
    async def warmup(self, backends: Iterable[str]) -> None:
        """Start these backends, unless they are.

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
        """Call the tool, once. Never raises for what goes wrong with the call."""

    @abstractmethod
    async def read(self, uri: str) -> bytes:
        """What a result's link leads to.

        :raises ToolFailure: `not_found`.
        """

    def hold(self) -> None:
        """One more sandbox uses it."""
        self._holders += 1

    async def release(self) -> None:
        """One sandbox less; the last one closes it."""
        self._holders -= 1
        if self._holders == 0:
            await self.close()
