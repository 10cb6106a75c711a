"""Connection to one model, for callers that handle answers of any kind themselves, such as a gateway."""

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from msgspec.structs import replace

from agentflow._decoding import DECODE_ERRORS
from agentflow.actors import SYSTEM_CLOCK, Clock, computed
from agentflow.errors import ModelFailure
from agentflow.models._apis import AnswerSchema, ApiAnswer, EncodedRequest, PreparedCall
from agentflow.models._endpoints import ModelEndpoints
from agentflow.models._escaping import escaped_message, escaped_tool
from agentflow.models._http_model import merged_sampling
from agentflow.models._protocol import Message, Sampling, ToolSpec
from agentflow.models._providers import find_address
from agentflow.models._request_error import RequestError, undecodable
from agentflow.models._retries import Retrier
from agentflow.models._settings import ModelSettings
from agentflow.models._token_engine import TokenEngine


class ModelConnection:
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
        self._sampling = settings.sampling
        self._address = find_address(settings, os.environ if environment is None else environment)
        self._endpoint = (endpoints or ModelEndpoints(clock)).at(self._address, settings.max_concurrency)
        self._attempts = Retrier(
            self._endpoint.limiter, most=settings.max_attempts, seconds=settings.call_seconds, clock=clock
        )
        self.model = self._address.model
        """Name of the model at the endpoint."""
        self.engine = TokenEngine(self.model, self._endpoint.url, self._post)
        """Its token APIs, if the endpoint is vLLM; to be used inside `model_failures`."""

    async def __aenter__(self) -> Self:
        await self._endpoint.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._endpoint.__aexit__(*error)

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
    ) -> ApiAnswer:
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
            sampling=self._sampling if sampling is None else merged_sampling(sampling, self._sampling),
            answer_schema=answer_schema,
            tools=tuple(tools),
            may_call=may_call,
            tokens=tokens,
        )
        outgoing = await computed(in_thread, self._encode, call)
        with model_failures():
            answer = await self._post(outgoing)
            return self._endpoint.read(answer, len(outgoing.body)).without_reasoning()

    def _encode(self, call: PreparedCall) -> EncodedRequest:
        messages, tools = map(escaped_message, call.messages), map(escaped_tool, call.tools)
        return self._address.api.encode(replace(call, messages=tuple(messages), tools=tuple(tools)))

    async def _post(self, request: EncodedRequest) -> bytes:
        return await self._attempts.run(partial(self._endpoint.post, self.model, request))


@contextmanager
def model_failures() -> Generator[None]:
    """Turn errors of requests into a `ModelFailure`. See docs/models.md.

    :raises ModelFailure: if a request inside fails for good, or its answer can't be decoded.
    """
    try:
        yield
    except RequestError as error:
        raise ModelFailure(error.kind, error.message, attempts=error.attempts) from None
    except DECODE_ERRORS as error:
        failed = undecodable(error, b"")
        raise ModelFailure(failed.kind, failed.message) from None
