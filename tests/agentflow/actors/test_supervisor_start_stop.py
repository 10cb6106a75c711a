"""OTP's supervisor suite, the part on starting and stopping. Each test names the cases that it stands for."""

import math
from functools import partial

import anyio
import pytest

from agentflow.actors import (
    AutoShutdown,
    ChildActive,
    ChildExists,
    ChildSpec,
    Context,
    DynamicSupervisor,
    FunctionChild,
    Restart,
    RestartPlanned,
    StartFailed,
    StartTimeout,
    Strategy,
    Supervisor,
    SupervisorEvent,
    SupervisorGone,
    UnknownChild,
)
from agentflow.errors import ConfigurationError
from agentflow.testing import FaultyActor, FaultyChild, VirtualClock
from tests.agentflow.actors.family import Family, InjectedCrash, Start, ids, states


@pytest.mark.promise("actors:supervisor:start-order")
async def test_children_start_in_order_each_once_the_one_before_is_ready() -> None:
    """sup_start_normal, order_of_children"""
    order: list[str] = []

    class Slow:
        def __init__(self, name: str) -> None:
            self.name = name

        async def run(self, context: Context) -> None:
            order.append(f"{self.name} begins")
            await anyio.sleep(3)
            order.append(f"{self.name} is ready")
            context.ready()
            await anyio.sleep_forever()

    specs = [ChildSpec(id=name, start=partial(Slow, name)) for name in "ab"]
    async with Supervisor(specs) as supervisor:
        assert order == ["a begins", "a is ready", "b begins", "b is ready"]
        assert ids(supervisor) == ["a", "b"]


@pytest.mark.promise("actors:supervisor:stop-order")
async def test_children_stop_in_reverse_order() -> None:
    """sup_start_normal, order_of_children"""
    family = Family()
    async with family.supervisor(*(family.spec(name) for name in "abc")):
        pass
    assert family.events.story() == ["+a", "+b", "+c", "-c shutdown", "-b shutdown", "-a shutdown"]


@pytest.mark.promise("actors:supervisor:ignore")
async def test_a_child_that_asks_to_be_ignored_is_kept_stopped_and_can_be_started_later() -> None:
    """sup_start_ignore_init, sup_start_ignore_child"""
    family = Family()
    specs = family.spec("a", starts=(Start.IGNORE,)), family.spec("b")
    async with family.supervisor(*specs) as supervisor:
        assert states(supervisor) == {"a": "stopped", "b": "running"}
        assert await supervisor.start_child(family.spec("c", starts=(Start.IGNORE,))) is None
        assert states(supervisor) == {"a": "stopped", "b": "running", "c": "stopped"}
        assert await supervisor.restart_child("a") is not None
        assert states(supervisor)["a"] == "running"


@pytest.mark.promise("actors:supervisor:ignore")
async def test_a_temporary_child_that_asks_to_be_ignored_is_forgotten() -> None:
    """sup_start_ignore_temporary_child, sup_start_ignore_temporary_child_start_child"""
    family = Family()
    first = family.spec("a", Restart.TEMPORARY, starts=(Start.IGNORE,))
    async with family.supervisor(first, family.spec("b")) as supervisor:
        assert ids(supervisor) == ["b"]
        assert (
            await supervisor.start_child(family.spec("c", Restart.TEMPORARY, starts=(Start.IGNORE,))) is None
        )
        assert ids(supervisor) == ["b"]


@pytest.mark.promise("actors:dynamic:ignore")
async def test_a_dynamic_child_that_asks_to_be_ignored_is_forgotten() -> None:
    """sup_start_ignore_temporary_child_start_child_simple"""
    faulty = FaultyChild(starts=(Start.IGNORE,))
    async with DynamicSupervisor(ChildSpec(id="d", start=faulty.make)) as supervisor:
        assert (await supervisor.start_child())[1] is None
        assert supervisor.which_children() == []


@pytest.mark.promise("actors:supervisor:start-failure")
async def test_a_failed_start_stops_the_started_children_and_names_the_child() -> None:
    """sup_start_error_return, sup_start_fail"""
    family = Family()
    specs = family.spec("a"), family.spec("b", starts=(Start.FAIL,)), family.spec("c")
    with pytest.raises(StartFailed, match="b did not start") as failure:
        async with family.supervisor(*specs):
            pytest.fail("it must not start")
    assert failure.value.child == "b"
    assert family.events.story() == ["+a", "-b crashed", "! crashed", "-a shutdown"]
    assert family.children["c"].attempts == 0


@pytest.mark.promise("actors:supervisor:start-failure")
async def test_an_error_in_the_factory_of_a_child_is_a_failed_start() -> None:
    """sup_start_fail"""

    def make() -> FunctionChild:
        raise InjectedCrash("not even made")

    with pytest.raises(StartFailed, match="not even made"):
        async with Supervisor([ChildSpec(id="a", start=make)]):
            pytest.fail("it must not start")


@pytest.mark.promise("actors:supervisor:start-failure")
async def test_a_child_whose_later_start_fails_is_not_kept_but_a_restarted_one_is() -> None:
    """sup_start_child_returns_error, sup_start_child_returns_error_restart"""
    family = Family()
    async with family.supervisor(family.spec("a", starts=(Start.OK, Start.FAIL))) as supervisor:
        with pytest.raises(StartFailed):
            await supervisor.start_child(family.spec("b", starts=(Start.FAIL,)))
        assert ids(supervisor) == ["a"]
        await supervisor.terminate_child("a")
        with pytest.raises(StartFailed):
            await supervisor.restart_child("a")
        assert states(supervisor) == {"a": "stopped"}
        await supervisor.restart_child("a")
        assert states(supervisor) == {"a": "running"}


@pytest.mark.promise("actors:dynamic:start-failure")
async def test_a_dynamic_child_whose_start_fails_is_not_kept() -> None:
    """sup_start_child_returns_error_simple"""
    faulty = FaultyChild(starts=(Start.FAIL,))
    async with DynamicSupervisor(ChildSpec(id="d", start=faulty.make)) as supervisor:
        with pytest.raises(StartFailed):
            await supervisor.start_child()
        assert supervisor.count_children() == (1, 0, 0, 0)


@pytest.mark.promise("actors:supervisor:start-timeout")
async def test_a_child_that_is_not_ready_in_time_is_stopped() -> None:
    family = Family()
    start = anyio.current_time()
    with pytest.raises(StartTimeout):
        async with family.supervisor(family.spec("a", starts=(Start.HANG,), start_timeout=7)):
            pytest.fail("it must not start")
    assert anyio.current_time() - start == pytest.approx(7)
    assert family.events.ended() == [("a", "killed")]


@pytest.mark.promise("actors:supervisor:start-timeout")
async def test_a_supervisor_can_be_stopped_while_a_child_starts() -> None:
    family = Family()
    with anyio.move_on_after(5) as scope:
        async with family.supervisor(
            family.spec("a"), family.spec("b", starts=(Start.HANG,), start_timeout=99)
        ):
            pytest.fail("it must not start")
    assert scope.cancelled_caught
    assert family.events.ended() == [("b", "shutdown"), ("a", "shutdown")]


@pytest.mark.promise("actors:spec:defaults")
def test_the_defaults_of_a_spec_are_those_of_otp() -> None:
    """sup_start_map"""
    worker = ChildSpec(id="a", start=FaultyActor)
    assert (worker.restart, worker.significant, worker.kind, worker.grace) == (
        "permanent",
        False,
        "worker",
        5.0,
    )
    assert ChildSpec(id="a", start=FaultyActor, kind="supervisor").grace == math.inf


@pytest.mark.promise("actors:spec:faulty")
def test_invalid_specs_are_refused_in_one_line_with_the_remedy() -> None:
    """sup_start_map_faulty_specs"""
    with pytest.raises(ConfigurationError, match="name"):
        ChildSpec(id="", start=FaultyActor)
    with pytest.raises(ConfigurationError, match="transient or temporary"):
        ChildSpec(id="a", start=FaultyActor, significant=True)
    with pytest.raises(ConfigurationError, match="leave shutdown out"):
        ChildSpec(id="a", start=FaultyActor, kind="supervisor", shutdown=5)
    with pytest.raises(ConfigurationError, match="negative"):
        ChildSpec(id="a", start=FaultyActor, shutdown=-1)
    good = ChildSpec(id="a", start=FaultyActor)
    with pytest.raises(ConfigurationError, match="rename"):
        Supervisor([good, good])
    with pytest.raises(ConfigurationError, match="auto_shutdown"):
        Supervisor([ChildSpec(id="a", start=FaultyActor, restart=Restart.TEMPORARY, significant=True)])
    with pytest.raises(ConfigurationError, match="intensity"):
        Supervisor([], intensity=-1)
    with pytest.raises(ConfigurationError, match="period"):
        DynamicSupervisor(good, period=0)


@pytest.mark.promise("actors:supervisor:stop-deadline")
async def test_a_child_has_the_time_of_its_spec_to_end() -> None:
    """sup_stop_infinity"""

    class Slow:
        async def run(self, context: Context) -> None:
            asked = anyio.Event()
            context.on_stop(asked.set)
            context.ready()
            await asked.wait()
            await anyio.sleep(10_000)

    family = Family()
    async with family.supervisor(ChildSpec(id="slow", start=Slow, shutdown=math.inf)):
        start = anyio.current_time()
    assert anyio.current_time() - start == pytest.approx(10_000)
    assert family.events.ended() == [("slow", "shutdown")]


@pytest.mark.promise("actors:supervisor:stop-deadline")
async def test_a_child_that_takes_too_long_is_killed_and_its_sibling_is_not() -> None:
    """sup_stop_timeout"""
    family = Family()
    async with family.supervisor(family.spec("good"), family.spec("bad", stubborn=True, shutdown=4)):
        start = anyio.current_time()
    assert anyio.current_time() - start == pytest.approx(4)
    assert family.events.ended() == [("bad", "killed"), ("good", "shutdown")]


@pytest.mark.promise("actors:supervisor:brutal-kill")
async def test_a_child_without_grace_is_killed_at_once() -> None:
    """sup_stop_brutal_kill"""
    family = Family()
    async with family.supervisor(family.spec("a", shutdown=0), family.spec("b")):
        pass
    assert family.events.ended() == [("b", "shutdown"), ("a", "killed")]


@pytest.mark.promise("actors:supervisor:polite-cancel")
async def test_a_plain_function_is_cancelled_and_may_clean_up() -> None:
    log: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(2)
            log.append("cleaned up")

    family = Family()
    async with family.supervisor(ChildSpec(id="work", start=lambda: FunctionChild(work))):
        await anyio.sleep(1)
    assert log == ["cleaned up"]
    assert family.events.ended() == [("work", "shutdown")]


@pytest.mark.promise("actors:supervisor:polite-cancel")
async def test_a_child_whose_stop_callback_fails_is_cancelled() -> None:
    class Rude:
        async def run(self, context: Context) -> None:
            context.on_stop(self.fail)
            context.ready()
            await anyio.sleep_forever()

        def fail(self) -> None:
            raise InjectedCrash("asked")

    family = Family()
    async with family.supervisor(ChildSpec(id="rude", start=Rude)):
        start = anyio.current_time()
    assert anyio.current_time() == start
    assert family.events.ended() == [("rude", "shutdown")]


@pytest.mark.promise("actors:supervisor:broken")
async def test_a_supervisor_with_an_internal_error_stops_its_children_and_raises() -> None:
    family = Family()

    def observe(event: SupervisorEvent) -> None:
        family.events(event)
        if isinstance(event, RestartPlanned):
            raise InjectedCrash("in the observer")

    with pytest.raises(ExceptionGroup) as failure:
        async with Supervisor([family.spec("a"), family.spec("b")], observer=observe):
            await family.end("b")
            await anyio.sleep_forever()
    assert failure.group_contains(InjectedCrash)
    assert family.events.ended() == [("b", "crashed"), ("a", "shutdown")]


@pytest.mark.promise("actors:supervisor:requests")
async def test_children_can_be_terminated_restarted_and_deleted() -> None:
    family = Family()
    async with family.supervisor(family.spec("a"), family.spec("t", Restart.TEMPORARY)) as supervisor:
        with pytest.raises(ChildExists):
            await supervisor.start_child(family.spec("a"))
        with pytest.raises(ChildActive):
            await supervisor.restart_child("a")
        with pytest.raises(ChildActive):
            await supervisor.delete_child("a")
        await supervisor.terminate_child("a")
        await supervisor.terminate_child("a")
        assert states(supervisor) == {"a": "stopped", "t": "running"}
        with pytest.raises(UnknownChild, match="stopped"):
            supervisor.child("a", FaultyActor)
        await supervisor.delete_child("a")
        for request in (supervisor.terminate_child, supervisor.restart_child, supervisor.delete_child):
            with pytest.raises(UnknownChild, match="'a'"):
                await request("a")
        await supervisor.terminate_child("t")
        assert ids(supervisor) == []
    with pytest.raises(SupervisorGone):
        await supervisor.start_child(family.spec("x"))


@pytest.mark.promise("actors:supervisor:requests")
async def test_a_request_pending_at_the_end_fails() -> None:
    family = Family()
    failures: list[str] = []
    supervisor = family.supervisor()

    async def start() -> None:
        with pytest.raises(SupervisorGone):
            await supervisor.start_child(family.spec("a", starts=(Start.HANG,)))
        failures.append("gone")

    async with anyio.create_task_group() as tasks, supervisor:
        tasks.start_soon(start)
        tasks.start_soon(start)
        await anyio.sleep(1)
    assert failures == ["gone", "gone"]


@pytest.mark.promise("actors:supervisor:requests")
async def test_a_request_whose_caller_gave_up_is_not_started() -> None:
    family = Family()
    async with family.supervisor() as supervisor, anyio.create_task_group() as tasks:

        async def keep_busy() -> None:
            with pytest.raises(StartTimeout):
                await supervisor.start_child(family.spec("slow", starts=(Start.HANG,), start_timeout=10))

        tasks.start_soon(keep_busy)
        await anyio.sleep(1)
        with anyio.move_on_after(1):
            await supervisor.start_child(family.spec("late"))
        with pytest.raises(StartFailed):
            await supervisor.start_child(family.spec("probe", starts=(Start.FAIL,)))
        assert family.children["late"].attempts == 0


@pytest.mark.promise("actors:supervisor:count")
async def test_children_are_counted_by_kind_and_state() -> None:
    """count_children, count_children_supervisor"""
    family = Family()
    nested = ChildSpec(id="nested", start=Supervisor, kind="supervisor")
    async with family.supervisor(family.spec("a"), nested, family.spec("b")) as supervisor:
        assert supervisor.count_children() == (3, 3, 1, 2)
        await supervisor.terminate_child("nested")
        await supervisor.terminate_child("a")
        assert supervisor.count_children() == (3, 1, 1, 2)
        assert supervisor.spec("nested").kind == "supervisor"


@pytest.mark.promise("actors:supervisor:outer-cancel")
async def test_cancelling_the_owner_of_a_supervisor_still_stops_its_children_in_order() -> None:
    family = Family()
    with anyio.move_on_after(3) as scope:
        async with family.supervisor(family.spec("a"), family.spec("b", stubborn=True, shutdown=2)):
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert family.events.ended() == [("b", "killed"), ("a", "shutdown")]


@pytest.mark.promise("actors:supervisor:body-error")
async def test_an_exception_in_the_body_is_raised_unchanged_after_the_children_stopped() -> None:
    family = Family()
    with pytest.raises(ZeroDivisionError):
        async with family.supervisor(family.spec("a")):
            raise ZeroDivisionError
    assert family.events.ended() == [("a", "shutdown")]


@pytest.mark.promise("actors:supervisor:own-clock")
async def test_deadlines_follow_the_injected_clock() -> None:
    family = Family()
    clock = VirtualClock()
    async with anyio.create_task_group() as tasks:

        async def hold() -> None:
            async with family.supervisor(family.spec("a", stubborn=True, shutdown=60), clock=clock):
                pass

        tasks.start_soon(hold)
        await anyio.sleep(80_000)
        assert family.events.ended() == []
        clock.advance(60)
    assert family.events.ended() == [("a", "killed")]


@pytest.mark.promise("actors:supervisor:tree")
async def test_a_tree_stops_from_its_leaves_in_reverse_order() -> None:
    """tree, child_unlink"""
    family = Family()

    def branch(name: str) -> ChildSpec:
        leaves = [family.spec(f"{name}{number}") for number in (1, 2)]
        return ChildSpec(id=name, start=lambda: family.supervisor(*leaves, name=name), kind="supervisor")

    async with family.supervisor(branch("x"), branch("y"), strategy=Strategy.ONE_FOR_ALL) as supervisor:
        inner = supervisor.child("x", Supervisor)
        assert ids(inner) == ["x1", "x2"]
        assert family.events.started() == ["x1", "x2", "x", "y1", "y2", "y"]
        family.events.clear()
    assert [child for child, _ in family.events.ended()] == ["y2", "y1", "y", "x2", "x1", "x"]
    assert {kind for _, kind in family.events.ended()} == {"shutdown"}


@pytest.mark.promise("actors:supervisor:wait")
async def test_wait_returns_the_exit_reason_of_a_supervisor() -> None:
    family = Family()
    reasons: list[str] = []
    supervisor = family.supervisor(
        family.spec("a", Restart.TEMPORARY, significant=True), auto_shutdown=AutoShutdown.ANY_SIGNIFICANT
    )
    async with supervisor:
        await family.end("a")
        reasons.append(str((await supervisor.wait()).kind))
    async with Supervisor() as other:
        pass
    reasons.append(str((await other.wait()).kind))
    assert reasons == ["shutdown", "shutdown"]
