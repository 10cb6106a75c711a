"""Having the episodes of a group played: what goes wrong with one of them is data, and the group goes on."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from agentflow.errors import ConfigurationError, ModelFailureKind, RunStopped, StopCause
from agentflow.learner._groups import FailureCause, Group, Played, sample_of
from agentflow.learner._order import Draw
from agentflow.runs import unwrap_group
from agentflow.scoring import Metric
from agentflow.telemetry import get_logger
from agentflow.trajectory import Ending, Episode, Failure, Task, digest

if TYPE_CHECKING:
    from agentflow.learner._samples import Sample

__all__ = ["AGAIN", "GONE", "GRACE_SECONDS", "Player", "Playing", "words_of"]

logger = get_logger(__name__)

GRACE_SECONDS: Final = 30.0
"""How much longer than its own limit an episode may take: its sandbox is made and its answer scored in that time."""
_LONGEST_REASON = 500
GONE = frozenset({ModelFailureKind.RATE_LIMITED, ModelFailureKind.UNAVAILABLE, ModelFailureKind.TIMEOUT})
"""Failures of calls that say nothing about who was asked."""
AGAIN = frozenset({FailureCause.CRASHED, FailureCause.MODEL})
"""Failures of episodes that are tried again."""


class Player(Protocol):
    """Plays one episode."""

    @property
    def metric(self) -> Metric:
        """What answers are scored by."""
        ...

    async def play(
        self, task: Task, seed: str, *, temperature: float | None = None, max_turns: int | None = None
    ) -> Episode:
        """An episode; the same seed is the same episode, as far as its models are deterministic."""
        ...


async def _at_once() -> None:
    """Nothing has to be waited for."""


class Playing:
    """How the episodes of a run are played: so many at once, so long each, again where the engine was lost."""

    def __init__(
        self,
        player: Player,
        *,
        trained: tuple[str, ...],
        temperature: float,
        seed: int = 0,
        at_once: int = 64,
        seconds: float = 300.0,
        tries: int = 3,
        engine_ready: Callable[[], Awaitable[None]] = _at_once,
        saw: Callable[[Played], None] | None = None,
    ) -> None:
        """Describe it.

        :param trained: the roles whose calls are trained.
        :param temperature: what they sample at.
        :param seed: of everything that is sampled.
        :param at_once: episodes at once.
        :param seconds: how long one may take by itself.
        :param tries: how often one is begun that crashes or loses its engine.
        :param engine_ready: waits until the engine answers.
        :param saw: is given what came of each episode.
        """
        self.version = 0
        """The weights that sample now."""
        self._player = player
        self._trained = trained
        self._temperature = temperature
        self._seed = seed
        self._room = anyio.Semaphore(at_once)
        self._seconds = seconds + GRACE_SECONDS
        self._tries = tries
        self._engine_ready = engine_ready
        self._saw = saw

    async def group(self, draw: Draw, size: int, places: list[Played | None] | None = None) -> Group:
        """Play all episodes of a draw.

        :param places: one for each of them, filled as they end.
        :raises RunStopped: if the run can't go on.
        """
        filled: list[Played | None] = [None] * size if places is None else places

        async def member(place: int) -> None:
            filled[place] = await self.one(draw.task, (draw.number, place))

        async with anyio.create_task_group() as tasks:
            for place in range(size):
                tasks.start_soon(member, place)
        return self.group_of(draw, filled)

    def group_of(self, draw: Draw, places: Sequence[Played | None]) -> Group:
        """What there is of a group; a place that is not filled was given up because it took too long."""
        given_up = Failure(FailureCause.STALE, "it was not finished before its weights were too old")
        samples: list[Sample] = []
        failures: list[Failure] = []
        for member, played in enumerate(places):
            if played is None or played.failure is not None or played.episode is None:
                failures.append(given_up if played is None or played.failure is None else played.failure)
                continue
            sample = sample_of(
                played.episode,
                group=draw.group,
                member=member,
                reward=played.reward,
                trained=self._trained,
                temperature=self._temperature,
                version=played.version,
            )
            samples.append(sample)
        return Group(number=draw.number, name=draw.group, samples=tuple(samples), failures=tuple(failures))

    async def one(
        self,
        task: Task,
        place: Sequence[object],
        *,
        temperature: float | None = None,
        max_turns: int | None = None,
    ) -> Played:
        """Play one episode, again where it crashes or loses its engine.

        :param place: what its seed follows from, beside the run's.
        :raises RunStopped: if the run can't go on.
        """
        seed = digest([self._seed, *place])
        played = Played()
        for _ in range(self._tries):
            async with self._room:
                played = await self._try(task, seed, temperature, max_turns)
            if played.failure is None or played.failure.kind not in AGAIN:
                break
            if played.failure.kind == FailureCause.MODEL:
                await self._engine_ready()
        if self._saw is not None:
            self._saw(played)
        return played

    async def _try(self, task: Task, seed: str, temperature: float | None, max_turns: int | None) -> Played:
        version = self.version
        try:
            with anyio.move_on_after(self._seconds):
                episode = await self._player.play(task, seed, temperature=temperature, max_turns=max_turns)
                failure = _lost(episode)
                reward = 0.0
                if failure is None and episode.failure is None:
                    reward, failure = await self._worth(episode.answer, task)
                return Played(episode=episode, failure=failure, reward=reward, version=version)
        except RunStopped as stopped:
            if stopped.cause is not StopCause.MODEL:
                raise
            return Played(failure=Failure(FailureCause.MODEL, stopped.message))
        except ConfigurationError:
            raise
        except Exception as error:  # boundary: an episode that crashes is data, and must not end the others
            logger.exception("episode crashed", task=task.id)
            return Played(failure=Failure(FailureCause.CRASHED, words_of(error)))
        return Played(failure=Failure(FailureCause.TIME, f"it did not end in {self._seconds:g} seconds"))

    async def _worth(self, answer: str, task: Task) -> tuple[float, Failure | None]:
        try:
            scored = await self._player.metric.score(answer, task)
        except RunStopped:
            raise
        except Exception as error:  # boundary: a reward may be anybody's code
            return 0.0, Failure(FailureCause.REWARD, words_of(error))
        if scored.failure is not None:
            return 0.0, Failure(FailureCause.REWARD, scored.failure.message)
        return scored.score, None


def _lost(episode: Episode) -> Failure | None:
    """Why an episode says nothing about its policy: it lost a model, or its time was over before it answered."""
    if episode.ending is Ending.TIME and episode.failure is not None:
        return Failure(FailureCause.TIME, episode.failure.message)
    for exchange in episode.exchanges:
        if exchange.failure is not None and exchange.failure.kind in GONE:
            return Failure(FailureCause.MODEL, f"{exchange.role}: {exchange.failure.message}")
    return None


def words_of(error: Exception) -> str:
    """An error that ended an episode, in one line."""
    error = unwrap_group(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_LONGEST_REASON]
