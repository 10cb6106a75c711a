"""Tools of the world backend."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext, Image
from mcp_servers.core._running import check_settings, read_settings
from mcp_servers.core._session import Session
from mcp_servers.core._tool import tool
from mcp_servers.world._episode import WorldEpisode
from mcp_servers.world._results import WorldObservation, WorldProgress
from mcp_servers.world._settings import WorldSettings


class WorldBackend(Backend):
    """Text world with one episode in each session."""

    name = "world"
    description = (
        "Act in a simulated world to fulfil a task: a household, rooms on a grid, or another environment."
    )
    reserved = frozenset({"environments", "arguments"})

    def check(self, settings: Mapping[str, object]) -> None:
        """Reject invalid settings."""
        check_settings(WorldSettings, self.name, settings)

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Read the session's settings; the episode begins with its first call."""
        session.put(WorldEpisode(read_settings(WorldSettings, self.name, settings)))

    async def fork(self, session: Session, forked: Session) -> None:
        """Copy the world's state.

        :raises ToolFailure: `cannot_fork`, if it can be neither copied nor repeated.
        """
        forked.put(await session.get(WorldEpisode).copy())

    async def cleanup(self, session: Session) -> None:
        """Close the environment."""
        await session.get(WorldEpisode).close()

    @tool(title="Begin an episode")
    async def reset(
        self,
        session: Session,
        context: CallContext,
        seed: Annotated[
            int | None,
            Field(ge=0, description="The same seed gives the same world; the default is the next seed."),
        ] = None,
        task: Annotated[
            str | None,
            Field(description="Kind of task; the default is the previous one, or the seed's choice."),
        ] = None,
        env: Annotated[str | None, Field(description="Environment; the default is the previous one.")] = None,
    ) -> WorldObservation:
        """Begin a new episode; return its task and the first observation.

        Use it to start, or to start over. The progress of the previous episode is lost.
        """
        return _shown(context, *await session.get(WorldEpisode).reset(seed, task, env))

    @tool(title="Look around", read_only=True)
    async def observe(self, session: Session, context: CallContext) -> WorldObservation:
        """Return the task, the current observation and the legal actions.

        Use it to see where you are; it costs no step.
        """
        return _shown(context, *await session.get(WorldEpisode).observe())

    @tool(title="Act")
    async def act(
        self,
        session: Session,
        context: CallContext,
        action: Annotated[str | int, Field(description="One of the legal actions, or its number from 0.")],
    ) -> WorldObservation:
        """Take one action; return the observation afterwards.

        Use it for each step towards the task. Only the actions listed last are legal; another one is refused and costs
        nothing.
        """
        return _shown(context, *await session.get(WorldEpisode).act(str(action)))

    @tool(title="Report the progress", read_only=True)
    async def state(self, session: Session) -> WorldProgress:
        """Return the actions and rewards so far.

        Use it to check whether the task is done, or to compare two sessions; it shows nothing of the world.
        """
        return await session.get(WorldEpisode).progress()


def _shown(context: CallContext, seen: WorldObservation, picture: bytes | None) -> WorldObservation:
    if picture is not None:
        context.show(Image(picture))
    return seen
