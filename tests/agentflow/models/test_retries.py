"""Retries, in virtual time with an endpoint that is a function."""

from random import Random

import pytest

from agentflow.errors import ModelFailureKind
from agentflow.models._endpoints import ConcurrencyLimiter, Retrier
from agentflow.models._request_error import RequestError
from tests.agentflow.models._serving import HastyClock


def busy(retry_after: float | None = None) -> RequestError:
    return RequestError(
        ModelFailureKind.RATE_LIMITED, "busy", retry=True, overloaded=True, retry_after=retry_after
    )


def attempts(clock: HastyClock, *, most: int = 4, seconds: float = 100.0, seed: int = 1) -> Retrier:
    limiter = ConcurrencyLimiter(64, clock=clock)
    return Retrier(limiter, max_requests=most, seconds=seconds, clock=clock, random=Random(seed))


async def pauses(error: RequestError, *, most: int = 4, seconds: float = 100.0, seed: int = 1) -> list[float]:
    """Return the pauses if every request ends with this error."""
    clock = HastyClock()

    async def fail(left: float) -> None:
        raise error

    with pytest.raises(RequestError):
        await attempts(clock, most=most, seconds=seconds, seed=seed).run(fail)
    return clock.slept


@pytest.mark.promise("models:backoff")
async def test_pauses_grow_with_jitter_and_there_is_none_after_the_last_attempt() -> None:
    bounds = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    slept = await pauses(busy(), most=8)
    assert all(bound / 2 <= pause <= bound for pause, bound in zip(slept, bounds, strict=True))
    assert slept == await pauses(busy(), most=8)
    assert slept != await pauses(busy(), most=8, seed=2)


@pytest.mark.promise("models:retry_after")
async def test_retry_after_is_honoured() -> None:
    assert await pauses(busy(retry_after=7.5)) == [7.5] * 3


@pytest.mark.promise("models:deadline")
async def test_a_pause_past_the_deadline_fails_at_once() -> None:
    assert await pauses(busy(retry_after=3600)) == []
    assert await pauses(busy(retry_after=40), seconds=100) == [40, 40]


@pytest.mark.promise("models:deadline")
async def test_each_attempt_gets_the_remaining_time() -> None:
    clock = HastyClock()
    told: list[float] = []

    async def fail(left: float) -> None:
        told.append(left)
        clock.advance(30)
        raise busy(retry_after=0)

    with pytest.raises(RequestError):
        await attempts(clock, seconds=70).run(fail)
    assert told == [70, 40, 10]


@pytest.mark.promise("models:backoff")
async def test_garbage_is_retried_without_a_pause() -> None:
    garbage = RequestError(ModelFailureKind.GARBAGE, "prose", retry=True, backs_off=False, status=200)
    assert await pauses(garbage) == []


@pytest.mark.promise("models:adapts")
async def test_overload_lowers_the_limit_and_every_outcome_returns_the_permit() -> None:
    clock = HastyClock()
    limiter = ConcurrencyLimiter(64, start=32, clock=clock)

    async def fail(left: float) -> None:
        raise busy()

    async def crash(left: float) -> None:
        raise ZeroDivisionError

    tries = Retrier(limiter, max_requests=2, seconds=10, clock=clock)
    with pytest.raises(RequestError):
        await tries.run(fail)
    assert limiter.limit == 8
    with pytest.raises(ZeroDivisionError):
        await tries.run(crash)
    assert limiter.in_flight == 0
