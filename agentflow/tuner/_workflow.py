"""Workflows: the user's agent, played with the keys of an episode, in this process."""

import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final, TypeAlias

import anyio
from msgspec import Struct, structs

from agentflow.errors import (
    AgentFlowError,
    ConfigurationError,
    RunStopped,
    StopCause,
    error_line,
    unwrap_group,
)
from agentflow.gateway import BegunEpisode, EpisodeMode, EpisodeOutcome, GatewayClient, GatewayError
from agentflow.telemetry import get_logger
from agentflow.tuner._branch_sandbox import BranchSandbox, OpenSandbox, SandboxStates
from agentflow.tuner.judges import SANDBOX, EpisodeJudge, Judged, as_outcome, call_any, takes_sandbox

logger = get_logger(__name__)

ONLY_AGENT: Final = ""
"""Name of the agent of episodes with only one."""
TIME_PREFIX: Final = "time: "
"""Beginning of the reason of an episode that was aborted because it took too long."""
_REFUSED: Final = 400
POLL_SECONDS: Final = 20.0
"""Longest wait of one request for an episode."""

Solve: TypeAlias = Callable[..., object]
"""`solve(task, policy)`, sync or async: plays an episode and returns an answer, a number, rewards by agent, or an
`EpisodeOutcome`. A third parameter `sandbox` gets a sandbox of the episode.
"""


class PolicyEndpoint(Struct, frozen=True, kw_only=True):
    """The model in an episode: address and key for any client. See docs/tuner.md."""

    base_url: str
    """Address for OpenAI clients; ends with `/v1`."""
    api_key: str
    """Key of the agent in this episode."""
    model: str
    """Name of the model."""
    keys: dict[str, str]
    """Key of each agent; `""` is the agent of episodes with only one."""
    episode: str = ""
    """Id of the episode."""
    mode: EpisodeMode = "train"
    """Use of the episode."""
    sandbox: object = None
    """Sandbox of the episode; `None` unless the workflow or its reward has a parameter `sandbox`."""

    @property
    def url(self) -> str:
        """Address without `/v1`, for Anthropic clients."""
        return self.base_url.removesuffix("/v1")

    def agent(self, name: str) -> "PolicyEndpoint":
        """Return the endpoint of another agent of the episode.

        :raises ConfigurationError: if there is no such agent.

        Example::

            wolf = policy.agent("wolf")
            client = AsyncOpenAI(base_url=wolf.base_url, api_key=wolf.api_key)
        """
        if name not in self.keys:
            known = ", ".join(filter(None, self.keys)) or "none with names"
            raise ConfigurationError(
                f"agent {name}: it is not in this run; agents are {known}: add it to agents"
            )
        return structs.replace(self, api_key=self.keys[name])


def endpoint_of(begun: BegunEpisode, sandbox: object = None) -> PolicyEndpoint:
    """Return the model of an episode that was begun. See docs/tuner.md."""
    first = next(iter(begun.keys.values()), "")
    return PolicyEndpoint(
        base_url=begun.base_url,
        api_key=begun.keys.get(ONLY_AGENT, first),
        model=begun.model,
        keys=begun.keys,
        episode=begun.episode,
        mode=begun.mode,
        sandbox=sandbox,
    )


def outcome_of(result: object) -> EpisodeOutcome:
    """Return what a workflow has returned as an outcome; a result that is none is a failed reward. See docs/tuner.md."""
    if result is None:
        return EpisodeOutcome()
    try:
        return as_outcome(result)
    except TypeError as error:
        # The same workflow would return it again, so the episode is left out rather than played again.
        return EpisodeOutcome(failure=str(error))


class WorkflowPlayers:
    """Plays the episodes of a gateway with a workflow, several at once, in this process."""

    def __init__(
        self,
        gateway: GatewayClient,
        solve: Solve,
        *,
        judge: EpisodeJudge | None = None,
        sandbox: OpenSandbox | None = None,
        at_once: int = 16,
        seconds: float = 300.0,
        max_states: int = 128,
    ) -> None:
        """Configure it.

        :param judge: judges outcomes here if it inspects the sandbox; otherwise the trainer does.
        :param sandbox: opens a sandbox.
        :param at_once: maximum number of concurrent episodes.
        :param seconds: time limit of an episode.
        :param max_states: maximum number of states of sandboxes that are kept for branches.
        """
        self._gateway = gateway
        self._solve = solve
        self._wants = takes_sandbox(solve)
        self._judge = judge if judge is not None and judge.needs_sandbox else None
        if (self._wants or self._judge) and sandbox is None:
            raise ConfigurationError(
                "sandbox: the workflow or its reward needs one; sandboxes are made by tune"
            )
        called = getattr(solve, "__call__", None)  # noqa: B004 - an object whose call is a coroutine function
        if self._wants and not (inspect.iscoroutinefunction(solve) or inspect.iscoroutinefunction(called)):
            raise ConfigurationError(
                "solve: its sandbox is awaited; write async def, or leave out the parameter sandbox"
            )
        self._sandbox = sandbox if self._wants or self._judge else None
        self._slots = anyio.Semaphore(at_once)
        self._threads = anyio.CapacityLimiter(at_once)
        self._seconds = seconds
        self._states = SandboxStates(gateway, max_states)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Play episodes inside the block; running ones are cancelled at its end."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._begin_episodes)
                yield
                tasks.cancel_scope.cancel()
        finally:
            await self._states.close()

    async def _begin_episodes(self) -> None:
        async with anyio.create_task_group() as tasks:
            while True:
                await self._slots.acquire()
                try:
                    begun = await self._gateway.begin(wait=POLL_SECONDS)
                except RunStopped as stop:
                    if stop.cause is StopCause.INTERRUPTED:
                        return
                    raise
                if begun is None:
                    self._slots.release()
                else:
                    tasks.start_soon(self._play, begun)

    async def _play(self, begun: BegunEpisode) -> None:
        try:
            await self.play(begun)
        finally:
            self._slots.release()

    async def play(self, begun: BegunEpisode) -> EpisodeOutcome | None:
        """Play an episode and end it; an exception of the workflow aborts it.

        :return: its outcome; `None`: it was aborted.
        :raises ConfigurationError: if the workflow or its reward can't be used.
        """
        try:
            with anyio.move_on_after(self._seconds):
                return await self._end(begun, await self._solved(begun))
            why = f"{TIME_PREFIX}it did not end in {self._seconds:g} seconds"
        except Exception as error:  # boundary: user code may raise anything, and the others continue
            cause = unwrap_group(error)
            if isinstance(cause, ConfigurationError):
                raise cause from error
            why = error_line(error)
            if begun.branch and begun.branch.origin:
                logger.warning("branch is played independently", episode=begun.episode, reason=why)
            else:
                logger.exception("episode crashed", episode=begun.episode, task=begun.task.id)
        await self._states.drop(begun)
        try:
            await self._gateway.abort(begun, why)
        except AgentFlowError as error:
            # It has expired, or the run is over.
            logger.warning("episode not aborted", episode=begun.episode, problem=str(error))
        return None

    async def _end(self, begun: BegunEpisode, outcome: EpisodeOutcome) -> EpisodeOutcome:
        try:
            await self._gateway.end(begun, outcome)
        except GatewayError as error:
            if error.status != _REFUSED:
                raise
            # The same workflow would return it again, so the episode is left out rather than played again.
            outcome = EpisodeOutcome(answer=outcome.answer, failure=error.message)
            await self._gateway.end(begun, outcome)
        return outcome

    async def _solved(self, begun: BegunEpisode) -> EpisodeOutcome:
        async with AsyncExitStack() as stack:
            sandbox: object = None
            if self._sandbox is not None:
                opened = self._states.open(begun, self._sandbox) if begun.branch else self._sandbox()
                sandbox = await stack.enter_async_context(opened)
            policy = endpoint_of(begun, sandbox)
            named: Mapping[str, object] = {SANDBOX: sandbox} if self._wants else {}
            play = partial(self._solve, **named)
            outcome = outcome_of(await call_any(play, begun.task, policy, limiter=self._threads))
            if isinstance(sandbox, BranchSandbox):
                await sandbox.end()
            if self._judge is None or outcome.failure:
                return outcome
            judged = Judged(task=begun.task, outcome=outcome, episode=begun.episode, sandbox=sandbox)
            return await self._judge.judge(judged)
