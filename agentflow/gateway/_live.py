"""An open episode: its agents, its running calls, and its limits."""

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import anyio
import anyio.abc
import msgspec
from anyio import to_thread
from msgspec import structs

from agentflow.actors import Clock
from agentflow.errors import ModelFailure, ModelFailureKind, RunStopped, error_line
from agentflow.gateway._answers import AgentConversations, Answered, Answerer, recalled
from agentflow.gateway._settings import GatewaySettings
from agentflow.gateway._store import EpisodeAttempt, EpisodeStore
from agentflow.gateway._types import (
    EpisodeOffer,
    EpisodeReceipt,
    GatewayCall,
    GatewayError,
    OnText,
    RecordedCall,
)
from agentflow.models import Completion, Message
from agentflow.telemetry import Operation, conventions, gateway_operation, get_logger

DELIVERY_SECONDS = 2.0
"""Time that the end of an episode gives its last answers to reach their client."""
_MAX_RECENT = 64
_RETRY_SECONDS = 1.0
_log = get_logger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RecordedCall).decode


class _RecordId(msgspec.Struct):
    """Id of a recorded call."""

    id: str


_decode_id = msgspec.msgpack.Decoder(_RecordId).decode


class _RunningCall:
    """One call: running, or answered. Retries of the client wait for the same one."""

    def __init__(self, agent: str, digest: str) -> None:
        self.agent = agent
        self.digest = digest
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()
        self.answers: list[Completion[None]] = []
        self.error: GatewayError | None = None
        self.cancelled = False
        self.waiters = 0
        self.sending = 0
        self.delivered = False
        self.origins: tuple[str, ...] = ()
        self.trainable = 0

    def stream_to(self, id: str, on_text: OnText | None) -> Callable[[str], None] | None:
        """Return a receiver of text that falls silent when the client leaves."""
        if on_text is None:
            return None

        def send(text: str) -> None:
            if self.waiters:
                on_text(id, text)

        return send


class AgentModel(NamedTuple):
    """Model of one agent."""

    answerer: Answerer
    """The model."""
    trained: bool
    """The agent is trained."""


class LiveEpisode:
    """An open episode, as model APIs see it. It ends once, by `seal`. See docs/gateway.md."""

    def __init__(
        self,
        offer: EpisodeOffer,
        attempt: EpisodeAttempt,
        *,
        agents: Mapping[str, AgentModel],
        settings: GatewaySettings,
        store: EpisodeStore,
        clock: Clock,
        tasks: anyio.abc.TaskGroup,
        opened: Callable[[], Awaitable[None]],
    ) -> None:
        """Begin without calls.

        :param attempt: its page in the journal and its keys.
        :param agents: the model of each agent of the run.
        :param tasks: task group of the calls.
        :param opened: waits while calls are paused.
        """
        self.offer = offer
        """Its offer."""
        self.attempt = attempt
        """Its attempt: its page in the journal and its keys."""
        self.sealed = False
        """It takes no more calls."""
        self.began = self.last_seen = clock.now()
        self.recorded = 0
        """Number of recorded answers."""
        self.tokens = 0
        """Number of recorded tokens."""
        self.lost: tuple[str, ...] = ()
        """Ids of the answers that no client received, once it is sealed."""
        self._repeated = 0
        """Number of calls that equalled those of its origin."""
        self._origin: deque[RecordedCall] | None = None
        """Calls of its origin that it has not repeated; `None`: they are not read."""
        self._recalling = anyio.Lock()
        self._memories = {
            agent: AgentConversations(agent, trained=agents[agent].trained) for agent in attempt.begin.digests
        }
        self._temperature = settings.temperature if offer.temperature is None else offer.temperature
        self._limits = settings.limits
        self._agents = agents
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._opened = opened
        self._image_bytes: dict[str, int] = {}
        """Sizes of the images that were recorded, by hash."""
        self._bytes = 0
        self._calls = 0
        self._running: set[_RunningCall] = set()
        self._sending: set[_RunningCall] = set()
        self._sent = anyio.Event()
        self._of_answer: dict[str, _RunningCall] = {}
        self._recent: deque[_RunningCall] = deque()

    @property
    def in_flight(self) -> int:
        """Number of running calls."""
        return len(self._running)

    def alive(self) -> None:
        """Count as activity: it expires later."""
        self.last_seen = self._clock.now()

    def models(self, agent: str) -> tuple[str, ...]:
        """Return the accepted names of an agent's model; the first is the default.

        Names of the other agents' models are accepted too: many programs use one name for all their agents.
        """
        models = (self._agents[agent], *self._agents.values())
        return tuple(dict.fromkeys(name for model in models for name in model.answerer.models))

    def overrides(self, agent: str, call: GatewayCall) -> tuple[str, ...]:
        """Return the sampling parameters of a request that the run replaces."""
        return self._agents[agent].answerer.overrides(call, self._temperature_of(agent))

    async def conversation(self, agent: str, call: str) -> tuple[Message, ...] | None:
        """Return the messages of a recorded call with its answer; `None` if the agent made no such call."""
        chain = self._memories[agent].chain(call)
        if not chain:
            return None
        return await to_thread.run_sync(_conversation, chain, await self._store.calls(self.attempt.page))

    def image_bytes(self, hash: str) -> int:
        """Return the size of an image of a recorded call."""
        return self._image_bytes[hash]

    async def images(self, hashes: Collection[str]) -> dict[str, bytes]:
        """Return images of recorded calls by hash."""
        return await self._store.images(hashes)

    async def count(self, agent: str, call: GatewayCall) -> int:
        """Return the number of tokens of a prompt.

        :raises GatewayError: if the episode has ended.
        """
        self._check_open()
        self.alive()
        await self._opened()
        return await self._agents[agent].answerer.count(call)

    async def complete(
        self, agent: str, call: GatewayCall, retry: str, on_text: OnText | None = None
    ) -> list[Completion[None]]:
        """Answer a call of an agent and record it. A cancelled caller leaves it running.

        :param retry: digest of the request, `:` and the number of the retry, 0 at first. A retry waits for the same call,
            or gets its recorded answer.
        :param on_text: receives the id of the answer and text, while it is sampled.
        :raises GatewayError: if the episode has ended, a limit is reached, or the call can't be answered.
        """
        self._check_open()
        self.alive()
        digest, _, number = retry.rpartition(":")
        running = self._earlier(agent, digest) if digest and number.isdigit() and int(number) else None
        if running is None:
            running = self._start(agent, call, digest, on_text)
        running.waiters += 1
        try:
            await running.done.wait()
        finally:
            running.waiters -= 1
        self.alive()
        if running.error is not None:
            raise running.error
        running.sending += 1
        self._sending.add(running)
        return running.answers

    def delivered(self, ids: Sequence[str], ok: bool = True) -> None:
        """Report the end of the sending of some answers.

        :param ids: ids of the answers.
        :param ok: the client has received them.
        """
        for running in {self._of_answer[id] for id in ids if id in self._of_answer}:
            running.delivered |= ok
            running.sending -= 1
            if running.sending <= 0:
                self._sending.discard(running)
        if not self._sending:
            self._sent.set()

    async def seal(self) -> EpisodeReceipt:
        """End it: cancel running calls, refuse new ones, and wait for answers that are being sent."""
        self.sealed = True
        running = list(self._running)
        for call in running:
            call.scope.cancel()
        with anyio.CancelScope(shield=True):
            for call in running:
                await call.done.wait()
            self._sent = anyio.Event()
            with self._clock.deadline(DELIVERY_SECONDS):
                if self._sending:
                    await self._sent.wait()
        self.lost = tuple(id for id, call in self._of_answer.items() if not call.delivered)
        answered = set(self._of_answer.values())
        forks = Counter(origin for call in answered for origin in call.origins)
        return EpisodeReceipt(
            episode=self.offer.id,
            attempt=self.attempt.number,
            calls=self.recorded,
            tokens=sum(call.trainable for call in answered if call.delivered),
            forks=dict(sorted(forks.items())),
            group=self.offer.group,
            cancelled=sum(call.cancelled for call in running),
        )

    @property
    def diverged(self) -> str:
        """Reason that it is no branch of its origin; empty: it is one, or has no origin."""
        branch = self.offer.branch
        if not branch or not branch.origin or self._repeated > branch.calls:
            return ""
        return f"branch: call {self._repeated + 1} is not that of episode {branch.origin}; it is played independently"

    def has_call(self, id: str) -> bool:
        """Return true if an answer with this id is recorded."""
        return id in self._of_answer

    def _temperature_of(self, agent: str) -> float | None:
        return self._temperature if self._memories[agent].trained else None

    def _check_open(self) -> None:
        if self.sealed:
            raise ended_error()

    def _earlier(self, agent: str, digest: str) -> _RunningCall | None:
        """Return the call that a retry repeats: the newest equal one that was neither awaited nor delivered, or the newest."""
        equal = [
            call
            for call in self._recent
            if call.digest == digest and call.agent == agent and call.error is None
        ]
        unclaimed = [call for call in equal if not call.waiters and not call.delivered]
        return (unclaimed or equal or [None])[-1]

    def _start(self, agent: str, call: GatewayCall, digest: str, on_text: OnText | None) -> _RunningCall:
        limits = self._limits
        if len(self._running) >= limits.in_flight:
            raise GatewayError(
                429,
                f"in_flight: this episode has {limits.in_flight} calls running; wait for one, or raise limits.in_flight",
                code="too_many_calls_in_flight",
                retry_after=_RETRY_SECONDS,
            )
        for name, used, limit in (
            ("calls", self._calls + call.answers - 1, limits.calls),
            ("tokens", self.tokens, limits.tokens),
            ("recorded_bytes", self._bytes, limits.recorded_bytes),
        ):
            if used >= limit:
                raise GatewayError(
                    403,
                    f"{name}: this episode has reached its limit of {limit}; end it, or raise limits.{name}",
                    code=f"{name}_limit",
                )
        self._calls += call.answers
        number = f"c{self._calls - call.answers + 1}"
        ids = [number] if call.answers == 1 else [f"{number}.{position}" for position in range(call.answers)]
        running = _RunningCall(agent, digest)
        self._running.add(running)
        self._recent.append(running)
        if len(self._recent) > _MAX_RECENT and self._recent[0].done.is_set():
            oldest = self._recent.popleft()
            if not oldest.waiters:
                # No retry finds it any more.
                oldest.answers = []
        self._tasks.start_soon(self._answer, running, call, ids, running.stream_to(ids[0], on_text))
        return running

    async def _answer(
        self,
        running: _RunningCall,
        call: GatewayCall,
        ids: Sequence[str],
        on_text: Callable[[str], None] | None,
    ) -> None:
        """Answer a call and record it. Never raises: the callers get the error."""
        agent = running.agent
        try:
            with running.scope:
                await self._opened()
                with self._traced(agent) as operation:
                    answered = await self._recalled(call, agent, ids[0], on_text)
                    answered = answered or await self._agents[agent].answerer.answer(
                        call,
                        self._memories[agent],
                        ids,
                        seed=f"{self.offer.seed}/{agent}",
                        temperature=self._temperature_of(agent),
                        on_text=on_text,
                    )
                    _describe(operation, [answer for answer, _ in answered])
                await self._record(running, answered, call.images)
        except GatewayError as error:
            running.error = error
        except ModelFailure as failure:
            running.error = _model_error(failure)
        except RunStopped as stop:
            running.error = GatewayError(503, str(stop), code="unavailable", retry_after=_RETRY_SECONDS)
        except Exception as error:  # boundary: the client gets it, and the other episodes continue
            _log.exception("call failed", episode=self.offer.id, agent=agent)
            running.error = GatewayError(500, f"the gateway failed: {error_line(error)}", code="failed")
        finally:
            running.cancelled = running.scope.cancelled_caught
            if not running.answers and running.error is None:
                running.error = ended_error()
            self._running.discard(running)
            self.alive()
            running.done.set()

    async def _recalled(
        self, call: GatewayCall, agent: str, id: str, on_text: Callable[[str], None] | None
    ) -> list[Answered]:
        """Return the answer that the origin of a branch got to the same call; empty: it is sampled.

        :raises GatewayError: 409 if the call is another one.
        """
        branch = self.offer.branch
        if not branch or not branch.origin:
            return []
        async with self._recalling:
            if not self.diverged:
                return []
            if self._origin is None:
                attempt = await self._store.attempt(branch.origin, branch.attempt)
                records = [] if attempt is None else await self._store.recorded_calls(attempt)
                self._origin = deque(records[: branch.calls + 1])
            answered, repeats = None, self._repeated < branch.calls
            if self._origin:
                # The first call that is sampled has the prompt of the origin's call, too.
                answered = await recalled(
                    call, self._memories[agent], self._origin.popleft(), id, answer=repeats
                )
            if answered is None:
                self._origin.clear()
                raise GatewayError(409, self.diverged, code="diverged")
            self._repeated += 1
        if on_text is not None and repeats and answered[0].text:
            on_text(answered[0].text)
        return [answered] if repeats else []

    def _traced(self, agent: str) -> Operation:
        """Return the operation of a call, in the trace of the episode."""
        return gateway_operation(
            self._agents[agent].answerer.models[0],
            agent,
            episode=f"{self.offer.id}/{self.attempt.number}",
            task=self.offer.task.id,
            key=b"".join(self.attempt.begin.digests.values()).hex(),
        )

    async def _record(
        self,
        running: _RunningCall,
        answered: Sequence[tuple[Completion[None], RecordedCall]],
        images: Mapping[str, bytes],
    ) -> None:
        with anyio.CancelScope(shield=True):
            # Each request of a growing conversation has all its images.
            new = {hash: data for hash, data in images.items() if hash not in self._image_bytes}
            self._image_bytes |= {hash: len(data) for hash, data in new.items()}
            self._bytes += sum(map(len, new.values()))
            for _, record in answered:
                body = _encode(record)
                self.recorded += 1
                self._bytes += len(body)
                await self._store.add_call(self.attempt.page, self.recorded, body, new)
                new = {}
                if record.tokens is not None:
                    self.tokens += len(record.tokens.prompt) + len(record.tokens.sampled)
                    running.trainable += len(record.tokens.sampled) if record.trained else 0
                self._of_answer[record.id] = running
        running.origins = tuple(record.origin.value for _, record in answered)
        running.answers = [answer for answer, _ in answered]


def _describe(operation: Operation, answers: Sequence[Completion[None]]) -> None:
    """Add the answers to the operation of a call."""
    operation.set(conventions.RESPONSE_FINISH_REASONS, [answer.finish for answer in answers])
    for answer in answers[:1]:
        # The answers of one call share their prompt.
        operation.set(conventions.USAGE_INPUT_TOKENS, answer.usage.prompt_tokens)
    operation.set(conventions.USAGE_OUTPUT_TOKENS, sum(answer.usage.completion_tokens for answer in answers))


def _conversation(chain: Sequence[str], records: Sequence[bytes]) -> tuple[Message, ...]:
    """Return the messages of calls that continue each other, with their answers."""
    of_chain = set(chain)
    calls = {(call := _decode(record)).id: call for record in records if _decode_id(record).id in of_chain}
    messages: list[Message] = []
    for id in chain:
        messages += [*calls[id].messages, structs.replace(calls[id].answer, mark=id)]
    return tuple(messages)


def ended_error() -> GatewayError:
    """Return the refusal of a key whose episode has ended."""
    return GatewayError(410, "this episode has ended; begin another one", code="episode_ended")


def _model_error(failure: ModelFailure) -> GatewayError:
    """Return the error of a failed model call; clients repeat only temporary ones."""
    status = 400 if failure.kind in (ModelFailureKind.BAD_REQUEST, ModelFailureKind.TOO_LONG) else 502
    wait = _RETRY_SECONDS if failure.kind.is_temporary else None
    return GatewayError(status, f"the model gave no answer: {failure}", code=failure.kind, retry_after=wait)
