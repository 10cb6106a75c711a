"""Rate limits: one request for each slot, in virtual time."""

import anyio
import pytest
from pydantic import SecretStr

from agentflow.errors import ModelFailureKind
from agentflow.models import ChatClient, ModelConnection, ModelEndpoints, ModelSettings
from agentflow.models._endpoints import ConcurrencyLimiter, LocalRateLimiter, ModelThrottle, Retrier
from agentflow.models._providers import find_address
from agentflow.models._request_error import RequestError
from agentflow.testing import VirtualClock
from tests.agentflow.models._serving import HastyClock, call, says, script, settings


class ReservedNames:
    """Notes the limits under which slots are reserved; every slot is now."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def reserve(self, name: str, interval: float) -> float:
        del interval
        self.names.append(name)
        return 0.0


def throttle(limiter: ReservedNames, per_minute: float | None = 60, **settings: object) -> ModelThrottle:
    """Return the throttle of a model."""
    given = {"name": "painter", "base_url": "http://127.0.0.1:1/v1", **settings}
    address = find_address(ModelSettings.model_validate(given), {})
    return ModelThrottle(limiter, address, per_minute, HastyClock())


@pytest.mark.promise("models:rates")
async def test_slots_are_even_and_unused_time_is_not_caught_up_with() -> None:
    clock = VirtualClock()
    limiter = LocalRateLimiter(clock)
    assert [await limiter.reserve("a", 2.0) for _ in range(3)] == [0.0, 2.0, 4.0]
    assert await limiter.reserve("b", 2.0) == 0.0
    clock.advance(100)
    assert [await limiter.reserve("a", 2.0) for _ in range(2)] == [0.0, 2.0]


@pytest.mark.promise("models:rates")
async def test_a_limit_belongs_to_a_key_and_a_model_and_is_named_without_the_key() -> None:
    limiter = ReservedNames()
    await throttle(limiter).wait()
    await throttle(limiter, api_key=SecretStr("sk-planted")).wait()
    await throttle(limiter, name="sculptor").wait()
    await throttle(limiter).wait()
    await throttle(limiter, per_minute=None).wait()
    assert len(limiter.names) == 4
    assert len(set(limiter.names)) == 3
    assert not any("planted" in name for name in limiter.names)


@pytest.mark.promise("models:rates")
async def test_every_attempt_waits_for_a_slot_and_the_time_of_a_call_begins_at_the_first() -> None:
    clock = HastyClock()
    slots = LocalRateLimiter(clock)
    address = find_address(ModelSettings(name="painter", base_url="http://127.0.0.1:1/v1"), {})
    wait = ModelThrottle(slots, address, 60 / 0.97, clock).wait
    retrier = Retrier(
        ConcurrencyLimiter(8, clock=clock), max_requests=3, seconds=50, clock=clock, throttle=wait
    )
    for _ in range(100):
        await wait()
    told: list[tuple[float, float]] = []

    async def fail(left: float) -> None:
        told.append((round(clock.now()), round(left)))
        raise RequestError(ModelFailureKind.RATE_LIMITED, "busy", retry=True, overloaded=True, retry_after=0)

    began = clock.now()
    with pytest.raises(RequestError):
        await retrier.run(fail)
    assert [(at - round(began), left) for at, left in told] == [(1, 50), (2, 49), (3, 48)]


@pytest.mark.promise("models:rates")
async def test_a_call_that_is_cancelled_while_it_waits_for_a_slot_gives_its_permit_back() -> None:
    limiter = ConcurrencyLimiter(1)
    retrier = Retrier(limiter, max_requests=1, seconds=10, throttle=anyio.sleep_forever)
    async with anyio.create_task_group() as tasks:

        async def answer(_: float) -> None:
            raise AssertionError

        tasks.start_soon(retrier.run, answer)
        await anyio.wait_all_tasks_blocked()
        assert limiter.in_flight == 1
        tasks.cancel_scope.cancel()
    assert limiter.in_flight == 0


@pytest.mark.promise("models:rates")
async def test_a_gateways_connection_and_openais_client_wait_for_slots_too() -> None:
    limiter = ReservedNames()
    endpoints = ModelEndpoints(HastyClock(), rates=limiter)
    async with script(says(), says()) as endpoint:
        limited = settings(endpoint.url, requests_per_minute=60)
        async with (
            ModelConnection(limited, endpoints=endpoints, environment={}) as connection,
            ChatClient(limited, endpoints=endpoints, environment={}) as client,
        ):
            await connection.ask(call().messages)
            await client.create(messages=[{"role": "user", "content": "Hello"}])
    assert len(limiter.names) == 2
    assert len(set(limiter.names)) == 1
