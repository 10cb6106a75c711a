"""The model that some settings name: behind an HTTP endpoint with any of the supported APIs, or the offline engine.

A call goes from `HttpModel.complete` through the retries to `_ask`: it is prepared, encoded by the API of its provider or as
tokens, sent through the endpoint, decoded, counted and traced.
"""

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from random import Random
from types import MappingProxyType, TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar, cast
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from agentflow._decoding import DECODE_ERRORS
from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.errors import ConfigurationError, ModelFailure, ModelFailureKind, RunStopped, StopCause
from agentflow.models._answer_format import (
    AnswerFormat,
    FormatFallback,
    bounded,
    decode_answer,
    extract_answer,
    is_json,
    parse_answer,
    repair_request,
    repeated,
    schema_of,
)
from agentflow.models._apis import AnswerSchema, PreparedCall
from agentflow.models._endpoints import EndpointClient, ModelEndpoints
from agentflow.models._protocol import (
    Accounts,
    Call,
    Completion,
    ImagePart,
    Message,
    Model,
    Part,
    Sampling,
    TextPart,
    ToolCall,
    ToolReply,
    ToolSpec,
    escaped_message,
    escaped_tool,
    has_images,
)
from agentflow.models._providers import LITELLM, PROVIDERS, ModelAddress, find_address, full_name
from agentflow.models._request_error import RequestError, names_response_format, undecodable, unusable
from agentflow.models._settings import ModelSettings
from agentflow.models._token_engine import ExactTokens
from agentflow.models._transport import need_litellm
from agentflow.settings import read_environment
from agentflow.telemetry import Operation, conventions, model_operation, observe_queue
from agentflow.trace import Request, Tokens, Usage

T = TypeVar("T")
OFFLINE = "offline"
"""Name of the offline engine in settings."""
_MAX_FAILURES_IN_A_ROW: Final = 16
_CONVENTIONAL: Final = {
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "xai": "x_ai",
}
"""Names of providers in the conventions, where they differ from ours."""
_PORTS: Final = {"http": 80, "https": 443}
_NO_TOOLS: Final = re.compile(r"tool-call-parser|not support (?:tool|function.call)", re.IGNORECASE)
"""Refusals of a request with tools, as of vLLM, Ollama and DeepSeek."""


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
    """Calls that failed after all attempts."""
    fallbacks: int = 0
    """Requests in a looser answer format than wanted, because the endpoint refused the stricter one."""
    failures_by_kind: Mapping[str, int] = MappingProxyType({})
    """Calls that failed after all attempts, by `ModelFailureKind`."""


class OpenModel(Model, Protocol):
    """A model that is used inside `async with`, which holds its connections open."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def statistics(self) -> Statistics:
        """Return its counters and limits."""
        ...


def make_model(
    settings: ModelSettings,
    accounts: Accounts,
    *,
    endpoints: ModelEndpoints | None = None,
    environment: Mapping[str, str] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    random: Random | None = None,
) -> OpenModel:
    """Return the model that the settings name; its usage is added to `accounts`. See docs/models.md.

    :param endpoints: models at one endpoint share its connections and its concurrency limit through this object.
    :param environment: variables that hold keys; by default the process's environment over `.env`.
    :raises ConfigurationError: if the key is missing, the prices are missing under a money budget, or the provider
        does not return tokens.
    """
    if settings.name == OFFLINE:
        if settings.tokens:
            raise ConfigurationError("model offline: it returns no tokens; use vLLM or tokens=false")
        return OfflineModel(accounts)
    if accounts.max_cost is not None and settings.known_prices is None:
        raise ConfigurationError(
            f"model {settings.name}: max_cost needs the prices of its tokens; set prices (input, output per million tokens)"
        )
    if full_name(settings).startswith(f"{LITELLM}/") and not settings.base_url:
        need_litellm()
    address = find_address(settings, read_environment() if environment is None else environment)
    return HttpModel(settings, accounts, address, endpoints=endpoints, clock=clock, random=random)


class OfflineModel:
    """Model that answers every role from the text of the request; equal requests have equal answers."""

    name = OFFLINE
    """Name in settings and reports."""
    vision = False
    """It accepts no images."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._calls = self._failures = 0
        self._trace = ModelTrace(self.name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return

    def statistics(self) -> Statistics:
        """Return the numbers of calls and failures."""
        kinds = {str(ModelFailureKind.BAD_REQUEST): self._failures} if self._failures else {}
        return Statistics(calls=self._calls, failures=self._failures, failures_by_kind=kinds)

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer one call.

        :raises ModelFailure: if the call has no typed request, or expects another type of answer.
        :raises RunStopped: if a budget is used up.
        """
        self._accounts.check()
        self._calls += 1
        if call.request is None:
            raise self._refusal("the offline engine answers typed requests only; name a model for free text")
        with self._trace.begin(call) as operation:
            completion = self._answered(call, call.request)
            self._trace.end(operation, call, completion)
        return completion

    def _answered(self, call: Call[T], request: Request[T]) -> Completion[T]:
        from agentflow.offline import answer, usage_of

        value = answer(request)
        if not isinstance(value, call.reply):
            raise self._refusal(
                f"the offline engine answers this request with {type(value).__name__}, not {call.reply.__name__}"
            )
        usage = usage_of(request, value)
        self._accounts.add(call.role, usage, model=self.name)
        return Completion(value=value, text=msgspec.json.encode(value).decode(), usage=usage, model=self.name)

    def _refusal(self, message: str) -> ModelFailure:
        self._failures += 1
        return ModelFailure(ModelFailureKind.BAD_REQUEST, message, attempts=0)


class HttpModel(EndpointClient):
    """A model at an endpoint, created by `make_model`."""

    def __init__(
        self,
        settings: ModelSettings,
        accounts: Accounts,
        address: ModelAddress,
        *,
        endpoints: ModelEndpoints | None = None,
        clock: Clock = SYSTEM_CLOCK,
        random: Random | None = None,
    ) -> None:
        super().__init__(settings, address, endpoints, clock=clock, random=random)
        self.name = settings.name
        """Name in settings and reports."""
        self.vision = settings.vision
        """The model accepts images."""
        self._settings = settings
        self._sampling = settings.sampling
        self._prices = settings.known_prices
        self._accounts = accounts
        model, endpoint = address.model, self._endpoint
        self._formats = FormatFallback(
            settings.structured, address.answer_format, endpoint.formats(model), model=model
        )
        is_exact = settings.tokens == "exact"
        self._exact = ExactTokens(endpoint.url, endpoint.conversations(model)) if is_exact else None
        self._calls = self._failures_in_a_row = 0
        self._failures: Counter[ModelFailureKind] = Counter()
        self._was_reached = False
        self._tools: tuple[tuple[ToolSpec, ...], tuple[ToolSpec, ...]] = (), ()
        self._trace = ModelTrace(model, settings, endpoint.url)
        observe_queue("model calls", endpoint.limiter)

    def statistics(self) -> Statistics:
        """Return its counters and limits; requests in flight are those of all models at its endpoint."""
        limiter = self._endpoint.limiter
        return Statistics(
            limiter.in_flight,
            limiter.limit,
            limiter.waiting,
            self._calls,
            self._retrier.made,
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
        if not self.vision and any(map(has_images, call.messages)):
            self._failures[ModelFailureKind.BAD_REQUEST] += 1
            refusal = f"{self.name} accepts no images"
            raise ModelFailure(ModelFailureKind.BAD_REQUEST, refusal, attempts=0)
        sampling = self._sampling if call.sampling is None else call.sampling.over(self._sampling)
        answers: list[Completion[None]] = []
        repairs: list[tuple[Message, ...]] = []
        with self._trace.begin(call, sampling) as operation:
            ask = partial(self._ask, call, sampling, answers, repairs, operation)
            try:
                completion = await self._retrier.run(ask)
            except RequestError as error:
                raise self._failure(error, answers) from None
            self._trace.end(operation, call, completion)
        self._failures_in_a_row = 0
        return completion

    async def _ask(
        self,
        call: Call[T],
        sampling: Sampling,
        answers: list[Completion[None]],
        repairs: list[tuple[Message, ...]],
        operation: Operation,
        seconds: float,
    ) -> Completion[T]:
        """Make one attempt of a call.

        :param answers: answers of earlier attempts; this one is added.
        :param repairs: messages that ask for a correction of the answer before; those for this answer are added.
        """
        # Other calls may have used up the budget while this one was in the queue.
        self._accounts.check()
        operation.count(conventions.ATTEMPTS)
        is_free = _is_text(call.reply) or call.parse is not None or self._settings.structured == "known"
        format = None if is_free else self._formats.choose()
        repair = repairs.pop() if repairs else ()
        try:
            answer = await self._send(self._prepared(call, sampling, format, repair), seconds)
            self._was_reached = True
        except RequestError as error:
            self._was_reached = self._was_reached or not error.unreachable
            if format is not None and names_response_format(error):
                error.retry = self._formats.refused(format)
                error.backs_off = False
            raise
        cost = 0.0 if self._prices is None else self._prices.cost(answer.usage)
        self._accounts.add(call.role, answer.usage, cost, model=self.name)
        answers.append(answer)
        if self._settings.tokens and answer.tokens is None:
            raise RequestError(
                ModelFailureKind.DENIED, "it returns no tokens; use vLLM or tokens=false", status=200
            )
        try:
            value = self._decoded(call, format, answer)
        except RequestError as error:
            # Only a model that has seen the schema or the format can correct its answer.
            knows_format = format not in (None, "json_schema") or call.parse is not None
            can_repair = knows_format and bool(answer.text.strip())
            if error.retry and can_repair and not repair and not self._settings.tokens:
                repairs.append(_repair(answer.text, error.message))
            raise
        model = answer.model or self._address.model
        unusable = _tokens_of(answers)[:-1]
        completion = replace(answer, value=value, usage=_usage_of(answers), model=model, unusable=unusable)
        return cast("Completion[T]", completion)

    def _prepared(
        self, call: Call[Any], sampling: Sampling, format: AnswerFormat | None, repair: tuple[Message, ...]
    ) -> PreparedCall:
        answer_schema = None
        if format is not None:
            schema = call.schema if call.schema is not None else schema_of(call.reply)
            if self._settings.max_text_chars is not None:
                schema = bounded(schema, self._settings.max_text_chars)
            answer_schema = AnswerSchema(format, call.reply.__name__.lower(), schema)
        # An agent lists the same tools in each call.
        if call.tools is not self._tools[0]:
            self._tools = call.tools, tuple(map(escaped_tool, call.tools))
        return PreparedCall(
            model=self._address.model,
            messages=tuple(map(escaped_message, (*call.messages, *repair))),
            sampling=sampling,
            answer_schema=answer_schema,
            tools=self._tools[1],
            may_call=call.may_call,
            tokens=self._address.tokens,
        )

    async def _send(self, call: PreparedCall, seconds: float) -> Completion[None]:
        """Send one request, as tokens if possible, else as messages."""
        body = b""
        try:
            if self._exact is not None and self._exact.takes(call):
                return await self._exact.answer(
                    call, partial(self._endpoint.post, call.model, seconds=seconds)
                )
            request = self._address.api.encode(call)
            body = await self._endpoint.post(call.model, request, seconds)
            return self._endpoint.read(body, len(request.body))
        except DECODE_ERRORS as error:
            raise undecodable(error, body) from None

    def _decoded(self, call: Call[T], format: AnswerFormat | None, answer: Completion[None]) -> T:
        """Decode an answer, and learn from a structured one whether the endpoint obeys the format.

        Prose around the JSON value is dropped, but not in training: there the format is a part of what is learned.

        :raises RequestError: if it can't be used.
        """
        text = answer.text
        if format is None:
            _refuse_incomplete(answer)
            if call.parse is not None:
                return parse_answer(text, call.parse)
            return (
                msgspec.convert(text, call.reply) if _is_text(call.reply) else decode_answer(text, call.reply)
            )
        try:
            _refuse_incomplete(answer)
            value = decode_answer(text, call.reply)
        except RequestError as error:
            if error.kind is ModelFailureKind.REFUSED or not text.strip():
                raise
            begun = error.kind is ModelFailureKind.TOO_LONG and text.lstrip().startswith(("{", "["))
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

    def _failure(self, error: RequestError, answers: list[Completion[None]]) -> ModelFailure | RunStopped:
        """Return the error to raise for a failed call."""
        self._failures[error.kind] += 1
        where = f"{self.name} at {self._endpoint.url}"
        if error.kind is ModelFailureKind.DENIED:
            # 429: a used-up quota, which no later attempt of this call finds restored.
            check = "raise the quota of" if error.status == 429 else "check the model's name and"
            fix = f"; {check} {self._address.source}, then run the same command to resume"
            refusal = f"{where} can't be used: {error.message}"
            return RunStopped(StopCause.MODEL, refusal if error.status == 200 else refusal + fix)
        if error.unreachable and not self._was_reached:
            fix = "start it or correct base_url, then run the same command to resume"
            return RunStopped(StopCause.MODEL, f"{where} can't be reached: {error.message}; {fix}")
        self._failures_in_a_row = self._failures_in_a_row + 1 if error.kind.is_temporary else 0
        if self._failures_in_a_row >= _MAX_FAILURES_IN_A_ROW:
            failed = f"{self._failures_in_a_row} calls in a row failed, the last with: {error.message}"
            return RunStopped(
                StopCause.MODEL, f"{where}: {failed}; run the same command to resume when it is back"
            )
        attempts = f" ({error.attempts} attempts)" if error.attempts > 1 else ""
        remedy = ""
        if error.kind is ModelFailureKind.TIMEOUT:
            remedy = f"; raise call_seconds above {self._settings.call_seconds:g}, or lower max_tokens"
        elif error.kind is ModelFailureKind.BAD_REQUEST and _NO_TOOLS.search(error.message):
            remedy = "; serve the model with a tool parser, or use agent=team, which needs none"
        usage = _usage_of(answers)
        return ModelFailure(
            error.kind,
            f"{error.message}{attempts}{remedy}",
            attempts=error.attempts,
            answers=usage.calls,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            estimates=usage.estimates,
            answer_tokens=_tokens_of(answers),
            answer_text=answers[-1].text if answers else "",
        )


def _usage_of(answers: list[Completion[None]]) -> Usage:
    return sum((answer.usage for answer in answers), Usage())


def _tokens_of(answers: list[Completion[None]]) -> tuple[Tokens, ...]:
    return tuple(answer.tokens for answer in answers if answer.tokens is not None)


def _refuse_incomplete(answer: Completion[None]) -> None:
    """Raise an error for an answer that is cut, refused or empty."""
    if answer.finish == "length":
        cut = "the answer was cut at its token limit"
        if answer.reasoning and not answer.text.strip():
            cut = "the token limit was reached in the reasoning, before the answer; raise max_tokens"
        raise RequestError(ModelFailureKind.TOO_LONG, cut, status=200)
    if answer.refusal or answer.finish == "content_filter":
        refusal = " ".join(answer.refusal.split())[:200] or "the answer was filtered"
        raise RequestError(ModelFailureKind.REFUSED, f"the model would not answer: {refusal}", status=200)
    if not answer.calls and not answer.text.strip():
        raise unusable("the answer is empty")


def _repair(text: str, mistake: str) -> tuple[Message, ...]:
    """Return the messages that ask a model to correct an answer."""
    answer = Message("assistant", (TextPart(repeated(text)),))
    return answer, Message("user", (TextPart(repair_request(mistake)),))


def _is_text(reply: type[object]) -> bool:
    return reply is str


class ModelTrace:
    """Operations of the calls of one model."""

    def __init__(self, model: str, settings: ModelSettings | None = None, url: str = "") -> None:
        """:param model: name at the endpoint.
        :param settings: its settings; `None`: it computes in this process.
        :param url: address of the endpoint.
        """
        self._model = model
        self._provider = "agentflow" if settings is None else provider_of(settings)
        self._in_process = settings is None
        self._server = _server(url)

    def begin(self, call: Call[Any], sampling: Sampling | None = None) -> Operation:
        """Return the operation of a call.

        :param sampling: sampling parameters that are sent.
        """
        sent = sampling or Sampling()
        return model_operation(
            self._model,
            self._provider,
            {
                **self._server,
                conventions.ROLE: call.role,
                conventions.OUTPUT_TYPE: "text" if _is_text(call.reply) or call.parse is not None else "json",
                conventions.REQUEST_TEMPERATURE: sent.temperature,
                conventions.REQUEST_TOP_P: sent.top_p,
                conventions.REQUEST_MAX_TOKENS: sent.max_tokens,
                conventions.REQUEST_SEED: sent.seed,
                conventions.REQUEST_STOP_SEQUENCES: sent.stop or None,
            },
            in_process=self._in_process,
        )

    @staticmethod
    def end(operation: Operation, call: Call[Any], completion: Completion[Any]) -> None:
        """Add the answer to the operation of a call."""
        operation.set(conventions.RESPONSE_MODEL, completion.model)
        operation.set(conventions.RESPONSE_FINISH_REASONS, (completion.finish,))
        operation.set(conventions.USAGE_INPUT_TOKENS, completion.usage.prompt_tokens)
        operation.set(conventions.USAGE_OUTPUT_TOKENS, completion.usage.completion_tokens)
        operation.content(
            conventions.INPUT_MESSAGES, lambda: [_message(message) for message in call.messages]
        )
        operation.content(conventions.OUTPUT_MESSAGES, lambda: [_answer(completion)])


def provider_of(settings: ModelSettings) -> str:
    """Return the provider of a model as the conventions name it; an unknown endpoint by its API."""
    if settings.base_url or settings.api != "auto":
        named = "openai" if settings.api == "auto" else settings.api
    else:
        prefix, slash, _ = full_name(settings).partition("/")
        named = prefix if slash and prefix in {*PROVIDERS, "litellm"} else "openai"
    return _CONVENTIONAL.get(named, named)


def _server(url: str) -> dict[str, str | int]:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return {}
    if not parts.hostname or port is None:
        return {}
    return {conventions.SERVER_ADDRESS: parts.hostname, conventions.SERVER_PORT: port}


def _message(message: Message) -> Mapping[str, object]:
    """Return a message by the schema of the conventions. Replies of tools are messages of the role `tool`."""
    role = "tool" if any(isinstance(part, ToolReply) for part in message.parts) else message.role
    return {"role": role, "parts": [_part(part) for part in message.parts]}


def _answer(completion: Completion[Any]) -> Mapping[str, object]:
    parts: list[object] = []
    if completion.reasoning:
        parts.append({"type": "reasoning", "content": completion.reasoning})
    if completion.text:
        parts.append({"type": "text", "content": completion.text})
    parts += map(_part, completion.calls)
    return {"role": "assistant", "parts": parts, "finish_reason": completion.finish}


def _part(part: Part) -> Mapping[str, object]:
    match part:
        case TextPart():
            return {"type": "text", "content": part.text}
        case ImagePart():
            # Its bytes stay in the journal: viewers of traces do not show them, and they fill their databases.
            return {"type": "image", "mime_type": part.mime, "bytes": len(part.data)}
        case ToolCall():
            return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": part.arguments}
        case ToolReply():
            response = [_part(reply_part) for reply_part in part.parts]
            return {"type": "tool_call_response", "id": part.call, "response": response}
