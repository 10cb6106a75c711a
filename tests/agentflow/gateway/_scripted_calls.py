"""Episodes with scripted answers, behind the real server of the model APIs."""

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2

from agentflow.gateway import GatewayCall, GatewayError
from agentflow.gateway._server import EpisodeCalls, ModelRoutes, gateway_app
from agentflow.gateway._types import OnText
from agentflow.http_server import serving
from agentflow.models import Completion, Message, TextPart, ToolCall
from agentflow.trace import Usage

KEY = "af_1_secret"
MODEL = "policy"


@dataclass
class ScriptedCalls:
    """Gives its answers in order, and keeps the calls. It is all episodes and the only episode."""

    answers: list[Completion[None] | GatewayError | Exception] = field(default_factory=list[Any])
    """Answers that are left."""
    pieces: list[str] = field(default_factory=list[str])
    """Pieces of text to send before the next answer."""
    calls: list[GatewayCall] = field(default_factory=list[GatewayCall])
    """Calls so far."""
    retries: list[str] = field(default_factory=list[str])
    received: list[str] = field(default_factory=list[str])
    """Ids of delivered answers."""
    lost: list[str] = field(default_factory=list[str])
    """Ids of answers that were not delivered."""
    gate: anyio.Event | None = None
    """Event to wait for before an answer."""
    begun: anyio.Event = field(default_factory=anyio.Event)
    """Set by the first call, or the `expected`th."""
    expected: int = 1
    cancelled: int = 0

    def find(self, key: str) -> tuple[EpisodeCalls, str]:
        if key != KEY:
            raise GatewayError(401, "the key is not valid; begin an episode", code="invalid_key")
        return self, ""

    def models(self, agent: str) -> tuple[str, ...]:
        return (MODEL,)

    def overrides(self, agent: str, call: GatewayCall) -> tuple[str, ...]:
        return () if call.sampling.temperature is None else ("temperature",)

    async def conversation(self, agent: str, call: str) -> tuple[Message, ...] | None:
        number = int(call.removeprefix("c").removesuffix(".0"))
        if number >= len(self.calls):
            return None
        return (*self.calls[number].messages, Message("assistant", (TextPart(f"answer {number}"),)))

    def image_bytes(self, hash: str) -> int:
        return len(self.sent_images[hash])

    async def images(self, hashes: Collection[str]) -> dict[str, bytes]:
        return {hash: self.sent_images[hash] for hash in hashes}

    @property
    def sent_images(self) -> dict[str, bytes]:
        """Images of all calls, by hash."""
        return {hash: data for call in self.calls for hash, data in call.images.items()}

    async def complete(
        self, agent: str, call: GatewayCall, retry: str, on_text: OnText | None
    ) -> list[Completion[None]]:
        number = len(self.calls)
        self.calls.append(call)
        self.retries.append(retry)
        if len(self.calls) >= self.expected:
            self.begun.set()
        if on_text is not None:
            for piece in self.pieces:
                on_text(f"c{number}.0", piece)
        try:
            if self.gate is not None:
                await self.gate.wait()
        except BaseException:
            self.cancelled += 1
            raise
        answers: list[Completion[None]] = []
        for _ in range(call.answers):
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            answers.append(answer)
        return answers

    async def count(self, agent: str, call: GatewayCall) -> int:
        self.calls.append(call)
        return 42

    def delivered(self, ids: Sequence[str], ok: bool) -> None:
        (self.received if ok else self.lost).extend(ids)


def answer(number: int = 0, text: str = "", *calls: ToolCall, **more: Any) -> Completion[None]:  # noqa: ANN401 - any field
    """Return an answer with 7 tokens in the prompt and 3 sampled ones."""
    finish = "tool_calls" if calls else "stop"
    fields: dict[str, Any] = {"finish": finish, "usage": Usage(1, 7, 3), **more}
    return Completion(id=f"c{number}.0", text=text, calls=calls, **fields)


def call(identifier: str, name: str, **arguments: Any) -> ToolCall:  # noqa: ANN401 - any argument
    """Return a tool call."""
    return ToolCall(identifier, name, arguments)


@asynccontextmanager
async def scripted_server(calls: ScriptedCalls, **options: Any) -> AsyncGenerator[str]:  # noqa: ANN401 - of the server
    """Serve them, and yield the address."""
    app = gateway_app(ModelRoutes(calls, wall=lambda: 1.0, **options))
    async with serving(app) as url:
        yield url


@asynccontextmanager
async def raw_client(url: str, **headers: str) -> AsyncGenerator[httpx2.AsyncClient]:
    """Yield an HTTP client with the key."""
    given = {"Authorization": f"Bearer {KEY}", **headers}
    async with httpx2.AsyncClient(base_url=url, headers=given, timeout=30) as client:
        yield client
