"""An actor handles one message at a time, answers in time or not at all, and ends for a reason."""

import math

import anyio
import pytest

from agentflow.actors import (
    Actor,
    ActorGone,
    AskTimeout,
    ChildSpec,
    ExitKind,
    ExitReason,
    Restart,
    StartFailed,
    Supervisor,
    WouldBlock,
)
from agentflow.testing import EventRecorder, Fault, FaultyActor, InjectedCrash


class Adder(Actor[int, int]):
    """Adds up numbers; a negative one takes that many seconds."""

    def __init__(self, *, mailbox: int = 1024) -> None:
        super().__init__(mailbox=mailbox)
        self.total = 0
        self.busy = 0
        self.log: list[str] = []

    async def on_start(self) -> None:
        self.log.append("start")

    async def on_stop(self, reason: ExitReason) -> None:
        self.log.append(f"stop {reason.kind}")

    async def receive(self, message: int) -> int:
        self.busy += 1
        assert self.busy == 1
        await anyio.sleep(-message if message < 0 else 0)
        self.busy -= 1
        self.total += message
        return self.total


def spec(actor: Actor[int, int] | Actor[object, object], *, shutdown: float = 5.0) -> ChildSpec:
    return ChildSpec(id="actor", start=lambda: actor, restart=Restart.TEMPORARY, shutdown=shutdown)


@pytest.mark.promise("actors:actor:one-at-a-time")
async def test_messages_are_handled_one_at_a_time_in_order() -> None:
    adder = Adder()
    async with Supervisor([spec(adder)]):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(adder.tell, number)
        assert await adder.ask(0) == sum(range(20))


@pytest.mark.promise("actors:actor:ask")
async def test_the_answer_is_what_receive_returns() -> None:
    adder = Adder()
    async with Supervisor([spec(adder)]):
        assert await adder.ask(3) == 3
        assert await adder.ask(4, timeout=math.inf) == 7


@pytest.mark.promise("actors:actor:deadline")
async def test_an_ask_fails_at_its_deadline_and_the_actor_continues() -> None:
    adder = Adder()
    async with Supervisor([spec(adder)]):
        start = anyio.current_time()
        with pytest.raises(AskTimeout):
            await adder.ask(-10, timeout=2)
        assert anyio.current_time() - start == pytest.approx(2)
        assert await adder.ask(15, timeout=60) == 5


@pytest.mark.promise("actors:actor:deadline")
async def test_each_of_many_asks_has_its_own_deadline() -> None:
    adder = Adder()
    failed: dict[float, float] = {}

    async def ask(timeout: float) -> None:
        with pytest.raises(AskTimeout):
            await adder.ask(1, timeout=timeout)
        failed[timeout] = anyio.current_time() - start

    async with Supervisor([spec(adder, shutdown=100)]):
        await adder.tell(-50)
        start = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for timeout in (7.0, 2.0, 9.0, 3.0, 3.5):
                tasks.start_soon(ask, timeout)
        assert failed == {timeout: pytest.approx(timeout) for timeout in failed}
        assert list(failed) == [2, 3, 3.5, 7, 9]
        assert await adder.ask(0, timeout=100) == -50


@pytest.mark.promise("actors:actor:given-up")
async def test_a_cancelled_question_is_never_handled() -> None:
    adder = Adder()
    async with Supervisor([spec(adder)]):
        await adder.tell(-10)
        with pytest.raises(AskTimeout):
            await adder.ask(1000, timeout=1)
        with anyio.move_on_after(1):
            await adder.ask(2000, timeout=60)
        assert await adder.ask(0, timeout=60) == -10


@pytest.mark.promise("actors:actor:backpressure")
async def test_a_full_mailbox_makes_tell_wait_and_ask_miss_its_deadline() -> None:
    adder = Adder(mailbox=1)
    async with Supervisor([spec(adder, shutdown=100)]):
        await adder.tell(-10)
        await anyio.sleep(1)
        await adder.tell(-10)
        with pytest.raises(WouldBlock):
            adder.tell_nowait(1)
        with pytest.raises(AskTimeout, match="was full until the deadline"):
            await adder.ask(1, timeout=3)
        assert adder.statistics().buffered == 1
        start = anyio.current_time()
        assert await adder.ask(1, timeout=30) == -19
        assert anyio.current_time() - start == pytest.approx(16)


@pytest.mark.promise("actors:actor:backpressure")
async def test_the_time_spent_waiting_for_room_counts_for_the_deadline() -> None:
    adder = Adder(mailbox=1)
    async with Supervisor([spec(adder, shutdown=100)]):
        await adder.tell(-10)
        await anyio.sleep(1)
        await adder.tell(-10)
        start = anyio.current_time()
        with pytest.raises(AskTimeout, match="did not answer"):
            await adder.ask(1, timeout=12)
        assert anyio.current_time() - start == pytest.approx(12)


@pytest.mark.promise("actors:actor:crash")
async def test_a_crash_ends_the_actor_and_fails_every_question_with_the_reason() -> None:
    actor = FaultyActor()
    recorder = EventRecorder()
    reasons: list[ExitReason | None] = []

    async def ask(message: object) -> None:
        with pytest.raises(ActorGone) as failure:
            await actor.ask(message)
        reasons.append(failure.value.reason)

    async with Supervisor([spec(actor)], observer=recorder):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, Fault.CRASH)
            tasks.start_soon(ask, "behind it")
        with pytest.raises(ActorGone):
            await actor.tell("too late")
        with pytest.raises(ActorGone):
            actor.tell_nowait("too late")
        with pytest.raises(ActorGone):
            await actor.ask("too late")
    assert len(reasons) == 2
    assert all(reason is not None and isinstance(reason.error, InjectedCrash) for reason in reasons)
    assert recorder.ended() == [("actor", "crashed")]
    assert actor.reason is not None
    assert actor.reason.abnormal


@pytest.mark.promise("actors:actor:stop")
async def test_a_stopped_actor_handles_what_is_in_its_mailbox_first() -> None:
    adder = Adder()
    async with Supervisor([spec(adder)]):
        for number in range(10):
            await adder.tell(number)
    assert adder.total == 45
    assert adder.log == ["start", "stop shutdown"]
    with pytest.raises(ActorGone, match="shutdown"):
        await adder.tell(1)


@pytest.mark.promise("actors:actor:stop")
async def test_an_actor_that_stops_itself_ends_normally() -> None:
    actor = FaultyActor()
    recorder = EventRecorder()
    async with Supervisor([spec(actor)], observer=recorder):
        assert await actor.ask(Fault.END) is Fault.END
        await recorder.until_ended("actor")
    assert recorder.ended() == [("actor", "normal")]


@pytest.mark.promise("actors:actor:stop")
async def test_an_actor_that_takes_too_long_to_stop_is_cancelled_and_its_questions_fail() -> None:
    adder = Adder()

    async def ask() -> None:
        with pytest.raises(ActorGone, match="killed"):
            await adder.ask(1, timeout=math.inf)

    recorder = EventRecorder()
    async with anyio.create_task_group() as tasks:
        async with Supervisor([spec(adder, shutdown=3)], observer=recorder):
            await adder.tell(-100)
            tasks.start_soon(ask)
            await anyio.sleep(1)
            start = anyio.current_time()
        assert anyio.current_time() - start == pytest.approx(3)
    assert recorder.ended() == [("actor", "killed")]
    assert adder.log == ["start"]


@pytest.mark.promise("actors:actor:hooks")
async def test_on_stop_gets_the_crash_and_a_failing_on_start_is_a_failed_start() -> None:
    class Fragile(Adder):
        async def receive(self, message: int) -> int:
            raise ValueError("no")

    fragile = Fragile()
    recorder = EventRecorder()
    async with Supervisor([spec(fragile)], observer=recorder):
        with pytest.raises(ActorGone):
            await fragile.ask(1)
        await recorder.until_ended("actor")
    assert fragile.log == ["start", "stop crashed"]

    class Unready(Adder):
        async def on_start(self) -> None:
            raise ValueError("not today")

    unready = Unready()
    with pytest.raises(StartFailed, match="not today"):
        async with Supervisor([spec(unready)]):
            pytest.fail("it must not start")
    assert unready.reason is not None
    assert unready.reason.kind is ExitKind.CRASHED
    assert not unready.log


@pytest.mark.promise("actors:actor:before-start")
async def test_messages_sent_before_the_start_wait_in_the_mailbox() -> None:
    adder = Adder()
    await adder.tell(1)
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            assert await adder.ask(2, timeout=100) == 3

        tasks.start_soon(ask)
        await anyio.sleep(1)
        async with Supervisor([spec(adder)]):
            assert await adder.ask(0) == 3
