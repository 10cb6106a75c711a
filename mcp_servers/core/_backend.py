"""A backend: a family of tools with one life."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cached_property

from mcp_servers.core._session import Session
from mcp_servers.core._tool import Tool, tools_of
from runtimes import Instance

__all__ = ["Backend"]


class Backend:
    """A family of tools. Subclass it, give it a `name`, decorate async methods with `@tool`.

    Its life: `configure` and `warmup` once when the server (or sandbox) starts; for each session `initialize` at
    first use and `cleanup` at the end, with `fork` when the session is copied; `shutdown` once at the end. State that belongs
    to a session is kept with `session.put(state)` and found again with `session.get(StateType)`.
    """

    name: str = ""
    """The family's name: lower-case letters, digits and '_'."""
    description: str = ""
    """One sentence for people and models."""
    reserved: frozenset[str] = frozenset()
    """Settings that only the server's own configuration may give, no client for its session."""
    discovers: bool = False
    """Its tools are known only once it is warmed up, and may change later; each time `tools` is another tuple. It is
    warmed up before anybody asks for tools."""
    start_instance: Callable[[], Awaitable[Instance]] | None = None
    """Starts an instance that belongs to no session; there from `configure` on. Who starts one stops it."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Its tools: by default the decorated methods."""
        return self._methods

    @cached_property
    def _methods(self) -> tuple[Tool, ...]:
        return tools_of(self, self.name)

    def check(self, settings: Mapping[str, object]) -> None:
        """Refuse settings that can't be used; called with a server's own before it starts.

        :raises ConfigurationError: saying in one line what is wrong.
        """

    def unusable(self, settings: Mapping[str, object]) -> Mapping[str, str]:
        """Tools (by verb) that can't work with the server's own settings, such as one without its key.

        :return: why, and what mends it, in one line each. Such a tool is listed, and its calls are refused with that
            line. Settings that can't be used at all are the business of `check`.
        """
        return {}

    def hidden(self, settings: Mapping[str, object]) -> Collection[str]:
        """Tools (by verb) that the server's own settings switch off: for everybody they are not there."""
        return ()

    def configure(self, settings: Mapping[str, object]) -> None:
        """Take the server's own settings: called once, before `warmup`. For what belongs to no session.

        :raises ConfigurationError: if they can't be used.
        """

    def mounts(self, settings: Mapping[str, object], asked: Mapping[str, object]) -> Mapping[str, str]:
        """Folders of this machine that a session's instance must show, to be read only: path inside -> path here.

        Asked when the instance starts, whether the backend is live then or not.

        :param settings: the server's own.
        :param asked: the session's own. They may be a client's: what they name must be checked.
        :raises ToolFailure: for a folder that the session may not have.
        """
        return {}

    async def warmup(self) -> None:
        """Get ready before the first session: load, connect, check. Raise to refuse to start."""

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Make this backend live in a session: called once, before its first tool runs there.

        :param settings: the backend's own settings, those of `session_start` over those of the server.
        """

    async def fork(self, session: Session, forked: Session) -> tuple[str, ...] | None:
        """Copy per-session state to `forked`, whose instance (if there is one) is already forked.

        Called only for a session in which this backend is live; `initialize` is not called for the copy.
        No call runs in `session` meanwhile.

        :return: one line for each thing that could not be carried; nothing, if all was.
        """

    async def cleanup(self, session: Session) -> None:
        """Give back what the session holds outside of its instance. Called once per live session; must not hang."""

    async def shutdown(self) -> None:
        """Give back everything, after the last session has ended."""
