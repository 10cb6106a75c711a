"""Endpoints: models at the same one share its connections and its limit."""

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.models._conversations import Conversations
from agentflow.models._dialects import LiteLlmDialect, Outgoing
from agentflow.models._gate import Gate
from agentflow.models._http import HttpAnswer, Wire
from agentflow.models._litellm import LiteLlm
from agentflow.models._providers import Address

__all__ = ["Endpoint", "Endpoints"]


class Endpoint:
    """One endpoint: open while any of its models is."""

    def __init__(self, address: Address, most: int, clock: Clock) -> None:
        self.url = address.url
        """Its address, for people."""
        self.gate = Gate(most, clock=clock)
        """How many requests it gets at a time."""
        self._conversations: dict[str, Conversations] = {}
        self._wire = _wire_to(address, most)
        self._users = 0
        self._stack = AsyncExitStack()

    def conversations(self, model: str) -> Conversations:
        """What that model read and wrote there, whoever asked it."""
        return self._conversations.setdefault(model, Conversations())

    async def post(self, outgoing: Outgoing, seconds: float) -> HttpAnswer:
        """Make one request.

        :raises Setback: if it brings no answer, or a bad one.
        """
        return await self._wire.post(outgoing.path, outgoing.body, seconds, outgoing.headers)

    async def __aenter__(self) -> Self:
        self._users += 1
        if self._users == 1:
            await self._stack.enter_async_context(self._wire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users -= 1
        if not self._users:
            await self._stack.aclose()


def _wire_to(address: Address, most: int) -> Wire | LiteLlm:
    if isinstance(address.dialect, LiteLlmDialect):
        return LiteLlm(address.key)
    return Wire(address.url, address.dialect.headers(address.key), most)


class Endpoints:
    """The endpoints of one program."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str, str, int], Endpoint] = {}

    def at(self, address: Address, most: int) -> Endpoint:
        """The endpoint at that address; the same one for the same key and bound."""
        place = (address.url, address.dialect.name, address.key, most)
        if place not in self._known:
            self._known[place] = Endpoint(address, most, self._clock)
        return self._known[place]
