"""Bodies of requests: bounded, and paced beside other clients."""

import json
from collections.abc import Sequence

import anyio
import pytest
from starlette.types import Message, Receive

from agentflow.http_server import _bodies
from agentflow.http_server._bodies import BodyRefusedError, RequestBodies, RequestThrottle
from runtimes import MIB, JsonLimits
from tests.mcp_servers._now import Now

CLIENTS = ("alice", "bob")
SIZE = 64 * 1024


def sending(pieces: Sequence[bytes]) -> Receive:
    """Return a `receive` of these pieces; after them nothing arrives."""
    waiting: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
        for number, piece in enumerate(pieces, 1)
    ]

    async def receive() -> Message:
        if not waiting:
            await anyio.sleep_forever()
        return waiting.pop(0)

    return receive


async def read(bodies: RequestBodies, pieces: Sequence[bytes], length: int | None = None) -> bytes:
    """Read a body, announced with that length."""
    async with bodies.read("alice", length, sending(pieces)) as body:
        return body


@pytest.mark.promise("mcp:http:values")
@pytest.mark.parametrize("length", [True, False])
async def test_a_body_with_too_many_values_is_refused_before_it_is_decoded(length: bool) -> None:
    bodies = RequestBodies(JsonLimits(max_bytes=MIB, max_values=20_000))
    for body in (b"[" + b"[]," * 20_000 + b"1]", json.dumps({f"a{n}": 0 for n in range(20_000)}).encode()):
        with pytest.raises(BodyRefusedError, match="at most 20,000 JSON values") as refused:
            await read(bodies, [body], len(body) if length else None)
        assert refused.value.status == 413
    text = json.dumps({"text": '[{,"\\' * 50_000}).encode()
    assert await read(bodies, [text[:7], text[7:]], len(text) if length else None) == text


@pytest.mark.promise("mcp:http:values")
async def test_too_many_values_are_refused_before_the_whole_body_has_arrived() -> None:
    with anyio.fail_after(60), pytest.raises(BodyRefusedError, match="20,000 JSON values"):
        # More is announced, but never comes.
        pieces = [b"[" + b"[]," * 100_000, b"1]"]
        await read(RequestBodies(JsonLimits(max_bytes=16 * MIB, max_values=20_000)), pieces[:1] * 2, 15 * MIB)


@pytest.mark.promise("mcp:http:body")
@pytest.mark.parametrize("length", [200_000, None])
async def test_a_body_over_the_limit_is_refused(length: int | None) -> None:
    with pytest.raises(BodyRefusedError, match="at most 100,000 bytes") as refused:
        await read(
            RequestBodies(JsonLimits(max_bytes=100_000, max_values=20_000)), [b"x" * 70_000] * 3, length
        )
    assert refused.value.status == 413


@pytest.mark.promise("mcp:http:body")
@pytest.mark.parametrize("length", [10, 100_000, None])
async def test_a_body_that_stops_arriving_is_refused(
    length: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_bodies, "PIECE_SECONDS", 0.01)
    bodies = RequestBodies(JsonLimits(max_bytes=MIB, max_values=20_000))

    async def nothing() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.fail_after(60), pytest.raises(BodyRefusedError, match="did not arrive in time") as refused:
        async with bodies.read("alice", length, nothing):
            raise AssertionError
    assert refused.value.status == 408


@pytest.mark.promise("mcp:http:held")
@pytest.mark.parametrize("clients", [CLIENTS, ()])
async def test_large_requests_of_one_client_hold_a_bounded_amount_of_memory(clients: Sequence[str]) -> None:
    bodies = RequestBodies(JsonLimits(max_bytes=SIZE), several=len(clients) > 1, held_bytes=SIZE)
    entered: list[str] = []
    leave = anyio.Event()

    async def answer(client: str, size: int) -> None:
        async with bodies.read(client, size, sending([b"[" + b" " * (size - 2) + b"]"])):
            entered.append(client)
            await leave.wait()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(answer, "alice", SIZE)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(answer, "alice", SIZE)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(answer, "bob", SIZE)
            group.start_soon(answer, "alice", 10)
            await anyio.wait_all_tasks_blocked()
            # A client that is the only one waits for nobody.
            expected = ["alice", "alice", "bob"] if clients else ["alice", "alice", "alice", "bob"]
            assert sorted(entered) == expected
            leave.set()
    assert len(entered) == 4


@pytest.mark.promise("mcp:http:held")
async def test_a_large_request_that_finds_no_memory_for_long_is_refused_with_503(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_bodies, "HELD_SECONDS", 0.01)
    bodies = RequestBodies(JsonLimits(max_bytes=SIZE), held_bytes=SIZE)
    body = b'"' + b"a" * (SIZE - 2) + b'"'
    with anyio.fail_after(60):
        async with bodies.read("alice", SIZE, sending([body])):
            with pytest.raises(BodyRefusedError, match="too many large requests") as refused:
                await read(bodies, [body], SIZE)
        assert refused.value.status == 503
        assert await read(bodies, [body], SIZE) == body


@pytest.mark.promise("mcp:http:held")
async def test_the_values_of_a_body_count_beside_its_size() -> None:
    bodies = RequestBodies(JsonLimits(), held_bytes=MIB)
    values = b"[" + b"1," * 15_000 + b"1]"
    entered: list[bytes] = []
    leave = anyio.Event()

    async def answer(body: bytes) -> None:
        async with bodies.read("alice", len(body), sending([body])):
            entered.append(body)
            await leave.wait()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for body in (values, values, b'"' + b"a" * (len(values) - 2) + b'"'):
                group.start_soon(answer, body)
                await anyio.wait_all_tasks_blocked()
            assert entered == [values], "further ones wait for room, in order"
            leave.set()
    assert len(entered) == 3


@pytest.mark.promise("mcp:http:paced")
def test_expensive_requests_are_spread_over_time_only_beside_other_clients() -> None:
    now = Now()
    throttle = RequestThrottle(clock=now)
    throttle.see("alice")
    assert [throttle.delay("alice", 1.0) for _ in range(100)] == [0.0] * 100
    throttle.see("bob")
    assert throttle.delay("alice", 0.2) == 0.0
    assert throttle.delay("alice", 0.2) == pytest.approx(
        (0.2 - RequestThrottle.BURST_SECONDS) / RequestThrottle.SHARE
    )
    assert throttle.delay("bob", 0.1) == 0.0
    now.seconds = 1.0
    throttle.see("bob")
    assert throttle.delay("alice", 0.0) == pytest.approx(
        (0.4 - RequestThrottle.SHARE - RequestThrottle.BURST_SECONDS) / RequestThrottle.SHARE
    )
    now.seconds = 1.0 + RequestThrottle.ACTIVE_SECONDS + 0.1
    assert throttle.delay("alice", 5.0) == 0.0
