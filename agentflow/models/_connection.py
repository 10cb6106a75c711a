"""Clients of one model for callers that handle answers themselves: a connection for a gateway, and one with the types of `openai`."""

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from agentflow._decoding import DECODE_ERRORS
from agentflow.actors import SYSTEM_CLOCK, Clock, computed
from agentflow.errors import ConfigurationError, ModelFailure, ModelFailureKind
from agentflow.models._apis import AnswerSchema, EncodedRequest, OpenAiApi, PreparedCall, separate_reasoning
from agentflow.models._endpoints import EndpointClient, ModelEndpoints
from agentflow.models._protocol import (
    Accounts,
    Completion,
    Message,
    Sampling,
    ToolSpec,
    escaped_message,
    escaped_tool,
)
from agentflow.models._providers import find_address
from agentflow.models._request_error import RequestError, undecodable
from agentflow.models._settings import ModelSettings
from agentflow.models._token_engine import TokenEngine

if TYPE_CHECKING:
    from openai import APIError
    from openai.types.chat import ChatCompletion


class ModelConnection(EndpointClient):
    """One model at its endpoint, inside `async with`: requests with retries and limits, and truncated answers too.

    Example::

        async with ModelConnection(ModelSettings(name="any-model", base_url=url)) as connection:
            answer = await connection.ask([Message("user", (TextPart("Hello"),))])

    :raises ConfigurationError: if the key or the address is missing.
    """

    def __init__(
        self,
        settings: ModelSettings,
        *,
        endpoints: ModelEndpoints | None = None,
        environment: Mapping[str, str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        address = find_address(settings, os.environ if environment is None else environment)
        super().__init__(settings, address, endpoints, clock=clock)
        self._sampling = settings.sampling
        self.model = address.model
        """Name of the model at the endpoint."""
        self.engine = TokenEngine(self.model, self._endpoint.url, self._post)
        """Its token APIs, if the endpoint is vLLM; to be used inside `model_failures`."""

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        may_call: bool = True,
        sampling: Sampling | None = None,
        schema: dict[str, Any] | None = None,
        tokens: bool = False,
        in_thread: bool = False,
    ) -> Completion[None]:
        """Return an answer through the endpoint's own API.

        :param may_call: the model may call the tools now.
        :param sampling: overrides that of the settings.
        :param schema: JSON schema of the answer; `{}` for any JSON object.
        :param tokens: return prompt and completion tokens; vLLM only.
        :param in_thread: encode the request in a thread, because it is large.
        :raises ModelFailure: after all attempts.
        """
        answer_schema = None
        if schema is not None:
            answer_schema = AnswerSchema("json_schema" if schema else "json_object", "answer", schema)
        call = PreparedCall(
            model=self.model,
            messages=tuple(messages),
            sampling=self._sampling if sampling is None else sampling.over(self._sampling),
            answer_schema=answer_schema,
            tools=tuple(tools),
            may_call=may_call,
            tokens=tokens,
        )
        request = await computed(in_thread, self._encode, call)
        with model_failures():
            body = await self._post(request)
            return self._endpoint.read(body, len(request.body))

    def _encode(self, call: PreparedCall) -> EncodedRequest:
        messages, tools = map(escaped_message, call.messages), map(escaped_tool, call.tools)
        return self._address.api.encode(replace(call, messages=tuple(messages), tools=tuple(tools)))

    async def _post(self, request: EncodedRequest) -> bytes:
        return await self._retrier.run(partial(self._endpoint.post, self.model, request))


@contextmanager
def model_failures() -> Generator[None]:
    """Turn errors of requests into a `ModelFailure`. See docs/models.md.

    :raises ModelFailure: if a request inside fails after all attempts, or its answer can't be decoded.
    """
    try:
        yield
    except RequestError as error:
        raise ModelFailure(error.kind, error.message, attempts=error.attempts) from None
    except DECODE_ERRORS as error:
        unreadable = undecodable(error, b"")
        raise ModelFailure(unreadable.kind, unreadable.message) from None


class ChatClient(EndpointClient):
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
        address = find_address(settings, os.environ if environment is None else environment)
        if not isinstance(address.api, OpenAiApi):
            raise ConfigurationError(
                f"model {settings.name}: {address.url} does not have OpenAI's API, which this client needs"
            )
        super().__init__(settings, address, endpoints, clock=clock)
        self._api = address.api
        self._settings = settings
        self._accounts = accounts or Accounts()
        self._role = role

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
        request = EncodedRequest(self._api.path(model), body)
        try:
            answer, read = await self._retrier.run(partial(self._ask, model, request))
        except RequestError as error:
            raise _error_of(error, self._endpoint.url) from None
        from openai.types.chat import ChatCompletion

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

    async def _ask(
        self, model: str, request: EncodedRequest, seconds: float
    ) -> tuple[bytes, Completion[None]]:
        self._accounts.check()
        answer = await self._endpoint.post(model, request, seconds)
        try:
            return answer, self._endpoint.read(answer, len(request.body))
        except DECODE_ERRORS as error:
            raise undecodable(error, answer) from None


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
