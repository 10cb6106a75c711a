"""OTP's supervisor suite, the part on restarting. Each test names the cases that it stands for."""

import anyio
import pytest

from agentflow.actors import (
    AutoShutdown,
    Backoff,
    ChildActive,
    ChildSpec,
    Restart,
    RestartLimitReached,
    RestartPlanned,
    Strategy,
    Supervisor,
    SupervisorEnding,
)
from tests.agentflow.actors.family import FAULTS, Family, Start, ids, states

ALL = list(Strategy)


@pytest.mark.promise("actors:restart:type")
@pytest.mark.parametrize("restart", Restart)
@pytest.mark.parametrize("how", FAULTS)
async def test_a_restart_depends_on_the_type_and_the_exit_reason_of_a_child(
    restart: Restart, how: str
) -> None:
    """{permanent,transient,temporary}_{normal,shutdown,abnormal}"""
    family = Family()
    restarted = restart is Restart.PERMANENT or (restart is Restart.TRANSIENT and how == "abnormal")
    async with family.supervisor(family.spec("a", restart), family.spec("b")) as supervisor:
        await family.end("a", FAULTS[how])
        await anyio.sleep(1)
        assert family.children["a"].attempts == (2 if restarted else 1)
        assert family.children["b"].attempts == 1
        after = "running" if restarted else "stopped"
        expected = {"b": "running"} if restart is Restart.TEMPORARY else {"a": after, "b": "running"}
        assert states(supervisor) == expected


@pytest.mark.promise("actors:restart:bystander")
@pytest.mark.parametrize("strategy", [Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE])
async def test_a_temporary_child_stopped_by_a_siblings_restart_is_forgotten(strategy: Strategy) -> None:
    """temporary_bystander"""
    family = Family()
    specs = family.spec("a"), family.spec("t", Restart.TEMPORARY), family.spec("c", Restart.TRANSIENT)
    async with family.supervisor(*specs, strategy=strategy) as supervisor:
        await family.restart("a")
        await anyio.sleep(1)
        assert states(supervisor) == {"a": "running", "c": "running"}
        assert family.children["t"].attempts == 1
        assert family.events.story()[3:] == ["-a crashed", "-c shutdown", "-t shutdown", "~a c", "+a", "+c"]


@pytest.mark.promise("actors:restart:strategy")
async def test_one_for_one_restarts_that_child_only() -> None:
    """one_for_one"""
    family = Family()
    async with family.supervisor(*(family.spec(name) for name in "abc")) as supervisor:
        await family.restart("b")
        assert family.events.story()[3:] == ["-b crashed", "~b", "+b"]
        assert ids(supervisor) == ["a", "b", "c"]


@pytest.mark.promise("actors:restart:strategy")
async def test_one_for_all_stops_the_others_in_reverse_order_and_starts_all() -> None:
    """one_for_all"""
    family = Family()
    async with family.supervisor(*(family.spec(name) for name in "abc"), strategy=Strategy.ONE_FOR_ALL):
        await family.restart("b")
        await anyio.sleep(1)
        story = family.events.story()[3:]
        assert story == ["-b crashed", "-c shutdown", "-a shutdown", "~a b c", "+a", "+b", "+c"]


@pytest.mark.promise("actors:restart:strategy")
async def test_rest_for_one_restarts_that_child_and_those_after_it() -> None:
    """rest_for_one"""
    family = Family()
    async with family.supervisor(*(family.spec(name) for name in "abcd"), strategy=Strategy.REST_FOR_ONE):
        await family.restart("b")
        await anyio.sleep(1)
        story = family.events.story()[4:]
        assert story == ["-b crashed", "-d shutdown", "-c shutdown", "~b c d", "+b", "+c", "+d"]


@pytest.mark.promise("actors:restart:strategy")
async def test_one_for_all_starts_a_stopped_sibling_too() -> None:
    family = Family()
    async with family.supervisor(
        family.spec("a"), family.spec("b"), strategy=Strategy.ONE_FOR_ALL
    ) as supervisor:
        await supervisor.terminate_child("a")
        await family.restart("b")
        await anyio.sleep(1)
        assert states(supervisor) == {"a": "running", "b": "running"}


@pytest.mark.promise("actors:restart:intensity")
@pytest.mark.parametrize("strategy", ALL)
async def test_one_restart_too_many_within_the_period_ends_everything(strategy: Strategy) -> None:
    """one_for_one_escalation, one_for_all_escalation, rest_for_one_escalation"""
    family = Family()
    with pytest.raises(
        RestartLimitReached, match=r"more than 2 restarts in 10 s; the last was of b: crashed"
    ):
        async with family.supervisor(
            family.spec("a"), family.spec("b"), strategy=strategy, intensity=2, period=10, name="top"
        ):
            await family.restart("b")
            await family.restart("b")
            await family.end("b")
            await anyio.sleep_forever()
    assert [event.reason.kind for event in family.events.of(SupervisorEnding)] == ["shutdown"]
    assert family.events.story()[-3:] == ["-b crashed", "! shutdown", "-a shutdown"]


@pytest.mark.promise("actors:restart:period")
@pytest.mark.parametrize("strategy", ALL)
async def test_restarts_before_the_period_do_not_count(strategy: Strategy) -> None:
    """multiple_restarts"""
    family = Family()
    async with family.supervisor(family.spec("a"), strategy=strategy, intensity=1, period=5):
        for _ in range(20):
            await family.restart("a")
            await anyio.sleep(5.1)
    assert family.children["a"].attempts == 21


@pytest.mark.promise("actors:restart:intensity")
async def test_with_intensity_0_nothing_is_restarted() -> None:
    family = Family()
    with pytest.raises(RestartLimitReached):
        async with family.supervisor(family.spec("a"), intensity=0):
            await family.end("a")
            await anyio.sleep_forever()
    assert family.children["a"].attempts == 1


@pytest.mark.promise("actors:restart:failing-start")
@pytest.mark.parametrize("strategy", ALL)
async def test_a_failed_restart_is_retried_and_counts_again(strategy: Strategy) -> None:
    """*_other_child_fails_restart, hanging_restart_loop"""
    family = Family()
    flaky = family.spec("b", starts=(Start.OK, Start.FAIL, Start.FAIL, Start.OK))
    async with family.supervisor(
        family.spec("a"), flaky, family.spec("c"), strategy=strategy, intensity=3, period=100
    ) as supervisor:
        await family.restart("b")
        await anyio.sleep(1)
        assert states(supervisor) == dict.fromkeys("abc", "running")
    assert len(family.events.of(RestartPlanned)) == 3

    again = Family()
    with pytest.raises(RestartLimitReached):
        async with again.supervisor(
            again.spec("a"),
            again.spec("b", starts=(Start.OK, *[Start.FAIL] * 9)),
            strategy=strategy,
            intensity=3,
        ):
            again.children["b"].end()
            await anyio.sleep_forever()
    assert again.children["b"].attempts == 4


@pytest.mark.promise("actors:restart:failing-start")
@pytest.mark.parametrize("strategy", [Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE])
async def test_a_sibling_that_fails_during_a_restart_is_retried(
    strategy: Strategy,
) -> None:
    """one_for_all_other_child_fails_restart, rest_for_one_other_child_fails_restart"""
    family = Family()
    fragile = family.spec("c", starts=(Start.OK, Start.FAIL, Start.OK))
    async with family.supervisor(
        family.spec("a"), family.spec("b"), fragile, family.spec("d"), strategy=strategy, intensity=5
    ) as supervisor:
        await family.restart("b")
        await anyio.sleep(1)
        assert states(supervisor) == dict.fromkeys("abcd", "running")
        starts = {name: child.attempts for name, child in family.children.items()}
        if strategy is Strategy.REST_FOR_ONE:
            assert starts == {"a": 1, "b": 2, "c": 3, "d": 2}
        else:
            assert starts == {"a": 3, "b": 3, "c": 3, "d": 2}


@pytest.mark.promise("actors:restart:state")
@pytest.mark.parametrize("strategy", ALL)
async def test_a_child_that_waits_for_its_restart_is_counted_as_restarting(strategy: Strategy) -> None:
    """count_restarting_children"""
    family = Family()
    async with family.supervisor(
        family.spec("a"), strategy=strategy, intensity=9, backoff=Backoff(initial=10)
    ) as supervisor:
        await family.end("a")
        await anyio.sleep(1)
        assert states(supervisor) == {"a": "restarting"}
        assert supervisor.count_children() == (1, 0, 0, 1)
        with pytest.raises(ChildActive, match="restarting"):
            await supervisor.restart_child("a")
        with pytest.raises(ChildActive, match="restarting"):
            await supervisor.delete_child("a")
        await anyio.sleep(10)
        assert states(supervisor) == {"a": "running"}


@pytest.mark.promise("actors:restart:loop")
@pytest.mark.parametrize("strategy", ALL)
async def test_a_restart_loop_blocks_neither_requests_nor_the_end(strategy: Strategy) -> None:
    """hanging_restart_loop, hanging_restart_loop_rest_for_one"""
    family = Family()
    hopeless = family.spec("b", starts=(Start.OK, *[Start.FAIL] * 100_000))
    async with family.supervisor(
        family.spec("a"), hopeless, family.spec("c"), strategy=strategy, intensity=1_000_000, period=1
    ) as supervisor:
        family.children["b"].end()
        await family.events.until_ended("b", 20)
        await supervisor.terminate_child("b")
        attempts = family.children["b"].attempts
        await anyio.sleep(100)
        assert family.children["b"].attempts == attempts
        assert states(supervisor) == {"a": "running", "b": "stopped", "c": "running"}

    endless = Family()
    async with endless.supervisor(
        endless.spec("b", starts=(Start.OK, *[Start.FAIL] * 100_000)), strategy=strategy, intensity=1_000_000
    ):
        endless.children["b"].end()
        await endless.events.until_ended("b", 20)


@pytest.mark.promise("actors:restart:backoff")
async def test_pauses_before_restarts_grow_up_to_a_limit_and_reset_after_a_stable_time() -> None:
    family = Family()
    async with family.supervisor(
        family.spec("a"), intensity=100, period=50, backoff=Backoff(initial=1, factor=3, maximum=8)
    ):
        for _ in range(4):
            await family.restart("a")
        await anyio.sleep(50)
        await family.restart("a")
    assert [event.delay for event in family.events.of(RestartPlanned)] == [1, 3, 8, 8, 1]


@pytest.mark.promise("actors:restart:backoff")
def test_a_pause_never_overflows() -> None:
    assert Backoff(initial=1, factor=10, maximum=60).delay(10**9) == 60


@pytest.mark.promise("actors:restart:backoff")
async def test_a_planned_restart_continues_without_a_child_terminated_meanwhile() -> None:
    family = Family()
    async with family.supervisor(
        family.spec("a"),
        family.spec("b"),
        strategy=Strategy.ONE_FOR_ALL,
        intensity=9,
        backoff=Backoff(initial=10),
    ) as supervisor:
        await family.end("a")
        await anyio.sleep(1)
        assert states(supervisor) == {"a": "restarting", "b": "restarting"}
        await supervisor.terminate_child("a")
        await anyio.sleep(10)
        assert states(supervisor) == {"a": "stopped", "b": "running"}


@pytest.mark.promise("actors:restart:backoff")
async def test_a_supervisor_can_end_while_a_restart_is_planned() -> None:
    family = Family()
    async with family.supervisor(family.spec("a"), intensity=9, backoff=Backoff(initial=10)):
        await family.end("a")
        await anyio.sleep(1)
    await anyio.sleep(100)
    assert family.children["a"].attempts == 1


@pytest.mark.promise("actors:restart:escalation")
async def test_a_supervisor_that_gives_up_is_restarted_by_its_own_supervisor() -> None:
    """tree: levels multiply"""
    family = Family()
    leaf = family.spec("leaf")
    branch = ChildSpec(
        id="branch", start=lambda: family.supervisor(leaf, intensity=1, name="branch"), kind="supervisor"
    )
    with pytest.raises(RestartLimitReached, match="top: more than 1"):
        async with family.supervisor(branch, intensity=1, name="top"):
            for _ in range(4):
                await family.end("leaf")
                await anyio.sleep(0.1)
            await anyio.sleep_forever()
    # (1 restart + 1) x (1 restart + 1)
    assert family.children["leaf"].attempts == 4


@pytest.mark.promise("actors:restart:escalation")
async def test_a_transient_supervisor_that_gives_up_is_not_restarted() -> None:
    """faulty_application_shutdown"""
    family = Family()
    leaf = family.spec("leaf")
    branch = ChildSpec(
        id="branch",
        start=lambda: family.supervisor(leaf, intensity=0, name="branch"),
        kind="supervisor",
        restart=Restart.TRANSIENT,
    )
    async with family.supervisor(branch) as supervisor:
        await family.end("leaf")
        await family.events.until_ended("branch")
        await anyio.sleep(1)
        assert states(supervisor) == {"branch": "stopped"}


@pytest.mark.promise("actors:restart:fresh")
async def test_children_added_later_are_lost_when_the_supervisor_restarts() -> None:
    family = Family()
    leaf = family.spec("leaf")
    branch = ChildSpec(
        id="branch", start=lambda: family.supervisor(leaf, intensity=0, name="branch"), kind="supervisor"
    )
    async with family.supervisor(branch) as supervisor:
        await supervisor.child("branch", Supervisor).start_child(family.spec("later"))
        await family.end("leaf")
        await family.events.until_started("branch", 2)
        assert ids(supervisor.child("branch", Supervisor)) == ["leaf"]


@pytest.mark.promise("actors:restart:temporary-forgotten")
async def test_a_temporary_child_that_ended_leaves_nothing_behind() -> None:
    """do_not_save_child_specs_for_temporary_children"""
    family = Family()
    async with family.supervisor() as supervisor:
        for _ in range(3):
            await supervisor.start_child(family.spec("t", Restart.TEMPORARY))
            await family.end("t")
            await anyio.sleep(1)
            assert ids(supervisor) == []


@pytest.mark.promise("actors:auto-shutdown")
@pytest.mark.parametrize("how", FAULTS)
@pytest.mark.parametrize("restart", [Restart.TRANSIENT, Restart.TEMPORARY])
@pytest.mark.parametrize("auto_shutdown", [AutoShutdown.ANY_SIGNIFICANT, AutoShutdown.ALL_SIGNIFICANT])
@pytest.mark.parametrize("significant", [1, 2])
async def test_significant_children_that_end_for_good_end_their_supervisor(
    auto_shutdown: AutoShutdown, restart: Restart, how: str, significant: int
) -> None:
    """The matrix of auto_shutdown and significant."""
    family = Family()
    specs = [family.spec(f"s{number}", restart, significant=True) for number in range(significant)]
    specs += [family.spec("plain", Restart.TEMPORARY), family.spec("permanent")]
    restarted = restart is Restart.TRANSIENT and how == "abnormal"
    supervisor = family.supervisor(*specs, auto_shutdown=auto_shutdown, intensity=9)
    async with supervisor:
        await family.end("plain", FAULTS[how])
        await anyio.sleep(1)
        await family.end("s0", FAULTS[how])
        await anyio.sleep(1)
        over = not restarted and (auto_shutdown is AutoShutdown.ANY_SIGNIFICANT or significant == 1)
        assert bool(family.events.of(SupervisorEnding)) is over
        if not over and significant == 2:
            await family.end("s1", FAULTS[how])
            await anyio.sleep(1)
            assert bool(family.events.of(SupervisorEnding)) is not restarted
        if not restarted:
            assert (await supervisor.wait()).kind == "shutdown"
            assert ("permanent", "shutdown") in family.events.ended()


@pytest.mark.promise("actors:auto-shutdown")
async def test_terminating_a_significant_child_by_request_does_not_end_its_supervisor() -> None:
    family = Family()
    spec = family.spec("s", Restart.TRANSIENT, significant=True)
    async with family.supervisor(spec, auto_shutdown=AutoShutdown.ANY_SIGNIFICANT) as supervisor:
        await supervisor.terminate_child("s")
        await anyio.sleep(1)
        assert states(supervisor) == {"s": "stopped"}
        assert not family.events.of(SupervisorEnding)


@pytest.mark.promise("actors:auto-shutdown")
async def test_a_significant_child_stopped_by_a_siblings_restart_does_not_end_its_supervisor() -> None:
    family = Family()
    specs = family.spec("a"), family.spec("s", Restart.TEMPORARY, significant=True)
    async with family.supervisor(
        *specs, auto_shutdown=AutoShutdown.ALL_SIGNIFICANT, strategy=Strategy.ONE_FOR_ALL
    ) as supervisor:
        await family.restart("a")
        await anyio.sleep(1)
        assert states(supervisor) == {"a": "running"}
        assert not family.events.of(SupervisorEnding)


@pytest.mark.promise("actors:auto-shutdown")
async def test_auto_shutdown_of_a_branch_is_a_shutdown_for_its_supervisor() -> None:
    family = Family()
    leaf = family.spec("leaf", Restart.TEMPORARY, significant=True)
    branch = ChildSpec(
        id="branch",
        start=lambda: family.supervisor(leaf, auto_shutdown=AutoShutdown.ANY_SIGNIFICANT, name="branch"),
        kind="supervisor",
        restart=Restart.TRANSIENT,
    )
    async with family.supervisor(branch) as supervisor:
        await family.end("leaf")
        await family.events.until_ended("branch")
        await anyio.sleep(1)
        assert family.events.reason("branch").kind == "shutdown"
        assert states(supervisor) == {"branch": "stopped"}
