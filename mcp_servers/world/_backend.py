"""Tools of the world backend, their results, and the episode of a session."""

from collections.abc import Callable, Collection, Mapping
from copy import copy
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, TypeVar

import anyio
import anyio.to_thread
from pydantic import Field

from agentflow.errors import CannotFork, ErrorKind, ToolFailure
from agentflow.extras import missing_extra
from agentflow.settings import Section
from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext, Image, Output
from mcp_servers.core._failures import did_you_mean
from mcp_servers.core._running import read_settings
from mcp_servers.core._sessions import Session
from mcp_servers.core._tool import tool
from mcp_servers.world._world import HouseholdWorld, World
from mcp_servers.world.household import HOUSEHOLD


class WorldSettings(Section):
    """Settings of the world backend."""

    environments: list[str] = Field(default=[HOUSEHOLD, "BabyAI-*"])
    """Offered environments, by Gymnasium id; `*` and `?` are wildcards, except for ids that name a module
    (`module:Name-v0`), which must be listed literally.
    """
    arguments: dict[str, object] = Field(default_factory=dict[str, object])
    """Arguments for creating each environment except the household."""
    pictures: bool = False
    """Show a picture with each observation, if the environment can render one."""
    env: str = HOUSEHOLD
    """Default environment of a session."""
    seed: int = Field(default=0, ge=0)
    """Seed of a session's first episode; each further episode without a seed uses the next number."""
    task: str | None = None
    """Default kind of task; without it the seed decides."""
    steps: int | None = Field(default=None, ge=1)
    """Maximum number of actions; the default is the environment's own, and 100 in the household."""
    evaluate: bool = False
    """Offer `world_inspect`, which shows what is hidden from the agent."""

    def allows(self, env: str) -> bool:
        """Return true if the environment is offered."""
        return env in self.environments or (
            ":" not in env and any(fnmatchcase(env, pattern) for pattern in self.environments)
        )


class WorldObservation(Output):
    """Observation and legal actions."""

    task: str
    """Task in words."""
    observation: str
    """Observation in words."""
    actions: list[str]
    """Legal actions; empty at the end, and if actions are not enumerable: see `action_format`."""
    action_format: str | None
    """Format of an action, if there is no list of them."""
    reward: float
    """Reward of the last action."""
    total_reward: float
    """Sum of all rewards."""
    steps: int
    """Number of actions taken."""
    done: bool
    """The episode is over."""
    success: bool | None
    """The task is done; null if the environment does not report it."""


class WorldProgress(Output):
    """Progress of an episode."""

    env: str
    """Environment."""
    seed: int
    """Seed: the same seed and actions lead to the same state."""
    task: str
    """Task in words."""
    history: list[str]
    """Actions taken, in order."""
    steps: int
    """Number of actions."""
    total_reward: float
    """Sum of the rewards."""
    done: bool
    """The episode is over."""
    success: bool | None
    """The task is done; null if the environment does not report it."""
    digest: str
    """Hash of the whole state: equal in two sessions whose worlds are equal."""


class WorldFacts(Output):
    """Properties of everything in the world."""

    facts: dict[str, dict[str, str]]
    """Properties of each thing, hidden or not; empty if the environment does not report them."""
    task: str
    """Task of the environment in words."""
    success: bool
    """The task of the environment is done."""


T = TypeVar("T")


class WorldBackend(Backend):
    """Text world with one episode in each session."""

    name = "world"
    description = (
        "Act in a simulated world to fulfil a task: a household, rooms on a grid, or another environment."
    )
    settings_model = WorldSettings
    cards = Path(__file__).with_name("cards.toml")
    reserved = frozenset({"environments", "arguments", "evaluate"})

    def hidden(self, settings: Mapping[str, object]) -> Collection[str]:
        """Hide `world_inspect` unless evaluation is enabled."""
        try:
            return () if read_settings(WorldSettings, self.name, settings).evaluate else ("inspect",)
        except ToolFailure:
            return ("inspect",)  # `check` reports invalid settings

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
        return await session.get(WorldEpisode).reset(context, seed, task, env)

    @tool(title="Look around", read_only=True)
    async def observe(self, session: Session, context: CallContext) -> WorldObservation:
        """Return the task, the current observation and the legal actions.

        Use it to see where you are; it costs no step.
        """
        return await session.get(WorldEpisode).observe(context)

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
        return await session.get(WorldEpisode).act(context, str(action))

    @tool(title="Report the progress", read_only=True)
    async def state(self, session: Session) -> WorldProgress:
        """Return the actions and rewards so far.

        Use it to check whether the task is done, or to compare two sessions; it shows nothing of the world.
        """
        return await session.get(WorldEpisode).progress()

    @tool(title="Inspect the world", read_only=True)
    async def inspect(self, session: Session) -> WorldFacts:
        """Return the properties of everything in the world, hidden or not.

        For evaluators of a task, not for the agent.
        """
        return await session.get(WorldEpisode).facts()


class WorldEpisode:
    """World of a session and its actions so far. Calls are serialized."""

    def __init__(self, settings: WorldSettings) -> None:
        self._settings = settings
        self._lock = anyio.Lock()
        self._world: World | None = None
        self._env = settings.env
        self._seed = self._next_seed = settings.seed
        self._task = settings.task
        self._history: list[str] = []
        self._rewards: list[float] = []
        self._done = False
        self._success: bool | None = None

    async def reset(
        self, context: CallContext, seed: int | None, task: str | None, env: str | None
    ) -> WorldObservation:
        """Begin a new episode; omitted settings stay as before, and the seed is the next one."""
        async with self._lock:
            await self._begin(seed, self._task if task is None else task, env or self._env)
            return await self._observation(context)

    async def observe(self, context: CallContext) -> WorldObservation:
        """Return the observation; begin an episode if there is none."""
        async with self._lock:
            await self._ensure()
            return await self._observation(context)

    async def act(self, context: CallContext, action: str) -> WorldObservation:
        """Take an action; begin an episode if there is none."""
        async with self._lock:
            await self._ensure()
            if self._done:
                message = "world_act: the episode is over: call world_reset to begin another one."
                raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)

            def step(world: World) -> None:
                result = world.act(action)
                self._history.append(action.strip())
                self._rewards.append(result.reward)
                self._done, self._success = result.done, result.success

            return await self._observation(context, step)

    async def progress(self) -> WorldProgress:
        """Return the progress."""
        async with self._lock:
            await self._ensure()
            task, digest = await self._in_thread(lambda world: (world.task, world.digest()))
            return WorldProgress(
                env=self._env,
                seed=self._seed,
                task=task,
                history=list(self._history),
                steps=len(self._history),
                total_reward=sum(self._rewards),
                done=self._done,
                success=self._success,
                digest=digest,
            )

    async def facts(self) -> WorldFacts:
        """Return the properties of everything."""
        async with self._lock:
            await self._ensure()
            task, properties = await self._in_thread(lambda world: (world.task, world.facts()))
            return WorldFacts(facts=properties, task=task, success=bool(self._success))

    async def copy(self) -> "WorldEpisode":
        """Return an independent copy.

        :raises ToolFailure: `cannot_fork`, if the world can be neither copied nor repeated.
        """
        async with self._lock:
            copied = copy(self)
            copied._lock = anyio.Lock()
            copied._history, copied._rewards = list(self._history), list(self._rewards)
            if self._world is not None:
                try:
                    copied._world = await self._in_thread(lambda world: world.copy())
                except CannotFork as error:
                    raise ToolFailure(ErrorKind.CANNOT_FORK, f"world: {error}.") from None
            return copied

    async def close(self) -> None:
        """Close the world."""
        async with self._lock:
            await self._replace(None)

    async def _ensure(self) -> None:
        if self._world is None:
            await self._begin(None, self._task, self._env)

    async def _begin(self, seed: int | None, task: str | None, env: str) -> None:
        settings = self._settings
        if not settings.allows(env):
            message = (
                f"world: there is no environment {env!r} here.{did_you_mean(env, settings.environments)}"
            )
            raise ToolFailure(ErrorKind.DENIED, message)
        chosen = self._next_seed if seed is None else seed
        if env == HOUSEHOLD:
            world: World = HouseholdWorld(chosen, task, settings.steps)
        else:
            world = await anyio.to_thread.run_sync(
                _gym_world, settings, env, chosen, task, abandon_on_cancel=True
            )
        await self._replace(world)
        self._env, self._seed, self._task, self._next_seed = env, chosen, task, chosen + 1
        self._history, self._rewards, self._done, self._success = [], [], False, None

    async def _replace(self, world: World | None) -> None:
        before, self._world = self._world, world
        if before is not None:
            await anyio.to_thread.run_sync(before.close)

    async def _observation(
        self, context: CallContext, step: Callable[[World], None] | None = None
    ) -> WorldObservation:
        """Return the observation after a step, and show its picture."""

        def observe(world: World) -> tuple[WorldObservation, bytes | None]:
            if step is not None:
                step(world)
            observation = WorldObservation(
                task=world.task,
                observation=world.tell(),
                actions=[] if self._done else world.actions(),
                action_format=None if self._done else world.action_format(),
                reward=self._rewards[-1] if self._rewards else 0.0,
                total_reward=sum(self._rewards),
                steps=len(self._history),
                done=self._done,
                success=self._success,
            )
            return observation, world.picture() if self._settings.pictures else None

        observation, picture = await self._in_thread(observe)
        if picture is not None:
            context.show(Image(picture))
        return observation

    async def _in_thread(self, work: Callable[[World], T]) -> T:
        """Run a possibly blocking call in a thread; a cancelled one invalidates the world."""
        assert self._world is not None
        if self._world.quick:
            return work(self._world)
        try:
            return await anyio.to_thread.run_sync(work, self._world, abandon_on_cancel=True)
        except (ToolFailure, CannotFork):
            raise
        except anyio.get_cancelled_exc_class():
            self._world = None
            raise
        except Exception as error:
            # Boundary to foreign code: an environment that raised anything cannot be trusted any more.
            self._world = None
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            message = f"world: {self._env} has failed: {reason}. The next call begins a new episode."
            raise ToolFailure(ErrorKind.FAILED, message) from error


def _gym_world(settings: WorldSettings, env: str, seed: int, task: str | None) -> World:
    try:
        from mcp_servers.world._gym_world import GymWorld  # an optional dependency
    except ImportError:
        raise ToolFailure(ErrorKind.UNAVAILABLE, missing_extra(f"world: {env}", "world")) from None
    return GymWorld(
        env,
        seed,
        task=task,
        steps=settings.steps,
        pictures=settings.pictures,
        arguments=settings.arguments,
    )
