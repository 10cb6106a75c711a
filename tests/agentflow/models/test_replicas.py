"""Models with replicas: servers that are registered in a database."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web

from agentflow.actors import SYSTEM_CLOCK
from agentflow.errors import ModelFailure, RunStopped
from agentflow.journal import Replica, ReplicaTable, open_replicas
from agentflow.journal import _replicas as registrations
from agentflow.models import Call, Message, OpenModel, TextPart
from agentflow.models import _transport as transports
from agentflow.models._apis import EncodedRequest
from agentflow.models._providers import find_address
from agentflow.testing import fake_endpoint
from tests._postgres import PostgresServer, postgres_server
from tests.agentflow.models._serving import Body, Script, painter, refuses, says, script, settings
from tests.agentflow.models._tokens import LetterEngine, serving

MANY = 40


@pytest.fixture(autouse=True)
def long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody renews the leases of these tests."""
    monkeypatch.setattr(registrations, "LEASE_SECONDS", 1e9)


def asks(*texts: str) -> Call[str]:
    """Return a conversation of a user and a model, who speak in turn."""
    said = [
        Message("assistant" if place % 2 else "user", (TextPart(text),)) for place, text in enumerate(texts)
    ]
    return Call(role="planner", messages=tuple(said), reply=str)


@asynccontextmanager
async def replicas(database: str, *urls: str, model: str = "painter") -> AsyncGenerator[ReplicaTable]:
    async with open_replicas(database) as table:
        for url in urls:
            await table.renew(Replica(url, model, f"key-of-{url}"), first=True)
        yield table


@asynccontextmanager
async def replicated(database: str, **more: Any) -> AsyncGenerator[OpenModel]:  # noqa: ANN401 - settings of a model
    async with painter(database, clock=SYSTEM_CLOCK, **more) as model:
        yield model


async def in_flight(url: str) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{url.removesuffix('/v1')}/stats") as answer,
    ):
        return int((await answer.json())["in_flight"])


async def release(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        await session.get(f"{url.removesuffix('/v1')}/release")


@pytest.mark.promise("replicas:balance")
async def test_calls_in_flight_are_spread_evenly(postgres: PostgresServer) -> None:
    database = postgres.new_database()
    async with (
        fake_endpoint(hold_after=0) as north,
        fake_endpoint(hold_after=0) as south,
        replicas(database, north, south),
        replicated(database) as model,
        anyio.create_task_group() as tasks,
    ):
        # All continue one conversation, so that all fit the replica of the first one best.
        for number in range(MANY):
            tasks.start_soon(model.complete, asks("Which colour?" * 500, "red", str(number)))
        while (found := [await in_flight(url) for url in (north, south)]) and sum(found) < MANY:
            await anyio.lowlevel.checkpoint()
        assert abs(found[0] - found[1]) <= 5
        await release(north)
        await release(south)


@pytest.mark.promise("replicas:balance")
async def test_a_conversation_stays_at_one_replica(postgres: PostgresServer) -> None:
    database = postgres.new_database()
    async with (
        script(says("red")) as north,
        script(says("red")) as south,
        replicas(database, north.url, south.url),
        replicated(database) as model,
    ):
        # They begin alike, as with the instructions of a role.
        begin = ["Which colour? " * 100 + f"It is number {number}. " * 10 for number in range(20)]
        for turns in range(3):
            for text in begin:
                await model.complete(asks(text, *["red", "And now?"] * turns))

    def begins(at: Script) -> list[str]:
        return [body["messages"][0]["content"] for body in at.bodies]

    assert sorted([*begins(north), *begins(south)]) == sorted(begin * 3)
    assert not set(begins(north)) & set(begins(south))
    assert begins(north)
    assert begins(south)


@pytest.mark.promise("replicas:failures")
@pytest.mark.parametrize("failing", [None, refuses(500), refuses(503), refuses(401)])
async def test_calls_of_a_replica_that_fails_are_made_at_another(
    failing: web.Response | None, postgres: PostgresServer
) -> None:
    database = postgres.new_database()
    async with (
        script(failing) as north,
        script(says("red")) as south,
        replicas(database, north.url, south.url),
        replicated(database, max_attempts=1) as model,
    ):
        number = 0
        # The hash of a prompt selects its replica.
        while not (north.bodies and number >= 4):
            assert (await model.complete(asks(str(number)))).text == "red"
            number += 1
        assert len(south.bodies) == number
        assert {headers["authorization"] for headers in south.headers} == {f"Bearer key-of-{south.url}"}


@pytest.mark.promise("replicas:failures")
async def test_a_refused_request_is_not_sent_to_other_replicas(postgres: PostgresServer) -> None:
    database = postgres.new_database()
    async with (
        script(refuses(400)) as north,
        script(refuses(400)) as south,
        replicas(database, north.url, south.url),
        replicated(database) as model,
    ):
        with pytest.raises(ModelFailure, match="HTTP 400"):
            await model.complete(asks("Which colour?"))
        assert len(north.bodies) + len(south.bodies) == 1


@pytest.mark.promise("replicas:failures")
@pytest.mark.promise("replicas:join")
async def test_calls_in_flight_at_a_replica_that_is_gone_are_made_at_one_that_joined(
    postgres: PostgresServer,
) -> None:
    database = postgres.new_database()
    async with (
        fake_endpoint(hold_after=0) as north,
        script(says("red")) as south,
        replicas(database, north) as table,
        replicated(database, max_attempts=1) as model,
    ):
        answers: list[str] = []

        async def ask() -> None:
            answers.append((await model.complete(asks("Which colour?"))).text)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            while not await in_flight(north):
                await anyio.lowlevel.checkpoint()
            await table.renew(Replica(south.url, "painter", "key"), first=True)
            await table.remove(north)
        assert answers == ["red"]


@pytest.mark.promise("replicas:failures")
async def test_a_replica_that_starts_again_with_another_key_is_asked_with_it(
    postgres: PostgresServer,
) -> None:
    database, key = postgres.new_database(), "first-key"

    def answer(body: Body) -> web.Response:
        del body
        return says("red") if only.headers[-1]["authorization"] == f"Bearer {key}" else refuses(401)

    async with script(answer) as only, open_replicas(database) as table:
        await table.renew(Replica(only.url, "painter", key), first=True)
        async with replicated(database, max_attempts=1) as model:
            await model.complete(asks("Which colour?"))
            key = "second-key"
            await table.renew(Replica(only.url, "painter", key), first=True)
            assert (await model.complete(asks("And now?"))).text == "red"


@pytest.mark.promise("replicas:refused")
async def test_a_model_without_a_replica_is_named_in_one_line(postgres: PostgresServer) -> None:
    database = postgres.new_database()
    async with (
        script(says("red")) as other,
        replicas(database, other.url, model="another"),
        replicated(database.replace("@", ":pass-of-the-table@"), max_attempts=2) as model,
    ):
        with pytest.raises(RunStopped) as stopped:
            await model.complete(asks("Which colour?"))
    assert str(stopped.value) == (
        f"painter at {database.replace('@', ':***@')} can't be reached: no replica of painter is registered; "
        "start it or correct base_url, then run the same command to resume"
    )


@pytest.mark.promise("replicas:refused")
async def test_a_table_that_can_not_be_read_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "_PATIENCE", 0.0)
    with pytest.raises(RunStopped, match=r"^journal postgresql://nobody@127\.0\.0\.1:1/none: no answer"):
        async with replicated("postgresql://nobody@127.0.0.1:1/none"):
            pass


@pytest.mark.promise("replicas:failures")
async def test_the_known_replicas_are_called_while_the_database_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transports, "_PATIENCE", 0.0)
    with postgres_server() as server:
        database = server.new_database()
        async with script(says("red")) as only:
            async with replicas(database, only.url):
                pass
            address = find_address(settings(database), {})
            async with transports.ReplicaTransport(address, 8, SYSTEM_CLOCK) as transport:
                server.stop()
                await transport.refresh()
                assert await transport.post(EncodedRequest("/chat/completions", b"{}"), 60)
                server.start()


@pytest.mark.promise("replicas:same")
async def test_the_tokens_of_a_conversation_are_those_of_one_endpoint(postgres: PostgresServer) -> None:
    database = postgres.new_database()
    found: list[object] = []
    for has_table in (False, True):
        engine = LetterEngine([("yes", "stop"), ("no", "stop")])
        async with (
            serving(engine) as url,
            replicas(database, url),
            replicated(database if has_table else url, tokens="exact") as model,
        ):
            first = await model.complete(asks("a"))
            assert first.tokens is not None
            answer = Message("assistant", (TextPart("yes"),), first.tokens.mark)
            ask = asks("a").messages[0]
            second = await model.complete(Call(role="planner", messages=(ask, answer, ask), reply=str))
        found.append((first.tokens, second.tokens, engine.prompts))
    assert found[0] == found[1]
