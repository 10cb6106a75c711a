"""OpenAI's parameters, types and errors."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion
from pydantic import SecretStr

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.errors import ConfigurationError, RunStopped
from agentflow.models import Accounts, ChatClient, ModelSettings
from agentflow.testing import fake_endpoint
from agentflow.trace import Usage
from tests.agentflow.models._serving import HastyClock, Move, refuses, says, script, settings

HELLO = [{"role": "user", "content": "Hello"}]


@asynccontextmanager
async def chat(
    url: str,
    accounts: Accounts | None = None,
    clock: Clock | None = None,
    **more: Any,  # noqa: ANN401
) -> AsyncGenerator[ChatClient]:
    client = ChatClient(settings(url, **more), accounts, environment={}, clock=clock or HastyClock())
    async with client:
        yield client


@pytest.mark.promise("models:chat")
async def test_parameters_are_sent_unchanged_and_a_chat_completion_comes_back() -> None:
    accounts = Accounts()
    async with script(says("Good day.")) as endpoint, chat(endpoint.url, accounts) as client:
        answer = await client.create(messages=HELLO, temperature=0.5, tools=[])
        await client.create(model="another", messages=HELLO)
    assert isinstance(answer, ChatCompletion)
    assert answer.choices[0].message.content == "Good day."
    assert endpoint.bodies[0] == {"model": "painter", "messages": HELLO, "temperature": 0.5, "tools": []}
    assert endpoint.bodies[1]["model"] == "another"
    assert accounts.by_role == {"chat": Usage(2, 20, 10)}


@pytest.mark.promise("models:chat")
@pytest.mark.parametrize(
    ("move", "kind", "requests"),
    [
        (refuses(400), openai.BadRequestError, 1),
        (refuses(401), openai.AuthenticationError, 1),
        (refuses(403), openai.PermissionDeniedError, 1),
        (refuses(404), openai.NotFoundError, 1),
        (refuses(409), openai.ConflictError, 4),
        (refuses(422), openai.UnprocessableEntityError, 1),
        (refuses(429), openai.RateLimitError, 4),
        (refuses(500), openai.InternalServerError, 4),
        (None, openai.APIConnectionError, 4),
        (refuses(200), openai.APIResponseValidationError, 4),
    ],
)
async def test_errors_have_the_classes_of_openai(
    move: Move, kind: type[openai.APIError], requests: int
) -> None:
    async with script(move) as endpoint, chat(endpoint.url) as client:
        with pytest.raises(kind) as failed:
            await client.create(messages=HELLO)
    assert type(failed.value) is kind
    assert len(endpoint.bodies) == requests
    if isinstance(failed.value, openai.APIStatusError):
        assert failed.value.response.status_code == failed.value.status_code


@pytest.mark.promise("models:chat")
async def test_a_timed_out_call_raises_the_timeout_error_of_openai() -> None:
    async with (
        fake_endpoint(delay_ms=60_000) as url,
        chat(url, clock=SYSTEM_CLOCK, call_seconds=0.05) as client,
    ):
        with pytest.raises(openai.APITimeoutError):
            await client.create(messages=HELLO)


@pytest.mark.promise("models:chat")
async def test_budgets_apply_and_streaming_is_refused_in_one_line() -> None:
    async with script(says()) as endpoint, chat(endpoint.url, Accounts(max_tokens=15)) as client:
        with pytest.raises(ConfigurationError, match="stream"):
            await client.create(messages=HELLO, stream=True)
        await client.create(messages=HELLO)
        with pytest.raises(RunStopped):
            await client.create(messages=HELLO)
    assert len(endpoint.bodies) == 1


@pytest.mark.promise("models:chat")
def test_a_provider_with_another_api_is_refused_in_one_line() -> None:
    claude = ModelSettings(name="anthropic/claude", api_key=SecretStr("k"))
    with pytest.raises(ConfigurationError, match=r"^model anthropic/claude: .* does not have OpenAI's API"):
        ChatClient(claude, environment={})
