"""Equal conversations have equal rows through every API, over HTTP, with retries, sub-agents and shortened histories."""

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Protocol

import aiohttp
import anyio
import pytest

from agentflow.gateway import (
    BegunEpisode,
    EpisodeBranch,
    EpisodeOffer,
    EpisodeOutcome,
    EpisodeRegistry,
    EpisodeStore,
    ExactAnswerer,
    GatewaySettings,
    RecordedCall,
    token_tree,
)
from tests.agentflow.gateway._conversations import whole_tokens
from tests.agentflow.gateway._engine import RandomEngine
from tests.agentflow.gateway._registry import OWNER, served, task
from tests.agentflow.trace._calls import trained

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}}
NAMES = ("look", "list")


class Client(Protocol):
    """Agent's side of a conversation in one API."""

    path: str

    def body(self) -> dict[str, Any]: ...

    def say(self, text: str) -> None: ...

    def take(self, answer: dict[str, Any]) -> list[str]:
        """Append an answer; return the ids of its calls."""
        ...

    def reply(self, results: list[tuple[str, str]]) -> None: ...


class ChatClient:
    path = "/chat/completions"

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "You look things up."}]

    def body(self) -> dict[str, Any]:
        described = [{"name": name, "description": name, "parameters": SCHEMA} for name in NAMES]
        tools = [{"type": "function", "function": one} for one in described]
        return {"model": "random", "messages": self.messages, "tools": tools, "max_tokens": 500}

    def say(self, text: str) -> None:
        self.messages = [*self.messages, {"role": "user", "content": text}]

    def take(self, answer: dict[str, Any]) -> list[str]:
        message = answer["choices"][0]["message"]
        kept = {name: message[name] for name in ("role", "content", "tool_calls") if message.get(name)}
        self.messages = [*self.messages, {"content": "", **kept}]
        return [call["id"] for call in message.get("tool_calls") or ()]

    def reply(self, results: list[tuple[str, str]]) -> None:
        found = [{"role": "tool", "tool_call_id": id, "content": text} for id, text in results]
        self.messages = [*self.messages, *found]


class ResponsesClient:
    path = "/responses"

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []

    def body(self) -> dict[str, Any]:
        tools = [
            {"type": "function", "name": name, "description": name, "parameters": SCHEMA} for name in NAMES
        ]
        head = {"model": "random", "instructions": "You look things up.", "max_output_tokens": 500}
        return {**head, "input": self.items, "tools": tools}

    def say(self, text: str) -> None:
        self.items = [*self.items, {"role": "user", "content": text}]

    def take(self, answer: dict[str, Any]) -> list[str]:
        self.items = [*self.items, *answer["output"]]
        return [item["call_id"] for item in answer["output"] if item["type"] == "function_call"]

    def reply(self, results: list[tuple[str, str]]) -> None:
        found = [{"type": "function_call_output", "call_id": id, "output": text} for id, text in results]
        self.items = [*self.items, *found]


class MessagesClient:
    path = "/messages"

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def body(self) -> dict[str, Any]:
        tools = [{"name": name, "description": name, "input_schema": SCHEMA} for name in NAMES]
        head = {"model": "random", "system": "You look things up.", "max_tokens": 500}
        return {**head, "messages": self.messages, "tools": tools}

    def say(self, text: str) -> None:
        self.messages = [*self.messages, {"role": "user", "content": text}]

    def take(self, answer: dict[str, Any]) -> list[str]:
        self.messages = [*self.messages, {"role": "assistant", "content": answer["content"]}]
        return [block["id"] for block in answer["content"] if block["type"] == "tool_use"]

    def reply(self, results: list[tuple[str, str]]) -> None:
        found = [{"type": "tool_result", "tool_use_id": id, "content": text} for id, text in results]
        self.messages = [*self.messages, {"role": "user", "content": found}]


class Player:
    """Plays the same random conversation through any API."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str, kind: type[Client]) -> None:
        self._session = session
        self._url = url
        self._key = key
        self._kind = kind

    async def play(self, random: Random, agent: str = "") -> None:
        client = self._kind()
        client.say(f"Task {agent}{random.randrange(3)}: how many?")
        for turn in range(random.randint(2, 5)):
            answer = await self.post(client)
            if random.random() < 0.2:
                # The client's library did not see the answer, and gets the same one.
                assert await self.post(client, retry=1) == answer
            elif random.random() < 0.2:
                answer = await self.post(client)
            ids = client.take(answer)
            if ids:
                client.reply([(id, f"found {random.randrange(100)}") for id in ids])
            else:
                client.say(f"Go on, {random.randrange(100)}.")
            if random.random() < 0.3 and not agent:
                async with anyio.create_task_group() as tasks:
                    for number in range(3):
                        # Of parallel calls with equal prompts, either one can be the first.
                        name = f"{turn}.{number} "
                        tasks.start_soon(self.play, Random(f"{name}{random.randrange(100)}"), name)
            if random.random() < 0.15:
                client = self._kind()
                client.say(f"In short: {random.randrange(100)} things are known.")

    async def post(self, client: Client, retry: int = 0) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._key}", "x-stainless-retry-count": str(retry)}
        async with self._session.post(
            f"{self._url}/v1{client.path}", data=json.dumps(client.body()), headers=headers
        ) as answer:
            assert answer.status == 200, await answer.text()
            found: dict[str, Any] = await answer.json()
        return {name: value for name, value in found.items() if not name.startswith("created")}


async def check_rows(count: int, folder: Path) -> None:
    """Assert that conversations have equal rows in every API, which hold exactly what the engine sampled."""
    engine = RandomEngine()
    settings = GatewaySettings()
    kinds: tuple[type[Client], ...] = (ChatClient, ResponsesClient, MessagesClient)
    async with (
        EpisodeStore(folder) as store,
        EpisodeRegistry(settings, store, {"": ExactAnswerer(engine.engine)}, base_url=lambda: "") as registry,
        served(registry, settings) as url,
        aiohttp.ClientSession() as session,
    ):
        for number in range(count):
            engine.told.clear()
            rows: list[Any] = []
            for place, kind in enumerate(kinds):
                offer = EpisodeOffer(id=f"{number}/{place}", group=str(number), task=task(), seed=str(number))
                await registry.slots.offer([offer])
                begun = await registry.begin(OWNER)
                assert begun is not None
                before = len(engine.told)
                await Player(session, url, begun.keys[""], kind).play(Random(number))
                await registry.end(OWNER, begun.episode, begun.attempt, EpisodeOutcome(reward=1.0), "e")
                calls = await registry.calls(OWNER, begun.episode, begun.attempt)
                assert all(call.delivered for call in calls)
                full = Counter(
                    (tokens.prompt, tokens.sampled, tokens.logprobs) for _, tokens in whole_tokens(calls)
                )
                assert full == Counter(engine.told[before:])
                pieces = trained(token_tree(calls))
                rows.append(Counter(piece[1:] for piece in pieces))
                assert sum(len(piece.ids) for piece in pieces) == sum(
                    len(ids) for _, ids, _ in engine.told[before:]
                )
            assert rows[0] == rows[1] == rows[2]


@pytest.mark.promise("gateway:exact:apis")
async def test_rows_are_equal_through_chat_responses_and_messages(tmp_path: Path) -> None:
    await check_rows(10, tmp_path)


@pytest.mark.soak
@pytest.mark.promise("gateway:exact:apis")
async def test_many_rows_are_equal_through_chat_responses_and_messages(tmp_path: Path) -> None:
    await check_rows(200, tmp_path)


@pytest.mark.promise("tuner:branches")
@pytest.mark.parametrize("kind", [ChatClient, ResponsesClient, MessagesClient])
@pytest.mark.parametrize("number", range(3))
async def test_a_branch_gets_the_answers_of_its_origin_through_every_api(
    kind: type[Client], number: int, tmp_path: Path
) -> None:
    engine = RandomEngine()
    settings = GatewaySettings()

    async def answers(begun: BegunEpisode) -> list[Any]:
        client, random = kind(), Random(number)
        client.say("How many?")
        player = Player(session, url, begun.keys[""], kind)
        answered: list[Any] = []
        for _ in range(4):
            answered.append(answer := await player.post(client))
            ids = client.take(answer)
            client.reply([(id, f"found {random.randrange(100)}") for id in ids])
            client.say(f"Go on, {random.randrange(100)}.")
        await registry.end(OWNER, begun.episode, begun.attempt, EpisodeOutcome(reward=1.0), "e")
        # Ids of answers name the key.
        return [{name: value for name, value in answer.items() if name != "id"} for answer in answered]

    async with (
        EpisodeStore(tmp_path) as store,
        EpisodeRegistry(settings, store, {"": ExactAnswerer(engine.engine)}, base_url=lambda: "") as registry,
        served(registry, settings) as url,
        aiohttp.ClientSession() as session,
    ):
        branches = [EpisodeBranch(), EpisodeBranch(origin="1/0", attempt=1, calls=2)]
        played: list[list[Any]] = []
        calls: list[list[RecordedCall]] = []
        for place, branch in enumerate(branches):
            id = f"1/{place}"
            offer = EpisodeOffer(id=id, group="1", task=task(), seed=f"{number}/{place}", branch=branch)
            await registry.slots.offer([offer])
            begun = await registry.begin(OWNER)
            assert begun is not None
            played.append(await answers(begun))
            calls.append(await registry.calls(OWNER, begun.episode, 1))
    assert played[0][:2] == played[1][:2]
    assert played[0][2] != played[1][2]
    assert calls[0][:2] == calls[1][:2]
    assert [len(recorded) for recorded in calls] == [4, 4]
    assert len(engine.told) == 4 + 2
