"""Asynchronous rollouts: faster than synchronous ones, and never too old."""

import asyncio
from random import Random
from typing import Any, Literal

import anyio
import pytest

from agentflow.learner._group_rollout import GroupRollout
from agentflow.learner._groups import Batch
from agentflow.learner._sources import AsyncSource, SyncSource, TaskOrder
from agentflow.testing import VirtualTimeLoop
from agentflow.trace import Task, digest
from tests.agentflow.learner._training import FakePlayer, playing_of, some_tasks

TASKS, SIZE, STEPS = 8, 4, 12
STEP_SECONDS = 20.0


async def heavy_tail(task: Task, seed: str) -> None:
    """Most episodes take seconds, few take minutes."""
    del task
    await anyio.sleep(min(5 * Random(seed).paretovariate(1.2), 400))


class Told:
    """The weights that answer now, as an engine tells them."""

    version = 0


def a_player(told: Told) -> FakePlayer:
    return FakePlayer(before=heavy_tail, version=lambda: str(told.version))


async def streamed(bound: int, stale: Literal["drop", "wait"], **more: Any) -> tuple[list[Batch], float]:  # noqa: ANN401 - whatever a stream takes
    """Steps with a stream, and how long they took."""
    told = Told()
    playing = playing_of(a_player(told), at_once=TASKS * SIZE * 3, seconds=1000)
    stream = AsyncSource(
        playing, TaskOrder(some_tasks(50), seed=1), tasks=TASKS, size=SIZE, bound=bound, stale=stale, **more
    )
    batches: list[Batch] = []
    began = anyio.current_time()
    async with stream.running():
        for step in range(1, STEPS + 1):
            batch = await stream.collect(step, told.version)
            assert batch is not None
            batches.append(batch)
            await anyio.sleep(STEP_SECONDS)
            told.version += 1
    return batches, anyio.current_time() - began


async def in_turns(playing: GroupRollout) -> float:
    """The same number of steps with episodes in between."""
    rounds = SyncSource(playing, TaskOrder(some_tasks(50), seed=1), tasks=TASKS, size=SIZE, replace_equal=0)
    began = anyio.current_time()
    for step in range(1, STEPS + 1):
        await rounds.collect(step, step)
        await anyio.sleep(STEP_SECONDS)
    return anyio.current_time() - began


def virtually(work: Any) -> Any:  # noqa: ANN401 - whatever it gives
    """Have it where hours take no time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)


def oldest(batches: list[Batch]) -> int:
    """By how many versions the oldest call is behind the weights that learn from it."""
    return max(
        batch.version - int(call.version)
        for batch in batches
        for sample in batch.samples
        for call in sample.calls
    )


@pytest.mark.promise("training:stream:faster")
@pytest.mark.promise("training:stream:bound")
def test_asynchronous_rollouts_are_faster_and_never_exceed_the_bound() -> None:
    turns: float = virtually(in_turns(playing_of(a_player(Told()), at_once=TASKS * SIZE * 3, seconds=1000)))
    batches, seconds = virtually(streamed(4, "drop"))
    assert turns / seconds >= 1.8
    assert oldest(batches) <= 4
    assert all(len(batch.groups) <= TASKS for batch in batches)


@pytest.mark.promise("training:stream:bound")
@pytest.mark.parametrize("bound", [0, 1, 2])
def test_episodes_that_would_be_too_old_are_cancelled_and_counted(bound: int) -> None:
    batches, _ = virtually(streamed(bound, "drop"))
    assert oldest(batches) <= bound
    left_out = sum(batch.failures["stale"] + batch.dropped.get("stale", 0) for batch in batches)
    assert left_out > 0 if bound else left_out == 0
    numbers = [group.number for batch in batches for group in batch.groups]
    assert len(numbers) == len(set(numbers))


@pytest.mark.promise("training:stream:bound")
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_episodes_that_would_be_too_old_are_waited_for(bound: int) -> None:
    batches, _ = virtually(streamed(bound, "wait"))
    assert oldest(batches) <= bound
    assert [batch.dropped for batch in batches] == [{}] * STEPS
    assert not any(batch.failures for batch in batches)
    assert [len(batch.groups) for batch in batches] == [TASKS] * STEPS


@pytest.mark.promise("training:groups")
def test_asynchronous_rollouts_replace_groups_with_equal_rewards() -> None:
    batches, _ = virtually(streamed(2, "wait", replace_equal=0.5))
    assert 0 < sum(batch.dropped.get("equal", 0) for batch in batches) <= STEPS * TASKS


@pytest.mark.promise("training:groups")
@pytest.mark.parametrize("turns", range(12))
async def test_a_group_that_ends_while_it_is_cancelled_is_used_or_replaced_and_not_both(turns: int) -> None:
    places = {digest([7, number, place]): (number, place) for number in range(9) for place in range(2)}
    younger_plays = anyio.Event()

    async def before(task: Task, seed: str) -> None:
        del task
        number, _ = places[seed]
        if number == 1:
            await younger_plays.wait()
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
        elif number == 2:
            younger_plays.set()

    def answer(task: Task, seed: str) -> str:
        """The second group is all wrong, so it may be replaced."""
        del task
        number, place = places[seed]
        return "yes" if number != 1 and place else "no"

    player = FakePlayer(before=before, answer=answer)
    order = TaskOrder(some_tasks(50), seed=1)
    stream = AsyncSource(playing_of(player), order, tasks=1, size=2, bound=1, replace_equal=1.0)
    async with stream.running():
        batches = [await stream.collect(step, step - 1) for step in (1, 2, 3)]
    used = [group.number for batch in batches if batch for group in batch.groups]
    left_out = sum(sum(batch.dropped.values()) for batch in batches if batch)
    assert len(set(used)) == 3
    assert (1 in used) != (left_out > 0)


@pytest.mark.promise("training:stream:resume")
async def test_unfinished_draws_are_run_again_first() -> None:
    stream = AsyncSource(
        playing_of(FakePlayer()), TaskOrder(some_tasks(50), seed=1), tasks=4, size=2, bound=1
    )
    async with stream.running():
        first = await stream.collect(1, 0)
    assert first is not None
    assert (first.taken, first.pending) == (8, (4, 5, 6, 7))
    again = AsyncSource(playing_of(FakePlayer()), TaskOrder(some_tasks(50), seed=1), tasks=4, size=2, bound=1)
    again.resume(8, (5, 2))
    async with again.running():
        batch = await again.collect(2, 0)
    assert batch is not None
    assert [group.number for group in batch.groups] == [2, 5, 8, 9]


@pytest.mark.promise("training:stream:resume")
async def test_an_asynchronous_source_ends_with_its_tasks() -> None:
    order = TaskOrder(some_tasks(5), seed=1, epochs=1)
    stream = AsyncSource(playing_of(FakePlayer()), order, tasks=4, size=2, bound=1)
    sizes: list[int] = []
    async with stream.running():
        while batch := await stream.collect(len(sizes) + 1, 0):
            sizes.append(len(batch.groups))
    assert sizes == [4, 1]
