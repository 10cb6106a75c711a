"""The tools of the world backend."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext, Image
from mcp_servers.core._running import check_settings, read_settings
from mcp_servers.core._session import Session
from mcp_servers.core._tool import tool
from mcp_servers.world._episode import Episode
from mcp_servers.world._results import Progress, Seen
from mcp_servers.world._settings import WorldSettings

__all__ = ["WorldBackend"]


class WorldBackend(Backend):
    """A world to act in, told in words: one episode in each session."""

    name = "world"
    description = (
        "Act in a simulated world to fulfil a task: a household, rooms on a grid, or another environment."
    )
    reserved = frozenset({"environments", "arguments"})

    def check(self, settings: Mapping[str, object]) -> None:
        """Refuse settings that can't be used."""
        check_settings(WorldSettings, self.name, settings)

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Read the session's settings; the episode begins at its first call."""
        session.put(Episode(read_settings(WorldSettings, self.name, settings)))

    async def fork(self, session: Session, forked: Session) -> None:
        """Copy the world as it is.

        :raises ToolFailure: `cannot_fork`, if it can be neither copied nor repeated.
        """
        forked.put(await session.get(Episode).copy())

    async def cleanup(self, session: Session) -> None:
        """Give the world back."""
        await session.get(Episode).close()

    @tool(title="Begin an episode")
    async def reset(
        self,
        session: Session,
        context: CallContext,
        seed: Annotated[
            int | None,
            Field(ge=0, description="The same seed gives the same world; by default the next one."),
        ] = None,
        task: Annotated[
            str | None, Field(description="The kind of task; by default as before, or as the seed decides.")
        ] = None,
        env: Annotated[str | None, Field(description="The environment; by default as before.")] = None,
    ) -> Seen:
        """Begin a new episode, and give its task and what can be seen at its start.

        Use it to start, or to start over. What was done in the episode before is lost.
        """
        return _shown(context, *await session.get(Episode).reset(seed, task, env))

    @tool(title="Look around", read_only=True)
    async def observe(self, session: Session, context: CallContext) -> Seen:
        """Give the task, what can be seen now, and the actions that can be done now.

        Use it to see where you are; it costs no step.
        """
        return _shown(context, *await session.get(Episode).observe())

    @tool(title="Act")
    async def act(
        self,
        session: Session,
        context: CallContext,
        action: Annotated[
            str | int, Field(description="One of the actions that can be done now, or its number from 0.")
        ],
    ) -> Seen:
        """Do one action, and give what can be seen afterwards.

        Use it for each step towards the task. Only the actions listed last can be done; another one is refused and costs
        nothing.
        """
        return _shown(context, *await session.get(Episode).act(str(action)))

    @tool(title="Tell the progress", read_only=True)
    async def state(self, session: Session) -> Progress:
        """Tell what was done so far, and what it was worth.

        Use it to check whether the task is done, or to compare two sessions; it shows nothing of the world.
        """
        return await session.get(Episode).progress()


def _shown(context: CallContext, seen: Seen, picture: bytes | None) -> Seen:
    if picture is not None:
        context.show(Image(picture))
    return seen
