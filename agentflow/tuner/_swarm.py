"""Client of a training run for other processes and machines: it plays episodes, in threads."""

import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from threading import Event
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from agentflow.errors import AgentFlowError, ConfigurationError, RunStopped, StopCause, error_line
from agentflow.gateway import (
    BegunEpisode,
    EpisodeMode,
    EpisodeOutcome,
    EpisodeReceipt,
    GatewayClient,
    GatewayError,
    RecordedCall,
)
from agentflow.telemetry import get_logger
from agentflow.trace import Task
from agentflow.tuner._workflow import POLL_SECONDS, PolicyEndpoint, endpoint_of, outcome_of

logger = get_logger(__name__)

T = TypeVar("T")

TOKEN_VARIABLE: Final = "AGENTFLOW_SWARM_TOKEN"
"""Environment variable with the token of clients."""
_KEEP_ALIVE_SHARE: Final = 4
_MAX_PAUSE: Final = 60.0

Work: TypeAlias = "Callable[[SwarmEpisode], object]"
"""Plays an episode and ends it, or returns its outcome."""


class SwarmEpisode:
    """An episode that this client plays. It ends once: by `end`, or by `abort`.

    Used in a `with` block, an exception aborts it.
    """

    def __init__(self, swarm: "Swarm", begun: BegunEpisode) -> None:
        self.begun = begun
        """The episode as it was begun."""
        self.over = False
        """It has ended or was given up."""
        self._swarm = swarm

    @property
    def id(self) -> str:
        """Id."""
        return self.begun.episode

    @property
    def task(self) -> Task:
        """Task."""
        return self.begun.task

    @property
    def mode(self) -> EpisodeMode:
        """Use of the episode: `train` or `validate`."""
        return self.begun.mode

    @property
    def policy(self) -> PolicyEndpoint:
        """The model: address and keys."""
        return endpoint_of(self.begun)

    @property
    def base_url(self) -> str:
        """Address for OpenAI clients; ends with `/v1`."""
        return self.begun.base_url

    @property
    def api_key(self) -> str:
        """Key of the only agent."""
        return self.policy.api_key

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.begun.model

    def agent(self, name: str) -> PolicyEndpoint:
        """Return the model of an agent, with its own key. See docs/swarm.md."""
        return self.policy.agent(name)

    def end(
        self,
        *,
        reward: float | Mapping[str, float] | None = None,
        answer: str | None = None,
        success: bool | None = None,
        turn_rewards: Mapping[str, float] | None = None,
        metrics: Mapping[str, float] | None = None,
        failure: str = "",
    ) -> EpisodeReceipt:
        """End it. With the receipt it is on disk.

        :param reward: any finite number, for all agents or for each; `None`: the trainer scores the answer.
        :param answer: the answer; `None`: the text of the last call.
        :param success: the task was solved.
        :param turn_rewards: additional rewards of single calls, by call id.
        :param metrics: further figures.
        :param failure: reason for leaving it out; empty: it counts.
        """
        outcome = EpisodeOutcome(
            reward=dict(reward) if isinstance(reward, Mapping) else reward,
            answer=answer,
            success=success,
            turn_rewards=dict(turn_rewards or {}),
            metrics=dict(metrics or {}),
            failure=failure,
        )
        return self._swarm.end_episode(self, outcome)

    def abort(self, why: str = "") -> None:
        """Give it up; another client may play it. An episode that is over stays as it is."""
        self._swarm.abort_episode(self, why)

    def calls(self) -> list[RecordedCall]:
        """Return its calls so far, with exact tokens; their ids are those of `turn_rewards`."""
        return self._swarm.calls(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.over:
            why = "no end was reported" if error is None else type(error).__name__
            self.abort(error_line(error) if isinstance(error, Exception) else why)


class Swarm(AbstractContextManager["Swarm"]):
    """Client of a training run, used in a `with` block. Its methods may be called from any thread.

    Example::

        def work(episode):
            answer = my_graph(episode.task.question, episode.base_url, episode.api_key)
            episode.end(reward=grade(answer, episode.task))  # an exception aborts

        with Swarm("http://gpu-box:18900", token=TOKEN) as swarm:
            swarm.work(work, at_once=16)  # until the run ends
    """

    def __init__(self, url: str, token: str = "", *, patience: float = 60.0) -> None:
        """Make a client.

        :param url: address of the gateway, such as `http://gpu-box:18900`.
        :param token: token of clients; empty: that of the environment variable `AGENTFLOW_SWARM_TOKEN`.
        :param patience: seconds for which an unreachable gateway is retried.
        """
        token = token or os.environ.get(TOKEN_VARIABLE, "")
        if not token:
            raise ConfigurationError(f"token: it is missing; pass it, or set {TOKEN_VARIABLE}")
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(f"url: {url} is no address; write http://HOST:PORT")
        self._make = partial(GatewayClient, url, token, patience=patience)
        self._stack = ExitStack()
        self._open: set[SwarmEpisode] = set()
        self._waiting: set[Future[BegunEpisode | None]] = set()
        self._stopping = Event()
        self._portal: BlockingPortal
        self._client: GatewayClient

    def __enter__(self) -> Self:
        self._portal = self._stack.enter_context(start_blocking_portal())
        self._client = self._stack.enter_context(self._portal.wrap_async_context_manager(self._make()))
        self._stack.callback(self._portal.start_task_soon(self._keep_alive).cancel)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stop()
        finally:
            self._stack.close()

    def begin_episode(
        self,
        task: Task | None = None,
        *,
        mode: EpisodeMode | None = None,
        agents: Sequence[str] = (),
        wait: float = 0.0,
    ) -> SwarmEpisode | None:
        """Begin the next episode; `None`: there is nothing now.

        :param task: a task of your own, with a unique id; by default the trainer gives one.
        :param mode: use of the episode; `None`: any.
        :param agents: agents that get keys; empty: all.
        :param wait: seconds to wait for an episode, at most 60.
        :raises RunStopped: if the run is over.
        """
        begin = partial(self._client.begin, task, mode=mode, agents=agents, wait=wait)
        waiting = self._portal.start_task_soon(begin)
        self._waiting.add(waiting)
        try:
            begun = waiting.result()
        finally:
            self._waiting.discard(waiting)
        if begun is None:
            return None
        episode = SwarmEpisode(self, begun)
        self._open.add(episode)
        return episode

    def end_episode(self, episode: SwarmEpisode, outcome: EpisodeOutcome) -> EpisodeReceipt:
        """End an episode; see `SwarmEpisode.end`.

        :raises GatewayError: if it is over, or the outcome can't be used.
        """
        receipt = self._call(partial(self._client.end, episode.begun, outcome))
        self._close(episode)
        return receipt

    def abort_episode(self, episode: SwarmEpisode, why: str = "") -> None:
        """Give up an episode. One that is over stays as it is."""
        if episode.over:
            return
        self._close(episode)
        try:
            self._call(partial(self._client.abort, episode.begun, why))
        except GatewayError as error:
            # It has expired: its slot is offered again.
            logger.info("episode was over", episode=episode.id, problem=error.message)

    def calls(self, episode: SwarmEpisode) -> list[RecordedCall]:
        """Return the calls of an episode so far, with exact tokens."""
        return self._call(partial(self._client.tokens, episode.begun))

    def work(self, work: Work, *, at_once: int = 1) -> int:
        """Play episodes until the run is over; return their number.

        An exception of `work` aborts its episode, and the next one begins. What `work` returns ends an episode that it has not
        ended: an answer, a number, rewards by agent, an `EpisodeOutcome`, or nothing.

        :param work: plays an episode, sync or async; it is called in `at_once` threads.
        :param at_once: maximum number of concurrent episodes.
        """
        if at_once < 1:
            raise ConfigurationError(f"at_once: {at_once} is no number of episodes; write 1 or more")
        with ThreadPoolExecutor(at_once, thread_name_prefix="swarm") as threads:
            running = [threads.submit(self._work, work) for _ in range(at_once)]
            try:
                wait(running, return_when=FIRST_EXCEPTION)
            finally:
                self._stop()
            played = sum(worker.result() for worker in running)
        self._stopping.clear()
        return played

    def _stop(self) -> None:
        """Stop beginning episodes, and give up open ones: their calls are refused, so that their threads end."""
        self._stopping.set()
        for waiting in list(self._waiting):
            waiting.cancel()
        for episode in list(self._open):
            with suppress(AgentFlowError):
                self.abort_episode(episode, "the client stopped")

    def _work(self, work: Work) -> int:
        played = 0
        while not self._stopping.is_set():
            try:
                episode = self.begin_episode(wait=POLL_SECONDS)
            except CancelledError:
                return played
            except RunStopped as stop:
                if stop.cause is StopCause.INTERRUPTED:
                    return played
                raise
            if episode is not None:
                played += self._play(work, episode)
        return played

    def _play(self, work: Work, episode: SwarmEpisode) -> bool:
        """Play an episode; return true if it ended."""
        try:
            with episode:
                result = work(episode)
                if inspect.isawaitable(result):
                    result = anyio.run(_awaited, result)
                if not episode.over:
                    self.end_episode(episode, outcome_of(result))
        except ConfigurationError:
            raise
        except Exception:  # boundary: user code may raise anything, and the next episode begins
            logger.exception("episode crashed", episode=episode.id, task=episode.task.id)
            return False
        return True

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._portal.call(work)

    def _close(self, episode: SwarmEpisode) -> None:
        episode.over = True
        self._open.discard(episode)

    async def _keep_alive(self) -> None:
        """Keep open episodes from expiring while this process lives."""
        while True:
            shortest = min((episode.begun.expires for episode in list(self._open)), default=_MAX_PAUSE)
            await anyio.sleep(min(shortest / _KEEP_ALIVE_SHARE, _MAX_PAUSE))
            for episode in list(self._open):
                try:
                    await self._client.alive(episode.begun)
                except AgentFlowError as error:
                    logger.info("episode not kept alive", episode=episode.id, problem=str(error))


async def _awaited(result: Awaitable[T]) -> T:
    return await result
