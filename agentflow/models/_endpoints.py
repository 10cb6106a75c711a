"""Endpoints: connections, the adaptive limit of concurrent requests, rate limits, retries and rejected parameters.

Models at the same endpoint share all of them; no other place retries.
"""

import asyncio
import heapq
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import cache
from hashlib import sha256
from itertools import count
from random import Random
from typing import Final, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import msgspec
from msgspec import structs

from agentflow._decoding import DECODE_ERRORS
from agentflow._typeguards import is_object
from agentflow.actors import SYSTEM_CLOCK, Clock, Timer
from agentflow.errors import ModelFailureKind
from agentflow.models._answer_format import FormatExperience
from agentflow.models._apis import EncodedRequest, without_reasoning
from agentflow.models._conversations import ConversationIndex
from agentflow.models._protocol import Completion
from agentflow.models._providers import LITELLM, ModelAddress
from agentflow.models._request_error import RequestError
from agentflow.models._settings import ModelSettings
from agentflow.models._transport import HttpTransport, LiteLlmTransport, ReplicaTransport
from agentflow.telemetry import get_logger

logger = get_logger(__name__)
T = TypeVar("T")
Send: TypeAlias = Callable[[EncodedRequest], Awaitable[bytes]]
"""Function that sends a request and returns the body of the answer."""
Fields: TypeAlias = dict[str, msgspec.Raw]

_OTHER_NAMES: Final = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
_OPTIONAL: Final = (*_OTHER_NAMES, "temperature", "top_p", "seed", "stop", "stop_sequences")
"""Parameters without which a request still means the same, or nearly so."""
_UNSUPPORTED: Final = {"unsupported_parameter", "unsupported_value", "unknown_parameter"}
_BEFORE: Final = r"(?:unsupported|unrecogni[sz]ed|unknown|unexpected|deprecated|(?:not|n't) support)"
_AFTER: Final = (
    r"(?:unsupported|not (?:be )?(?:support|permitted|allowed|available|specified|recogni[sz]ed)|deprecated"
    r"|extra inputs|extra_forbidden|n't support|cannot (?:both )?be|is fixed|only (?:the default|\d))"
)
_NEAR: Final = r"[^{}\n]{0,60}?"
_MAX_ERROR_TEXT: Final = 4000
_MAX_TOKENS: Final = 16_000_000
"""Tokens of conversations that are kept for each model."""
_FIRST_PAUSE = 0.25
_MAX_PAUSE = 8.0
_USED_SHARE: Final = 0.97
"""Share of a limit that is used: slots are even, and the network delivers some requests later than others."""


class Permit(NamedTuple):
    """Permit for one request."""

    round: int
    """Number of decreases before the request started."""


class ConcurrencyLimiter:
    """Adaptive concurrency limit: additive increase, multiplicative decrease (AIMD), first come, first served.

    The limit grows by one for each success until the endpoint first reports overload, then by one for each full round.
    An overload halves it; those of requests that were already in flight at that time are ignored. The limit grows only
    while it is the bottleneck.
    """

    def __init__(self, max_limit: int, *, start: int = 64, clock: Clock = SYSTEM_CLOCK) -> None:
        """:param max_limit: upper bound of the limit.
        :param start: initial limit, high enough for a few trees with eight calls each to start without waiting for it to
            grow.
        """
        self._max_limit = max_limit
        self._limit = float(min(start, max_limit))
        self._clock = clock
        self._tickets = count()
        self._waiting: list[tuple[int, asyncio.Future[Permit]]] = []
        self.in_flight = 0
        """Requests with a permit."""
        self._round = 0
        self._pushed_back = False
        self._closed_until = 0.0
        self._opening: Timer | None = None

    @property
    def limit(self) -> int:
        """Current limit."""
        return int(self._limit)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return sum(not permit.done() for _, permit in self._waiting)

    def ticket(self) -> int:
        """Return a position in the queue; a call keeps it for all its attempts, so that it goes before later calls."""
        return next(self._tickets)

    async def acquire(self, ticket: int) -> Permit:
        """Wait for a permit."""
        if not self._waiting and self._is_open():
            self.in_flight += 1
            return Permit(self._round)
        waiter: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (ticket, waiter))
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                # The permit arrived together with the cancellation: pass it on.
                self.in_flight -= 1
                self._let_in()
            raise

    def release(
        self, permit: Permit, *, good: bool = False, overloaded: bool = False, pause: float = 0.0
    ) -> None:
        """Return a permit.

        :param good: the request was answered.
        :param overloaded: the endpoint reported overload, or took too long.
        :param pause: seconds without new permits.
        """
        if good and permit.round == self._round and self.in_flight >= self.limit:
            self._limit = min(self._max_limit, self._limit + (1 / self._limit if self._pushed_back else 1))
        elif overloaded and permit.round == self._round:
            self._limit = max(1.0, self._limit / 2)
            self._round += 1
            self._pushed_back = True
        self.in_flight -= 1
        if pause > 0:
            self._close(pause)
        self._let_in()

    def _is_open(self) -> bool:
        return self.in_flight < self.limit and self._opening is None

    def _close(self, seconds: float) -> None:
        until = self._clock.now() + seconds
        if self._opening is not None:
            if until <= self._closed_until:
                return
            self._opening.cancel()
        self._closed_until = until
        self._opening = self._clock.call_later(seconds, self._open)

    def _open(self) -> None:
        self._opening = None
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and (self._waiting[0][1].done() or self._is_open()):
            _, waiter = heapq.heappop(self._waiting)
            if not waiter.done():
                self.in_flight += 1
                waiter.set_result(Permit(self._round))


class RateLimiter(Protocol):
    """Assigns slots to the requests of all who share a limit. See docs/models.md."""

    async def reserve(self, name: str, interval: float) -> float:
        """Reserve the next free slot and return the seconds until it.

        :param name: name of the limit.
        :param interval: seconds between two slots.
        """
        ...


class LocalRateLimiter:
    """Slots for the requests of this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free: dict[str, float] = {}

    async def reserve(self, name: str, interval: float) -> float:
        """Reserve the next free slot and return the seconds until it."""
        now = self._clock.now()
        slot = max(now, self._free.get(name, now))
        self._free[name] = slot + interval
        return slot - now


class ModelThrottle:
    """Lets one request pass per slot of the limit of a model."""

    def __init__(
        self, limiter: RateLimiter, address: ModelAddress, per_minute: float | None, clock: Clock
    ) -> None:
        """:param per_minute: the limit; `None`: there is none."""
        self._limiter = limiter
        # Providers limit the requests of a key to a model. The key itself is not stored.
        self._name = sha256(f"{address.url}\n{address.model}\n{address.key}".encode()).hexdigest()
        self._interval = None if per_minute is None else 60 / (per_minute * _USED_SHARE)
        self._clock = clock

    async def wait(self) -> None:
        """Wait for the slot of one request."""
        if self._interval is None:
            return
        seconds = await self._limiter.reserve(self._name, self._interval)
        if seconds > 0:
            await self._clock.sleep(seconds)


class Retrier:
    """Repeat a request until it succeeds, can't succeed, or runs out of time or attempts."""

    def __init__(
        self,
        limiter: ConcurrencyLimiter,
        *,
        max_requests: int,
        seconds: float,
        clock: Clock = SYSTEM_CLOCK,
        random: Random | None = None,
        throttle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """:param max_requests: maximum number of requests per call.
        :param seconds: time for one call, from its first request on.
        :param random: source of the jitter of pauses.
        :param throttle: waits for the slot of a request, under a rate limit.
        """
        self._limiter = limiter
        self._max_requests = max_requests
        self._seconds = seconds
        self._clock = clock
        self._random = random or Random()
        self._throttle = throttle
        self.made = 0
        """Requests made so far, over all calls."""

    async def run(self, once: Callable[[float], Awaitable[T]]) -> T:
        """Return the result of `once`, which gets the number of seconds left.

        :raises RequestError: that of the last attempt.
        """
        ticket = self._limiter.ticket()
        deadline: float | None = None
        attempt = 0
        while True:
            permit = await self._permit(ticket)
            now = self._clock.now()
            deadline = now + self._seconds if deadline is None else deadline
            attempt += 1
            try:
                return await self._attempt(once, permit, deadline - now)
            except RequestError as error:
                error.attempts = attempt
                pause = self._pause(error, attempt)
                if not error.retry or attempt >= self._max_requests or self._clock.now() + pause >= deadline:
                    raise
            if pause:
                await self._clock.sleep(pause)

    async def _permit(self, ticket: int) -> Permit:
        """Wait for a permit and a slot; the time for a call does not begin before its first slot."""
        permit = await self._limiter.acquire(ticket)
        if self._throttle is not None:
            try:
                await self._throttle()
            except BaseException:
                self._limiter.release(permit)
                raise
        return permit

    async def _attempt(self, once: Callable[[float], Awaitable[T]], permit: Permit, seconds: float) -> T:
        good = overloaded = False
        pause = 0.0
        try:
            if seconds <= 0:
                raise RequestError(ModelFailureKind.TIMEOUT, "no time left for another attempt")
            self.made += 1
            answer = await once(seconds)
            good = True
            return answer
        except RequestError as error:
            overloaded = error.overloaded
            good = error.status == 200
            if overloaded:
                pause = min(error.retry_after or 0.0, self._seconds)
            raise
        finally:
            self._limiter.release(permit, good=good, overloaded=overloaded, pause=pause)

    def _pause(self, error: RequestError, attempt: int) -> float:
        """Return the seconds until the next attempt: as the endpoint asked, else exponential backoff with jitter."""
        if not error.backs_off:
            return 0.0
        if error.retry_after is not None:
            return error.retry_after
        pause = min(_MAX_PAUSE, _FIRST_PAUSE * 2 ** (attempt - 1))
        return pause * self._random.uniform(0.5, 1.0)


class RejectedParameters:
    """Parameters that one model rejects, learned from its errors.

    A parameter is remembered once a request without it was answered.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._instead: dict[str, str] = {}

    async def send(self, request: EncodedRequest, send: Send) -> bytes:
        """Send a request without the parameters that the model rejects, and return the body of the answer.

        :raises RequestError: if there is no answer, or its status is not 200.
        """
        instead = dict(self._instead)
        while True:
            try:
                answer = await send(_adapted(request, instead) if instead else request)
            except RequestError as error:
                if not self._adapt(instead, request, error):
                    raise
                continue
            for name in instead.keys() - self._instead.keys():
                used = f"renamed to {instead[name]}" if instead[name] else "left out"
                logger.warning("parameter rejected", model=self._model, parameter=name, from_now_on=used)
            self._instead |= instead
            return answer

    def _adapt(self, instead: dict[str, str], request: EncodedRequest, error: RequestError) -> bool:
        """Add the parameter that an error names; return false if it names none."""
        if error.status not in {400, 422}:
            return False
        fields = _fields(request)
        sent = {instead.get(name, name): name for name in _OPTIONAL if name in fields}
        sent.pop("", None)
        code, param, text = _described(error.body)
        rejected = param if param in sent and code in _UNSUPPORTED else None
        if rejected is None:
            # `temperature and top_p cannot both be specified`: the last one is left out.
            rejected = next((name for name in reversed(sent) if _rejects(name).search(text)), None)
        if rejected is None:
            return False
        new_name = _OTHER_NAMES.get(rejected, "")
        renames = sent[rejected] == rejected and new_name and new_name not in sent and new_name in text
        instead[sent[rejected]] = new_name if renames else ""
        return True


def _fields(request: EncodedRequest) -> Fields:
    return msgspec.json.decode(request.body, type=Fields)


def _adapted(request: EncodedRequest, instead: Mapping[str, str]) -> EncodedRequest:
    fields = {instead.get(name, name): value for name, value in _fields(request).items()}
    fields.pop("", None)
    return structs.replace(request, body=msgspec.json.encode(fields))


def _described(body: bytes) -> tuple[str, str, str]:
    """Return code, parameter and text of an error."""
    text = body[:_MAX_ERROR_TEXT].decode(errors="replace").replace("\\", "")
    try:
        decoded: object = msgspec.json.decode(body)
    except DECODE_ERRORS:
        return "", "", text
    error = decoded.get("error", decoded) if is_object(decoded) else None
    return (str(error.get("code")), str(error.get("param")), text) if is_object(error) else ("", "", text)


@cache
def _rejects(name: str) -> re.Pattern[str]:
    """Return the pattern of a text that rejects a parameter."""
    word = rf"(?<![\w.]){name}\b"
    return re.compile(rf"{_BEFORE}{_NEAR}{word}|{word}{_NEAR}{_AFTER}", re.IGNORECASE)


class RejectionMemory:
    """Parameters and answer formats that models reject, by endpoint and model.

    `ModelEndpoints` has its own, unless several are to share one. See docs/models.md.
    """

    def __init__(self) -> None:
        self._parameters: dict[tuple[str, str], RejectedParameters] = {}
        self._formats: dict[tuple[str, str], FormatExperience] = {}

    def parameters(self, url: str, model: str) -> RejectedParameters:
        """Return the parameters that a model at an endpoint rejects."""
        return self._parameters.setdefault((url, model), RejectedParameters(model))

    def formats(self, url: str, model: str) -> FormatExperience:
        """Return the experience with the answer formats of a model at an endpoint."""
        return self._formats.setdefault((url, model), FormatExperience())


class Endpoint:
    """One endpoint, open while any of its models is."""

    def __init__(
        self,
        address: ModelAddress,
        max_concurrency: int,
        clock: Clock,
        memory: RejectionMemory,
        rates: RateLimiter,
    ) -> None:
        self.rates = rates
        """Slots under the rate limits of its models."""
        self.url = address.url
        """Address, for messages."""
        self.limiter = ConcurrencyLimiter(max_concurrency, clock=clock)
        """Limiter of concurrent requests."""
        self._clock = clock
        self._conversations: dict[str, ConversationIndex] = {}
        self._memory = memory
        self._api = address.api
        self._miscounts = False
        self._transport = _transport_to(address, max_concurrency, clock)
        self._users = 0
        self._stack = AsyncExitStack()

    def conversations(self, model: str) -> ConversationIndex:
        """Return the conversations of a model at this endpoint, shared by all its users."""
        return self._conversations.setdefault(model, ConversationIndex(max_tokens=_MAX_TOKENS, by_mark=True))

    def formats(self, model: str) -> FormatExperience:
        """Return the experience with the answer formats of a model at this endpoint, shared by all its users."""
        return self._memory.formats(self.url, model)

    async def post(self, model: str, outgoing: EncodedRequest, seconds: float) -> bytes:
        """Send one request and return the body of the answer.

        If the model rejects a sampling parameter, the request is repeated without it, and so are later ones.

        :raises RequestError: if there is no answer, or its status is not 200.
        """
        deadline = self._clock.now() + seconds
        return await self._memory.parameters(self.url, model).send(
            outgoing, lambda adapted: self._transport.post(adapted, deadline - self._clock.now())
        )

    def read(self, body: bytes, sent: int) -> Completion[None]:
        """Decode an answer, with all reasoning apart; the first one with impossible token counts is logged.

        :param sent: length of the request.
        :raises msgspec.MsgspecError: if the body can't be decoded.
        """
        answer = self._api.read(body, sent)
        if answer.usage_problem and not self._miscounts:
            self._miscounts = True
            logger.warning(
                "reported token counts are impossible",
                endpoint=self.url,
                problem=answer.usage_problem,
                from_now_on="such answers count four characters per token",
            )
        return without_reasoning(answer)

    async def __aenter__(self) -> Self:
        self._users += 1
        if self._users == 1:
            await self._stack.enter_async_context(self._transport)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._users -= 1
        if not self._users:
            await self._stack.aclose()


def _transport_to(
    address: ModelAddress, max_concurrency: int, clock: Clock
) -> HttpTransport | ReplicaTransport | LiteLlmTransport:
    if address.registry:
        return ReplicaTransport(address, max_concurrency, clock)
    if address.url == LITELLM:
        return LiteLlmTransport(address.key)
    return HttpTransport(
        address.url, address.api.headers(address.key), max_concurrency, max_bytes=address.response_bytes
    )


class ModelEndpoints:
    """The endpoints of one program. See docs/models.md."""

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        memory: RejectionMemory | None = None,
        rates: RateLimiter | None = None,
    ) -> None:
        """:param rates: slots under rate limits that other processes share; by default this process has its own."""
        self._clock = clock
        self._rates = rates or LocalRateLimiter(clock)
        self._memory = memory or RejectionMemory()
        self._endpoints: dict[tuple[str, ...], Endpoint] = {}

    def at(self, address: ModelAddress, max_concurrency: int) -> Endpoint:
        """Return the endpoint at an address; equal address, key and limits give the same object.

        Each model with replicas has an endpoint of its own.
        """
        registry = (address.registry, address.model) if address.registry else ()
        key = (
            address.url,
            address.api.name,
            address.key,
            str(max_concurrency),
            str(address.response_bytes),
            *registry,
        )
        if key not in self._endpoints:
            self._endpoints[key] = Endpoint(address, max_concurrency, self._clock, self._memory, self._rates)
        return self._endpoints[key]


class EndpointClient:
    """Base of the clients of one model: its endpoint is open inside `async with`."""

    def __init__(
        self,
        settings: ModelSettings,
        address: ModelAddress,
        endpoints: ModelEndpoints | None,
        *,
        clock: Clock,
        random: Random | None = None,
    ) -> None:
        self._address = address
        self._endpoint = (endpoints or ModelEndpoints(clock)).at(address, settings.max_concurrency)
        self._retrier = Retrier(
            self._endpoint.limiter,
            max_requests=settings.max_attempts,
            seconds=settings.call_seconds,
            clock=clock,
            random=random,
            throttle=ModelThrottle(self._endpoint.rates, address, settings.requests_per_minute, clock).wait,
        )

    async def __aenter__(self) -> Self:
        await self._endpoint.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._endpoint.__aexit__(*error)
