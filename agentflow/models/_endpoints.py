"""Endpoints: models at the same one share its connections, its concurrency limit and the parameters it rejects."""

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import cache
from random import Random
from typing import Final, Self, TypeAlias

import msgspec
from msgspec import structs

from agentflow._decoding import DECODE_ERRORS
from agentflow._typeguards import is_object
from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.models._answer_format import FormatExperience
from agentflow.models._apis import EncodedRequest, without_reasoning
from agentflow.models._conversations import ConversationIndex
from agentflow.models._protocol import Completion
from agentflow.models._providers import LITELLM, ModelAddress
from agentflow.models._request_error import RequestError
from agentflow.models._retries import (
    ConcurrencyLimiter,
    LocalRateLimiter,
    ModelThrottle,
    RateLimiter,
    Retrier,
)
from agentflow.models._settings import ModelSettings
from agentflow.models._transport import HttpTransport, LiteLlmTransport, ReplicaTransport
from agentflow.telemetry import get_logger

logger = get_logger(__name__)
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
        written = _fields(request)
        sent = {instead.get(name, name): name for name in _OPTIONAL if name in written}
        sent.pop("", None)
        code, param, text = _described(error.body)
        named = param if param in sent and code in _UNSUPPORTED else None
        if named is None:
            # `temperature and top_p cannot both be specified`: the last one is left out.
            named = next((name for name in reversed(sent) if _rejects(name).search(text)), None)
        if named is None:
            return False
        other = _OTHER_NAMES.get(named, "")
        renames = sent[named] == named and other and other not in sent and other in text
        instead[sent[named]] = other if renames else ""
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
