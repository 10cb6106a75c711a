"""A channel is bounded, in order, and loses nothing."""

import asyncio
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow.actors import Channel, ChannelClosed, ChannelEnded, Receiver, Sender, WouldBlock
from agentflow.errors import ConfigurationError
from agentflow.testing import VirtualTimeLoop


def open_channel(capacity: int = 2) -> tuple[Channel[int], Sender[int], Receiver[int]]:
    channel: Channel[int] = Channel(capacity)
    return channel, channel.sender(), channel.receiver()


async def settle() -> None:
    """Let every task reach the point at which it waits."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


@pytest.mark.promise("actors:channel:order")
async def test_messages_arrive_in_the_order_they_were_sent() -> None:
    _, sender, receiver = open_channel(8)
    for number in range(5):
        await sender.send(number)
    assert [await receiver.receive() for _ in range(5)] == [0, 1, 2, 3, 4]


@pytest.mark.promise("actors:channel:bounded")
async def test_a_full_channel_makes_its_sender_wait_until_there_is_room() -> None:
    channel, sender, receiver = open_channel(1)
    await sender.send(1)
    with pytest.raises(WouldBlock):
        sender.send_nowait(2)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sender.send, 2)
            await settle()
            assert channel.statistics().waiting_senders == 1
            assert channel.statistics().buffered == 1
            assert await receiver.receive() == 1
        assert await receiver.receive() == 2


@pytest.mark.promise("actors:channel:bounded")
def test_a_channel_without_room_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="capacity=0"):
        Channel[int](0)


@pytest.mark.promise("actors:channel:end")
async def test_receivers_get_the_buffered_messages_and_then_the_end() -> None:
    _, sender, receiver = open_channel()
    clone = sender.clone()
    await sender.send(1)
    sender.close()
    sender.close()
    await clone.send(2)
    clone.close()
    assert [message async for message in receiver] == [1, 2]
    with pytest.raises(ChannelEnded):
        await receiver.receive()
    with pytest.raises(ChannelEnded):
        receiver.receive_nowait()


@pytest.mark.promise("actors:channel:end")
async def test_waiting_receivers_see_the_end_when_the_last_sender_closes() -> None:
    _, sender, receiver = open_channel()
    ends: list[str] = []

    async def wait(end: Receiver[int]) -> None:
        with pytest.raises(ChannelEnded):
            await end.receive()
        ends.append("ended")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, receiver)
            tasks.start_soon(wait, receiver.clone())
            await settle()
            sender.close()
    assert ends == ["ended", "ended"]


@pytest.mark.promise("actors:channel:broken")
async def test_senders_fail_when_the_last_receiver_closes() -> None:
    channel, sender, receiver = open_channel(1)
    clone = receiver.clone()
    await sender.send(1)
    receiver.close()
    failures: list[str] = []

    async def send() -> None:
        with pytest.raises(ChannelClosed, match="no receiver"):
            await sender.send(2)
        failures.append("closed")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await settle()
            assert not failures
            clone.close()
    assert failures == ["closed"]
    assert channel.statistics().buffered == 0
    with pytest.raises(ChannelClosed, match="no receiver"):
        sender.send_nowait(3)
    with pytest.raises(ChannelClosed):
        channel.receiver()


@pytest.mark.promise("actors:channel:close")
async def test_closing_an_end_wakes_the_tasks_that_wait_at_it_and_no_others() -> None:
    channel, sender, receiver = open_channel(1)
    other = receiver.clone()
    woken: list[str] = []

    async def wait(end: Receiver[int], name: str) -> None:
        try:
            woken.append(f"{name} got {await end.receive()}")
        except ChannelClosed:
            woken.append(f"{name} closed")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, receiver, "first")
            tasks.start_soon(wait, other, "second")
            await settle()
            receiver.close()
            await settle()
            assert woken == ["first closed"]
            await sender.send(7)
    assert woken == ["first closed", "second got 7"]
    with pytest.raises(ChannelClosed):
        receiver.clone()
    with pytest.raises(ChannelClosed):
        receiver.receive_nowait()
    sender.close()
    with pytest.raises(ChannelClosed):
        sender.clone()
    with pytest.raises(ChannelClosed):
        await sender.send(1)
    with pytest.raises(ChannelClosed):
        channel.sender()


@pytest.mark.promise("actors:channel:close")
async def test_closing_a_sender_fails_the_tasks_that_wait_in_its_send() -> None:
    _, sender, receiver = open_channel(1)
    keeps_open = sender.clone()
    await sender.send(1)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:

            async def send() -> None:
                with pytest.raises(ChannelClosed, match="this sender"):
                    await sender.send(2)

            tasks.start_soon(send)
            await settle()
            sender.close()
    assert await receiver.receive() == 1
    await keeps_open.send(3)
    assert await receiver.receive() == 3


@pytest.mark.promise("actors:channel:close")
async def test_a_promise_to_an_end_that_closes_goes_to_the_next() -> None:
    _, sender, receiver = open_channel(1)
    other_receiver, other_sender = receiver.clone(), sender.clone()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        closed = tasks.create_task(outcome(receiver.receive()))
        await settle()
        patient = tasks.create_task(outcome(other_receiver.receive()))
        await settle()
        sender.send_nowait(5)
        receiver.close()
    assert (closed.result(), patient.result()) == ("this receiver is closed", 5)
    sender.send_nowait(6)
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        closing = tasks.create_task(outcome(sender.send(7)))
        await settle()
        staying = tasks.create_task(outcome(other_sender.send(8)))
        await settle()
        assert other_receiver.receive_nowait() == 6
        sender.close()
        assert await other_receiver.receive() == 8
    assert (closing.result(), staying.result()) == ("this sender is closed", None)


async def outcome(operation: Awaitable[int | None]) -> int | str | None:
    """Outcome of an operation on a channel."""
    try:
        return await operation
    except ChannelClosed as error:
        return str(error)


@pytest.mark.promise("actors:channel:cancel")
async def test_a_cancelled_send_has_not_sent_and_its_room_goes_to_the_next() -> None:
    channel, sender, receiver = open_channel(1)
    await sender.send(1)
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        cancelled = tasks.create_task(sender.send(2))
        await settle()
        tasks.create_task(sender.send(3))
        await settle()
        assert receiver.receive_nowait() == 1
        cancelled.cancel()
        assert await receiver.receive() == 3
    assert channel.statistics().buffered == 0


@pytest.mark.promise("actors:channel:cancel")
async def test_a_message_promised_to_a_cancelled_receiver_goes_to_the_next() -> None:
    _, sender, receiver = open_channel(1)
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        cancelled = tasks.create_task(receiver.receive())
        await settle()
        patient = tasks.create_task(receiver.receive())
        await settle()
        sender.send_nowait(5)
        cancelled.cancel()
        sender.close()
    assert patient.result() == 5


@pytest.mark.promise("actors:channel:cancel")
async def test_a_cancelled_receiver_waits_no_longer() -> None:
    channel, sender, receiver = open_channel(1)
    with anyio.move_on_after(0):
        await receiver.receive()
    assert channel.statistics().waiting_receivers == 0
    await sender.send(1)
    with anyio.move_on_after(0):
        await sender.send(2)
    assert channel.statistics().waiting_senders == 0
    assert await receiver.receive() == 1


@pytest.mark.promise("actors:channel:fair")
async def test_an_end_that_never_waits_still_lets_others_run() -> None:
    _, sender, receiver = open_channel(10_000)
    steps: list[str] = []

    async def other() -> None:
        for _ in range(3):
            steps.append("other")
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        for _ in range(2_000):
            await sender.send(1)
        assert steps.count("other") == 3
        tasks.start_soon(other)
        for _ in range(2_000):
            await receiver.receive()
        assert steps.count("other") == 6


@pytest.mark.promise("actors:channel:fair")
async def test_waiting_tasks_are_served_first() -> None:
    _, sender, receiver = open_channel(1)
    await sender.send(0)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in (1, 2, 3):
                tasks.start_soon(sender.send, number)
                await settle()
            assert receiver.receive_nowait() == 0
            with pytest.raises(WouldBlock):
                sender.send_nowait(9)
            assert [await receiver.receive() for _ in range(3)] == [1, 2, 3]


@pytest.mark.promise("actors:channel:statistics")
async def test_statistics_report_buffered_messages_and_waiting_tasks() -> None:
    channel, sender, receiver = open_channel(4)
    with receiver.clone(), sender.clone():
        await sender.send(1)
        assert channel.statistics() == (4, 1, 2, 2, 0, 0)
    assert channel.statistics() == (4, 1, 1, 1, 0, 0)


@dataclass
class Traffic:
    """Senders, receivers and cancelled receivers on one channel."""

    capacity: int
    counts: list[int]
    receivers: int
    pauses: list[int]
    cancelled: list[int]
    sent: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    heard: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    most: int = 0

    async def run(self) -> None:
        channel: Channel[tuple[int, int]] = Channel(self.capacity)
        async with anyio.create_task_group() as tasks:
            for which in range(self.receivers):
                tasks.start_soon(self.receive, which, channel.receiver())
            for turns in self.cancelled:
                tasks.start_soon(self.receive_for_a_while, turns, channel.receiver())
            for who in range(len(self.counts)):
                tasks.start_soon(self.send, who, channel, channel.sender())

    async def pause(self, seed: int) -> None:
        for _ in range(self.pauses[seed % len(self.pauses)]):
            await anyio.lowlevel.checkpoint()

    async def send(
        self, who: int, channel: Channel[tuple[int, int]], sender: Sender[tuple[int, int]]
    ) -> None:
        with sender:
            for number in range(self.counts[who]):
                await self.pause(who + number)
                await sender.send((who, number))
                self.sent.append((who, number))
                self.most = max(self.most, channel.statistics().buffered)

    async def receive(self, which: int, receiver: Receiver[tuple[int, int]]) -> None:
        async for message in receiver:
            self.heard.append(message)
            await self.pause(which + message[1])

    async def receive_for_a_while(self, turns: int, receiver: Receiver[tuple[int, int]]) -> None:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.receive(turns, receiver))
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            # Not by a scope: anyio never cancels a task that is about to be woken, which is what must be tried.
            task.cancel()
        receiver.close()


@pytest.mark.promise("actors:channel:nothing-lost")
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    traffic=st.builds(
        Traffic,
        capacity=st.integers(1, 5),
        counts=st.lists(st.integers(0, 20), min_size=1, max_size=4),
        receivers=st.integers(1, 4),
        pauses=st.lists(st.integers(0, 3), min_size=1, max_size=8),
        cancelled=st.lists(st.integers(0, 12), max_size=4),
        sent=st.builds(list[tuple[int, int]]),
        heard=st.builds(list[tuple[int, int]]),
        most=st.just(0),
    )
)
def test_nothing_is_lost_or_duplicated_and_each_senders_order_is_kept(traffic: Traffic) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(traffic.run())
    assert Counter(traffic.heard) == Counter(traffic.sent)
    assert len(traffic.sent) == sum(traffic.counts)
    assert max(Counter(traffic.heard).values(), default=1) == 1
    assert traffic.most <= traffic.capacity
    if traffic.receivers == 1 and not traffic.cancelled:
        for who, count in enumerate(traffic.counts):
            assert [number for sender, number in traffic.heard if sender == who] == list(range(count))
