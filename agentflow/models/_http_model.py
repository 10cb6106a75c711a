"""A model behind an HTTP endpoint with any of the supported APIs, and a client with the types of `openai`."""

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from random import Random
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

import msgspec
from msgspec import structs

from agentflow._decoding import DECODE_ERRORS
from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.errors import ConfigurationError, ModelFailure, ModelFailureKind, RunStopped, StopCause
from agentflow.models._accounts import Accounts
from agentflow.models._answer_format import (
    AnswerFormat,
    FormatFallback,
    bounded,
    decode_answer,
    extract_answer,
    is_json,
    repair_request,
    repeated,
    schema_of,
)
from agentflow.models._apis import (
    AnswerSchema,
    ApiAnswer,
    EncodedRequest,
    OpenAiApi,
    PreparedCall,
    separate_reasoning,
)
from agentflow.models._endpoints import Endpoint, ModelEndpoints
from agentflow.models._escaping import escaped_message, escaped_tool
from agentflow.models._exact_tokens import ExactTokens
from agentflow.models._protocol import (
    Call,
    Completion,
    ImagePart,
    Message,
    Model,
    Sampling,
    TextPart,
    ToolReply,
    ToolSpec,
)
from agentflow.models._providers import ModelAddress, find_address
from agentflow.models._rate_limits import ModelThrottle
from agentflow.models._request_error import RequestError, names_response_format, undecodable, unusable
from agentflow.models._retries import Retrier
from agentflow.models._settings import ModelSettings
from agentflow.models._tracing import ModelTrace
from agentflow.telemetry import Operation, conventions, observe_queue
from agentflow.trace import Tokens, Usage

if TYPE_CHECKING:
    from openai import APIError
    from openai.types.chat import ChatCompletion

T = TypeVar("T")

_ENOUGH = 16


class Statistics(NamedTuple):
    """Counters and limits of a model. See docs/models.md."""

    in_flight: int = 0
    """Requests in flight."""
    limit: int = 0
    """Current concurrency limit."""
    waiting: int = 0
    """Requests in the queue."""
    calls: int = 0
    """Calls so far."""
    attempts: int = 0
    """HTTP requests made for these calls."""
    failures: int = 0
    """Calls that failed for good."""
    fallbacks: int = 0
    """Requests in a looser answer format than wanted, because the endpoint refused the stricter one."""
    failures_by_kind: Mapping[str, int] = MappingProxyType({})
    """Calls that failed for good, by `ModelFailureKind`."""


class OpenModel(Model, Protocol):
    """A model that is used inside `async with`, which holds its connections open."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def statistics(self) -> Statistics:
        """Return its counters and limits."""
        ...


class HttpModel:
    """A model at an endpoint, created by `make_model`."""

    def __init__(
        self,
        settings: ModelSettings,
        accounts: Accounts,
        address: ModelAddress,
        endpoint: Endpoint,
        *,
        clock: Clock = SYSTEM_CLOCK,
        random: Random | None = None,
    ) -> None:
        self.name = settings.name
        """Name in settings and reports."""
        self.vision = settings.vision
        """The model accepts images."""
        self._settings = settings
        self._accounts = accounts
        self._address = address
        self._endpoint = endpoint
        self._sampling = settings.sampling
        experience = endpoint.formats(address.model)
        self._formats = FormatFallback(
            settings.structured, address.answer_format, experience, model=address.model
        )
        self._attempts = Retrier(
            endpoint.limiter,
            most=settings.max_attempts,
            seconds=settings.call_seconds,
            clock=clock,
            random=random,
            throttle=ModelThrottle(endpoint.rates, address, settings.requests_per_minute, clock).wait,
        )
        history = endpoint.history(address.model)
        self._exact = ExactTokens(endpoint.url, history) if settings.tokens == "exact" else None
        self._calls = self._in_a_row = 0
        self._failures: Counter[ModelFailureKind] = Counter()
        self._heard = False
        self._tools: tuple[tuple[ToolSpec, ...], tuple[ToolSpec, ...]] = (), ()
        self._trace = ModelTrace(address.model, settings, endpoint.url)
        observe_queue("model calls", endpoint.limiter)

    async def __aenter__(self) -> Self:
        await self._endpoint.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._endpoint.__aexit__(*error)

    def statistics(self) -> Statistics:
        """Return its counters and limits; requests in flight are those of all models at its endpoint."""
        limiter = self._endpoint.limiter
        return Statistics(
            limiter.in_flight,
            limiter.limit,
            limiter.waiting,
            self._calls,
            self._attempts.made,
            self._failures.total(),
            self._formats.fallbacks,
            {str(kind): count for kind, count in self._failures.items()},
        )

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer one call.

        :raises ModelFailure: after all attempts.
        :raises RunStopped: if a budget is used up, or the endpoint refuses or fails every call.
        """
        self._accounts.check()
        self._calls += 1
        if call.tools and not _is_text(call.reply):
            raise ValueError("a call with tools must have the reply type `str`")
        if not self.vision and any(map(_shows, call.messages)):
            self._failures[ModelFailureKind.BAD_REQUEST] += 1
            refusal = f"{self.name} accepts no images"
            raise ModelFailure(ModelFailureKind.BAD_REQUEST, refusal, attempts=0)
        received: list[ApiAnswer] = []
        repairs: list[tuple[Message, ...]] = []
        with self._trace.begin(call, self._sampling_of(call)) as operation:
            try:
                completion = await self._attempts.run(partial(self._ask, call, received, repairs, operation))
            except RequestError as error:
                raise self._give_up(error, received) from None
            self._trace.end(operation, call, completion)
        self._in_a_row = 0
        return completion

    async def _ask(
        self,
        call: Call[T],
        received: list[ApiAnswer],
        repairs: list[tuple[Message, ...]],
        operation: Operation,
        seconds: float,
    ) -> Completion[T]:
        # Other calls may have used up the budget while this one was in the queue.
        self._accounts.check()
        operation.count(conventions.ATTEMPTS)
        free = _is_text(call.reply)
        is_free = free or self._settings.structured == "known"
        format = None if is_free else self._formats.choose()
        repair = repairs.pop() if repairs else ()
        ask = self._written(call, format, repair)
        try:
            answered = await self._answer(ask, seconds)
            self._heard = True
        except RequestError as error:
            self._heard = self._heard or not error.unreachable
            if format is not None and names_response_format(error):
                error.retry = self._formats.refused(format)
                error.backs_off = False
            raise
        usage = answered.usage
        self._accounts.add(call.role, usage, self._settings.cost(usage), model=self.name)
        received.append(answered)
        if self._settings.tokens and answered.tokens is None:
            raise RequestError(
                ModelFailureKind.DENIED, "it returns no tokens; use vLLM or tokens=false", status=200
            )
        if format is None:
            _refuse_incomplete(answered)
            value = (
                msgspec.convert(answered.text, call.reply)
                if free
                else decode_answer(answered.text, call.reply)
            )
        else:
            try:
                value = self._decoded(call, format, answered)
            except RequestError as error:
                # Only a model that has seen the schema can correct its answer.
                knows_schema = format != "json_schema" and bool(answered.text.strip())
                if error.retry and knows_schema and not repair and not self._settings.tokens:
                    repairs.append(_repair(answered.text, error.message))
                raise
        return Completion(
            value=value,
            text=answered.text,
            usage=_usage_of(received),
            model=answered.model or self._address.model,
            finish=answered.finish,
            calls=answered.calls,
            tokens=answered.tokens,
            unusable=_tokens_of(received)[:-1],
            reasoning=answered.reasoning,
        )

    def _decoded(self, call: Call[T], format: AnswerFormat, answered: ApiAnswer) -> T:
        """Decode a structured answer, and learn from it whether the endpoint obeys the format.

        Prose around the JSON value is dropped, but not in training: there the format is a part of what is learned.

        :raises RequestError: if it can't be used.
        """
        text = answered.text
        try:
            _refuse_incomplete(answered)
            value = decode_answer(text, call.reply)
        except RequestError as error:
            is_cut = error.kind is ModelFailureKind.TOO_LONG
            if error.kind is ModelFailureKind.REFUSED or not text.strip():
                raise
            begun = is_cut and text.lstrip().startswith(("{", "["))
            # JSON of another shape shows that a schema is ignored, not that JSON is.
            if not begun and not (format == "json_object" and is_json(text)):
                looser = self._formats.answered(format, obeyed=False)
                error.retry = error.retry or looser
                error.backs_off = False
            if self._settings.tokens:
                raise
            with suppress(RequestError):
                return extract_answer(text, call.reply)
            raise
        self._formats.answered(format, obeyed=True)
        return value

    async def _answer(self, ask: PreparedCall, seconds: float) -> ApiAnswer:
        """Send one request, as tokens if possible, else as messages."""
        answer = b""
        try:
            if self._exact is not None and self._exact.takes(ask):
                return await self._exact.answer(ask, partial(self._endpoint.post, ask.model, seconds=seconds))
            outgoing = self._address.api.encode(ask)
            answer = await self._endpoint.post(ask.model, outgoing, seconds)
            return self._endpoint.read(answer, len(outgoing.body)).without_reasoning()
        except DECODE_ERRORS as error:
            raise undecodable(error, answer) from None

    def _written(
        self, call: Call[Any], format: AnswerFormat | None, repair: tuple[Message, ...] = ()
    ) -> PreparedCall:
        answer_schema = None
        if format is not None:
            schema = call.schema if call.schema is not None else schema_of(call.reply)
            if self._settings.max_text_chars is not None:
                schema = bounded(schema, self._settings.max_text_chars)
            answer_schema = AnswerSchema(format, call.reply.__name__.lower(), schema)
        sampling = self._sampling_of(call)
        address = self._address
        return PreparedCall(
            model=address.model,
            messages=tuple(map(escaped_message, (*call.messages, *repair))),
            sampling=sampling,
            answer_schema=answer_schema,
            tools=self._escaped_tools(call.tools),
            may_call=call.may_call,
            tokens=address.tokens,
        )

    def _sampling_of(self, call: Call[Any]) -> Sampling:
        return self._sampling if call.sampling is None else merged_sampling(call.sampling, self._sampling)

    def _escaped_tools(self, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        # An agent lists the same tools in each call.
        listed, escaped = self._tools
        if tools is not listed:
            escaped = tuple(map(escaped_tool, tools))
            self._tools = tools, escaped
        return escaped

    def _give_up(self, error: RequestError, received: list[ApiAnswer]) -> ModelFailure | RunStopped:
        """Return the error to raise for a failed call."""
        self._failures[error.kind] += 1
        where = f"{self.name} at {self._endpoint.url}"
        if error.kind is ModelFailureKind.DENIED:
            # 429: a used-up quota, which no later attempt of this call finds restored.
            check = "raise the quota of" if error.status == 429 else "check the model's name and"
            fix = f"; {check} {self._address.source}, then run the same command to resume"
            refusal = f"{where} can't be used: {error.message}"
            return RunStopped(StopCause.MODEL, refusal if error.status == 200 else refusal + fix)
        if error.unreachable and not self._heard:
            fix = "start it or correct base_url, then run the same command to resume"
            return RunStopped(StopCause.MODEL, f"{where} can't be reached: {error.message}; {fix}")
        self._in_a_row = self._in_a_row + 1 if error.kind.is_temporary else 0
        if self._in_a_row >= _ENOUGH:
            failed = f"{self._in_a_row} calls in a row failed, the last with: {error.message}"
            return RunStopped(
                StopCause.MODEL, f"{where}: {failed}; run the same command to resume when it is back"
            )
        tries = f" ({error.attempts} attempts)" if error.attempts > 1 else ""
        remedy = ""
        if error.kind is ModelFailureKind.TIMEOUT:
            remedy = f"; raise call_seconds above {self._settings.call_seconds:g}, or lower max_tokens"
        elif error.kind is ModelFailureKind.BAD_REQUEST and "tool-call-parser" in error.message:
            remedy = "; serve the model with a tool parser, or use agent=team, which needs none"
        usage = _usage_of(received)
        return ModelFailure(
            error.kind,
            f"{error.message}{tries}{remedy}",
            attempts=error.attempts,
            answers=usage.calls,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            estimates=usage.estimates,
            answer_tokens=_tokens_of(received),
            answer_text=received[-1].text if received else "",
        )


def _usage_of(answers: list[ApiAnswer]) -> Usage:
    return sum((answer.usage for answer in answers), Usage())


def _tokens_of(answers: list[ApiAnswer]) -> tuple[Tokens, ...]:
    return tuple(answer.tokens for answer in answers if answer.tokens is not None)


def _refuse_incomplete(answered: ApiAnswer) -> None:
    """Raise an error for an answer that is cut, refused or empty."""
    if answered.finish == "length":
        cut = "the answer was cut at its token limit"
        if answered.reasoning and not answered.text.strip():
            cut = "the token limit was reached in the reasoning, before the answer; raise max_tokens"
        raise RequestError(ModelFailureKind.TOO_LONG, cut, status=200)
    if answered.refusal or answered.finish == "content_filter":
        refusal = " ".join(answered.refusal.split())[:200] or "the answer was filtered"
        raise RequestError(ModelFailureKind.REFUSED, f"the model would not answer: {refusal}", status=200)
    if not answered.calls and not answered.text.strip():
        raise unusable("the answer is empty")


def _repair(text: str, mistake: str) -> tuple[Message, ...]:
    """Return the messages that ask a model to correct an answer."""
    answer = Message("assistant", (TextPart(repeated(text)),))
    return answer, Message("user", (TextPart(repair_request(mistake)),))


def _is_text(reply: type[object]) -> bool:
    return reply is str


def _shows(message: Message) -> bool:
    """Return true if a message has images."""
    nested = (part.parts if isinstance(part, ToolReply) else (part,) for part in message.parts)
    return any(isinstance(part, ImagePart) for parts in nested for part in parts)


def merged_sampling(above: Sampling, below: Sampling) -> Sampling:
    """Merge two samplings; values of `above` win."""
    changed = {name: value for name, value in structs.asdict(above).items() if value not in (None, (), {})}
    return structs.replace(below, **{**changed, "extra": {**below.extra, **above.extra}})


class ChatClient:
    """Chat completions with `openai`'s types, and with the retries and limits of a model.

    Example::

        async with ChatClient(ModelSettings(name="any-model", base_url=url)) as client:
            answer = await client.create(messages=[{"role": "user", "content": "Hello"}])
    """

    def __init__(
        self,
        settings: ModelSettings,
        accounts: Accounts | None = None,
        *,
        role: str = "chat",
        endpoints: ModelEndpoints | None = None,
        environment: Mapping[str, str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Describe the client; connections are opened by `async with`.

        :param role: role under which usage is accounted.
        :raises ConfigurationError: if the key is missing, or the provider has another API than OpenAI's.
        """
        self._accounts = accounts or Accounts()
        self._role = role
        self._settings = settings
        self._address = find_address(settings, os.environ if environment is None else environment)
        if not isinstance(self._address.api, OpenAiApi):
            raise ConfigurationError(
                f"model {settings.name}: {self._address.url} does not have OpenAI's API, which this client needs"
            )
        self._api = self._address.api
        self._endpoint = (endpoints or ModelEndpoints(clock)).at(self._address, settings.max_concurrency)
        self._attempts = Retrier(
            self._endpoint.limiter, most=settings.max_attempts, seconds=settings.call_seconds, clock=clock
        )

    async def __aenter__(self) -> Self:
        await self._endpoint.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._endpoint.__aexit__(*error)

    async def create(self, **params: object) -> "ChatCompletion":
        """Create a chat completion with the parameters of `openai`'s `chat.completions.create`.

        `model` defaults to that of the settings. Reasoning in the text of a message (`<think>…</think>`) is in its
        `reasoning_content` instead.

        :raises openai.APIError: after all attempts; its class is the one that `openai` itself raises.
        :raises RunStopped: if a budget is used up.
        """
        if params.get("stream"):
            raise ConfigurationError("stream: streaming is not supported; leave it out")
        model = str(params.get("model", self._address.model))
        body = msgspec.json.encode({"model": model, **params})
        outgoing = EncodedRequest(self._api.path(model), body)
        try:
            answer = await self._attempts.run(partial(self._ask, model, outgoing))
        except RequestError as error:
            raise _error_of(error, self._endpoint.url) from None
        from openai.types.chat import ChatCompletion

        read = self._endpoint.read(answer, len(body))
        usage = read.usage
        self._accounts.add(self._role, usage, self._settings.cost(usage), model=self._settings.name)
        if read.usage_problem:
            counts = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
            total = usage.prompt_tokens + usage.completion_tokens
            fields: dict[str, object] = dict(msgspec.json.decode(answer, type=dict[str, msgspec.Raw]))
            answer = msgspec.json.encode({**fields, "usage": {**counts, "total_tokens": total}})
        try:
            completion = ChatCompletion.model_validate_json(answer)
        except ValueError as error:
            raise _error_of(undecodable(error, answer), self._endpoint.url) from None
        for choice in completion.choices:
            separated = separate_reasoning(choice.message.content or "")
            if separated.answer != (choice.message.content or ""):
                parts = {"content": separated.answer, "reasoning_content": separated.reasoning}
                choice.message = choice.message.model_copy(update=parts)
        return completion

    async def _ask(self, model: str, outgoing: EncodedRequest, seconds: float) -> bytes:
        self._accounts.check()
        answer = await self._endpoint.post(model, outgoing, seconds)
        try:
            self._endpoint.read(answer, len(outgoing.body))
        except DECODE_ERRORS as error:
            raise undecodable(error, answer) from None
        return answer


def _error_of(error: RequestError, url: str) -> "APIError":
    """Return the error that `openai`'s own client raises for this failure."""
    import httpx2
    import openai

    request = httpx2.Request("POST", f"{url}/chat/completions")
    if error.kind is ModelFailureKind.TIMEOUT and not error.status:
        return openai.APITimeoutError(request)
    if not error.status:
        return openai.APIConnectionError(message=error.message, request=request)
    # Bytes: an endpoint's headers may be in any encoding.
    headers = [
        (name.encode(), value.encode(errors="surrogateescape")) for name, value in error.headers.items()
    ]
    response = httpx2.Response(error.status, headers=headers, content=error.body, request=request)
    try:
        body: object = msgspec.json.decode(error.body)
    except DECODE_ERRORS:
        body = None
    if error.status == 200:
        return openai.APIResponseValidationError(response, body, message=error.message)
    kinds: dict[int, type[openai.APIStatusError]] = {
        400: openai.BadRequestError,
        401: openai.AuthenticationError,
        403: openai.PermissionDeniedError,
        404: openai.NotFoundError,
        409: openai.ConflictError,
        422: openai.UnprocessableEntityError,
        429: openai.RateLimitError,
    }
    default = openai.InternalServerError if error.status >= 500 else openai.APIStatusError
    return kinds.get(error.status, default)(error.message, response=response, body=body)
