"""A client of the model, as agents use it."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from openai import AsyncOpenAI, omit

from agentflow.serving import ModelServer
from examples.library.example import Ask, Messages

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

__all__ = ["LONGEST", "AgentPolicy", "ChatPolicy", "ServedPolicy", "chat"]

LONGEST = 24
"""Maximum number of tokens of an answer."""


class ChatPolicy(Protocol):
    """Address, key and name of a model, as `tune` passes them."""

    @property
    def base_url(self) -> str:
        """Address for OpenAI clients; ends with `/v1`."""
        ...

    @property
    def api_key(self) -> str:
        """Key."""
        ...

    @property
    def model(self) -> str:
        """Name of the model."""
        ...


class AgentPolicy(ChatPolicy, Protocol):
    """A model for each agent of an episode."""

    def agent(self, name: str) -> ChatPolicy:
        """Return the model of an agent."""
        ...


class ServedPolicy:
    """A policy outside of a tuning: running servers, without a gateway."""

    def __init__(
        self, server: ModelServer, frozen: ModelServer | None = None, names: Sequence[str] = ()
    ) -> None:
        """:param frozen: server of the agents with these names."""
        self.base_url = server.url
        """Address for OpenAI clients."""
        self.api_key = server.key
        """Key."""
        self.model = server.model
        """Name of the model."""
        self._frozen = frozen
        self._names = names

    def agent(self, name: str) -> ChatPolicy:
        """Return the model of an agent."""
        if self._frozen is not None and name in self._names:
            return ServedPolicy(self._frozen)
        return self


@cache
def _client(base_url: str) -> AsyncOpenAI:
    # One pool of connections for all episodes; the key is that of the episode.
    return AsyncOpenAI(base_url=base_url, api_key="of the episode", timeout=120)


def chat(policy: ChatPolicy, longest: int = LONGEST, *, temperature: float | None = None) -> Ask:
    """Return a player that asks the policy with the SDK of OpenAI.

    :param longest: maximum number of tokens of an answer.
    :param temperature: sampling temperature; `None`: the model's, or that of the run.
    """
    client = _client(policy.base_url).with_options(api_key=policy.api_key)

    async def ask(messages: Messages) -> str:
        said = await client.chat.completions.create(
            model=policy.model,
            messages=cast("list[ChatCompletionMessageParam]", messages),
            max_completion_tokens=longest,
            temperature=omit if temperature is None else temperature,
        )
        return said.choices[0].message.content or ""

    return ask
