"""A registry of episodes with a model of its own, for tests."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.gateway import (
    AgentConversations,
    EpisodeOffer,
    EpisodeRegistry,
    EpisodeStore,
    GatewayCall,
    GatewaySettings,
    PromptOrigin,
    RecordedCall,
    add_swarm_routes,
)
from agentflow.gateway._episodes import ClientIdentity, ClientRole
from agentflow.gateway._server import ModelRoutes, gateway_app
from agentflow.http_server import serving
from agentflow.models import Completion, Message, TextPart
from agentflow.trace import Task, Tokens

OWNER = ClientIdentity(ClientRole.OWNER)
WORKER = ClientIdentity(ClientRole.WORKER)


class EchoModel:
    """Answers with the question's length as a token. It waits while `gate` is closed."""

    def __init__(self, name: str = "policy", *, trained: bool = True) -> None:
        self.models = (name,)
        self.trained = trained
        self.gate = anyio.Event()
        self.gate.set()
        self.seen: list[str] = []
        self.seeds: list[str] = []
        self.fails: Exception | None = None

    def overrides(self, call: GatewayCall, temperature: float | None) -> tuple[str, ...]:
        """Replace nothing."""
        return ()

    async def count(self, call: GatewayCall) -> int:
        """Count messages."""
        return len(call.messages)

    async def answer(
        self,
        call: GatewayCall,
        memory: AgentConversations,
        ids: Sequence[str],
        *,
        seed: str,
        temperature: float | None,
        on_text: Callable[[str], None] | None = None,
    ) -> list[tuple[Completion[None], RecordedCall]]:
        """Answer once the gate is open."""
        asked = text_of(call)
        self.seen.append(asked)
        self.seeds.append(seed)
        await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        if on_text is not None:
            on_text(f"to {asked}")
        return [self._answer(id, call, asked, memory) for id in ids]

    def _answer(
        self, id: str, call: GatewayCall, asked: str, memory: AgentConversations
    ) -> tuple[Completion[None], RecordedCall]:
        text = f"to {asked}"
        tokens = (
            Tokens(prompt=(1, 2), sampled=(len(asked), 3), logprobs=(-0.5, -0.25)) if self.trained else None
        )
        match = memory.match(call.messages)
        record = RecordedCall(
            id=id,
            agent=memory.agent,
            dialect=call.dialect,
            trained=memory.trained,
            delivered=True,
            origin=PromptOrigin.OPENING,
            parent=match.parent,
            tokens=tokens,
            messages=call.messages[match.count :],
            answer=Message("assistant", (TextPart(text),)),
        )
        memory.add(id, match, record.answer, record.tokens)
        return Completion(id=id, text=text, tokens=tokens), record


def text_of(call: GatewayCall) -> str:
    """Return the text of the last message."""
    return "".join(part.text for part in call.messages[-1].parts if isinstance(part, TextPart))


def ask(text: str, answers: int = 1) -> GatewayCall:
    """Return a call with one message."""
    return GatewayCall(dialect="chat", messages=(Message("user", (TextPart(text),)),), answers=answers)


def task(id: str = "t1", question: str = "1 + 1?") -> Task:
    """Return a task."""
    return Task(index=0, id=id, question=question)


def offers(group: str = "1", size: int = 2) -> list[EpisodeOffer]:
    """Return the places of a group."""
    return [
        EpisodeOffer(id=f"{group}/{member}", group=group, task=task(group), seed=f"s{group}/{member}")
        for member in range(size)
    ]


@asynccontextmanager
async def registry_at(
    folder: Path,
    settings: GatewaySettings | None = None,
    model: EchoModel | None = None,
    clock: Clock = SYSTEM_CLOCK,
    base_url: Callable[[], str] = lambda: "http://127.0.0.1:1/v1",
) -> AsyncGenerator[EpisodeRegistry]:
    """Open the registry of a folder."""
    settings = settings or GatewaySettings()
    own = model or EchoModel()
    models = {
        name: own if agent.trained else EchoModel("frozen", trained=False)
        for name, agent in settings.agents_or_one().items()
    }
    async with (
        EpisodeStore(folder) as store,
        EpisodeRegistry(
            settings,
            store,
            models,
            base_url=base_url,
            clock=clock,
        ) as registry,
    ):
        yield registry


@asynccontextmanager
async def served(registry: EpisodeRegistry, settings: GatewaySettings) -> AsyncGenerator[str]:
    """Serve a registry; yield its address."""
    app = gateway_app(ModelRoutes(registry))
    add_swarm_routes(app, registry, settings)
    async with serving(app) as url:
        yield url
