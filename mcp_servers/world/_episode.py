"""Episode of one session."""

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from agentflow.errors import CannotFork, ErrorKind, ToolFailure
from mcp_servers.core._failures import did_you_mean
from mcp_servers.world._household_world import household
from mcp_servers.world._results import WorldObservation, WorldProgress
from mcp_servers.world._settings import HOUSEHOLD, WorldSettings
from mcp_servers.world._world import World

T = TypeVar("T")


class WorldEpisode:
    """World of a session and its actions so far. Calls are serialized."""

    def __init__(self, settings: WorldSettings) -> None:
        self._settings = settings
        self._turn = anyio.Lock()
        self._world: World | None = None
        self._env = settings.env
        self._seed = settings.seed
        self._task = settings.task
        self._next = settings.seed
        self._history: list[str] = []
        self._rewards: list[float] = []
        self._done = False
        self._success: bool | None = None

    async def reset(
        self, seed: int | None, task: str | None, env: str | None
    ) -> tuple[WorldObservation, bytes | None]:
        """Begin a new episode; omitted settings stay as before, and the seed is the next one."""
        async with self._turn:
            await self._begin(seed, self._task if task is None else task, env or self._env)
            return await self._in_thread(self._seen)

    async def observe(self) -> tuple[WorldObservation, bytes | None]:
        """Return the observation; begin an episode if there is none."""
        async with self._turn:
            await self._ensure()
            return await self._in_thread(self._seen)

    async def act(self, action: str) -> tuple[WorldObservation, bytes | None]:
        """Take an action; begin an episode if there is none."""
        async with self._turn:
            await self._ensure()
            if self._done:
                message = "world_act: the episode is over: call world_reset to begin another one."
                raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)

            def step() -> tuple[WorldObservation, bytes | None]:
                outcome = self._live.act(action)
                self._history.append(action.strip())
                self._rewards.append(outcome.reward)
                self._done, self._success = outcome.done, outcome.success
                return self._seen()

            return await self._in_thread(step)

    async def progress(self) -> WorldProgress:
        """Return the progress."""
        async with self._turn:
            await self._ensure()
            task, digest = await self._in_thread(lambda: (self._live.task, self._live.digest()))
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

    async def copy(self) -> "WorldEpisode":
        """Return an independent copy.

        :raises ToolFailure: `cannot_fork`, if the world can be neither copied nor repeated.
        """
        async with self._turn:
            copied = WorldEpisode(self._settings)
            copied._env, copied._seed, copied._task = self._env, self._seed, self._task
            copied._next, copied._done, copied._success = self._next, self._done, self._success
            copied._history, copied._rewards = list(self._history), list(self._rewards)
            if self._world is not None:
                try:
                    copied._world = await self._in_thread(self._world.copy)
                except CannotFork as error:
                    raise ToolFailure(ErrorKind.CANNOT_FORK, f"world: {error}.") from None
            return copied

    async def close(self) -> None:
        """Close the world."""
        async with self._turn:
            world, self._world = self._world, None
            if world is not None:
                await anyio.to_thread.run_sync(world.close)

    @property
    def _live(self) -> World:
        assert self._world is not None
        return self._world

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
        chosen = self._next if seed is None else seed
        begun = await _begun(settings, env, chosen, task)
        before, self._world = self._world, begun
        if before is not None:
            await anyio.to_thread.run_sync(before.close)
        self._env, self._seed, self._task, self._next = env, chosen, task, chosen + 1
        self._history, self._rewards, self._done, self._success = [], [], False, None

    def _seen(self) -> tuple[WorldObservation, bytes | None]:
        world = self._live
        seen = WorldObservation(
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
        return seen, world.picture() if self._settings.pictures else None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run a possibly blocking call in a thread; a cancelled one invalidates the world."""
        if self._world is None or self._world.quick:
            return work()
        try:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
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


async def _begun(settings: WorldSettings, env: str, seed: int, task: str | None) -> World:
    if env == HOUSEHOLD:
        return household(seed, task, settings.steps)

    def make() -> World:
        try:
            from mcp_servers.world._gym_world import GymWorld  # an optional dependency
        except ImportError:
            message = f"world: {env} needs Gymnasium: pip install 'agentflow[world]'"
            raise ToolFailure(ErrorKind.UNAVAILABLE, message) from None
        return GymWorld(
            env,
            seed,
            task=task,
            steps=settings.steps,
            pictures=settings.pictures,
            arguments=settings.arguments,
        )

    return await anyio.to_thread.run_sync(make, abandon_on_cancel=True)
